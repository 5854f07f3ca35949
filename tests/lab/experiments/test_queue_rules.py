"""Rules of the literature, on the same arrivals, before a gate that bounds its queue by the predicted wait."""

import pytest
from lab.experiments.queue_rules import QUEUE_RULES

from millgate.sim.experiments.contract import Arm


def goodput(series: str, load: float = 2.0) -> float:
    return QUEUE_RULES.run(Arm(series, load), 1)[0][1]["goodput"]


@pytest.mark.parametrize("rule", ["with CoDel", "newest first", "with a threshold"])
def test_no_rule_adds_to_a_queue_whose_wait_is_bounded(rule: str) -> None:
    assert goodput(rule) <= 1.01 * goodput("gate")


def test_without_a_deadline_the_line_by_arrival_is_lost_and_newest_first_is_not() -> None:
    assert goodput("by arrival, no deadline") < 0.1
    assert 0.9 < goodput("newest first, no deadline") < 0.8 * goodput("gate")
