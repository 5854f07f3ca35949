"""Two racks in the simulator: labels save what slow links between them would cost, and take nothing where there is nothing to save."""

from dataclasses import replace

import pytest
from lab.experiments.racks import EQUAL_LABELS, LABELS, NO_LABELS, Racks, play, racks

SHORT = Racks(until_s=60.0)
SLOW = 1.25


def test_labels_keep_prompts_off_slow_links() -> None:
    blind, told = (play(SHORT, labelled, SLOW, 1) for labelled in (NO_LABELS, LABELS))
    assert told["good_share"] > blind["good_share"] + 0.1
    assert told["apart_share"] > 0.5, "most prompts are read by another engine all the same"


@pytest.mark.parametrize("far", [50.0, SLOW])
def test_equal_labels_change_nothing(far: float) -> None:
    assert play(SHORT, EQUAL_LABELS, far, 1) == play(SHORT, NO_LABELS, far, 1)


def test_a_rack_that_loses_its_readers_is_served_over_the_slow_links() -> None:
    whole, lost = (play(replace(SHORT, lost=lost), LABELS, SLOW, 1) for lost in (0, 2))
    assert lost["good_share"] > whole["good_share"] - 0.1
    assert lost["transfer_s"] > whole["transfer_s"] + 0.01, "some prompts go to the other rack"


def test_a_knob_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="rack: not one of reading, writing"):
        racks({"rack": "2"})
