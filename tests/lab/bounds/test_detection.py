"""The best possible detector: likelihood ratios of all beginnings, and the false alarms that are allowed."""

from math import exp, log, prod

import numpy as np
import pytest
from lab.bounds.detection import Beginnings, Climb, best_delays_s, counted, least_ratio_s

from millgate.instruments.early_warning import SAMPLE_S

CLIMB = Climb(calm=0.5, top=1.5, ramp_s=10.0, capacity_per_s=8.0)


def test_a_climb_is_calm_before_it_begins_and_at_its_top_after_the_ramp() -> None:
    ages_s = np.array([-5.0, 0.0, 2.5, 5.0, 10.0, 60.0])

    assert CLIMB.loads(ages_s).tolist() == [0.5, 0.5, 0.75, 1.0, 1.5, 1.5]
    assert CLIMB.full_s == 5.0


def _ratio(arrived: list[int], begins: int) -> float:
    """Return the likelihood ratio of a climb that begins with this look, written out."""
    ratios = []
    for look in range(begins, len(arrived)):
        load = min(1.5, 0.5 + 0.1 * (look - begins + 0.5) * SAMPLE_S)
        ratios.append(exp(arrived[look] * log(load / 0.5) - (load - 0.5) * 8.0 * SAMPLE_S))
    return prod(ratios)


def test_the_sum_is_over_all_beginnings_the_old_ones_as_well() -> None:
    arrived = np.random.default_rng(1).poisson(1.5, 60).tolist()
    beginnings = Beginnings(CLIMB, 1)
    sums = [float(beginnings.look(np.array([came]))[0]) for came in arrived]

    for looks in (1, 7, 60):
        written_out = SAMPLE_S * sum(_ratio(arrived[:looks], begins) for begins in range(looks))
        assert sums[looks - 1] == pytest.approx(written_out, rel=0.02)


def test_in_calm_the_mean_sum_is_the_time_that_has_passed() -> None:
    dice, beginnings = np.random.default_rng(2), Beginnings(CLIMB, 20_000)
    for _ in range(40):
        sums = beginnings.look(dice.poisson(CLIMB.calm * 8.0 * SAMPLE_S, 20_000))

    assert sums.mean() == pytest.approx(10.0, rel=0.05)


def test_calm_is_called_as_often_as_is_allowed() -> None:
    allowed_per_h, flows, looks = 10.0, 200, 7200
    least_s = least_ratio_s(CLIMB, allowed_per_h)
    dice, beginnings, calls = np.random.default_rng(3), Beginnings(CLIMB, flows), 0
    for _ in range(looks):
        called = beginnings.look(dice.poisson(CLIMB.calm * 8.0 * SAMPLE_S, flows)) >= least_s
        beginnings.forget(called)
        calls += int(called.sum())

    assert calls / (flows * looks * SAMPLE_S / 3600.0) == pytest.approx(allowed_per_h, rel=0.1)


def test_fewer_false_alarms_take_a_higher_sum() -> None:
    assert least_ratio_s(CLIMB, 0.1) == pytest.approx(8.0 * least_ratio_s(CLIMB, 0.8))


def test_a_flood_is_called_at_the_next_look_and_a_flow_that_ends_never() -> None:
    flood, nothing = [0] * 40 + [30] * 10, [0] * 50
    delays_s = best_delays_s(CLIMB, np.array([flood, nothing]).T, 10.0)

    assert delays_s.tolist() == [SAMPLE_S - 5.0, 12.5 - 10.0 - 5.0]


def test_a_call_before_the_climb_begins_is_false_and_forgotten() -> None:
    early = [30, *[0] * 49]

    assert best_delays_s(CLIMB, np.array([early]).T, 10.0).tolist() == [12.5 - 10.0 - 5.0]


def test_arrivals_are_counted_between_looks_until_the_end() -> None:
    assert counted([0.1, 0.2, 0.3, 0.9, 5.0], 1.1).tolist() == [[2], [1], [0], [1]]
