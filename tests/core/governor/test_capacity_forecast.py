"""When permits are expected to come free, as those are told who wait for them."""

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Queue
from millgate.core.events import Arrived
from millgate.core.settings import EngineSettings, LaneSettings


def _waits(starts: list[float], now: float, places: int) -> list[float]:
    """Return the waits for these places, where one answer of 2 s each has begun at these times."""
    lane = LaneSettings("lane", deadline_s=600.0)
    gate = governor(lane, engines=(EngineSettings("engine", len(starts), prior=steady_prior(2.0)),))
    for attempt, at in enumerate(starts):
        (admit,) = gate.handle(Arrived(attempt, max_tokens=100), at)
        assert isinstance(admit, Admit)
    queued = [gate.handle(Arrived(100 + place, max_tokens=100), now)[0] for place in range(places)]
    return [each.expected_wait_s for each in queued if isinstance(each, Queue)]


def test_the_first_permits_come_when_what_runs_ends_and_the_next_a_cycle_later() -> None:
    assert _waits([0.0, 0.5, 1.5], 1.6, 4) == pytest.approx([0.4, 0.9, 1.9, 2.4], rel=0.01)


def test_a_batch_that_ends_together_opens_together() -> None:
    assert _waits([0.0] * 4, 1.9, 4) == pytest.approx([0.1] * 4)


def test_answers_that_are_a_little_late_end_as_much_later() -> None:
    """All four by half a second: as much more, and 0.1 s, evenly."""
    assert _waits([0.0] * 4, 2.5, 4) == pytest.approx([0.6 * share for share in (1 / 8, 3 / 8, 5 / 8, 7 / 8)])


def test_answers_that_are_very_late_end_over_one_cycle_beside_those_that_are_not() -> None:
    """Two have run for 7 s and may each end at any time, no sooner than answers do; two end in a second.

    One after another at the rate of all four streams, the two would be over before those, and the second permit free
    after 0.75 s.
    """
    assert _waits([0.0, 0.0, 6.0, 6.0], 7.0, 4) == pytest.approx([0.5, 1.0, 1.0, 1.5], rel=0.01)


def test_waits_grow_with_the_place() -> None:
    waits = _waits([0.0, 0.3, 3.1, 3.2, 4.0, 4.4, 4.9, 5.0], 5.5, 20)

    assert waits == sorted(waits)
    assert waits[0] > 0.0
