"""Rates are differences of counts between two snapshots."""

from dataclasses import replace

import pytest

from millgate.core.events import Finished
from millgate.core.words import Reason
from millgate.observe.live.decision_history import happened_between, rates_between
from observe.live.rooms import Room


def test_rates_are_what_happened_over_the_time_that_passed() -> None:
    room = Room()
    room.arrive(1)
    before = room.core.snapshot(room.now)
    room.now += 4.0
    room.step(Finished(1, 100, 20))
    room.arrive(2, "throughput", max_wait_s=0.0)
    after = room.core.snapshot(room.now)

    rates = rates_between(before, after)
    assert (rates.over_s, rates.arrived, rates.good, rates.admitted) == (4.0, 0.25, 0.25, 0.0)
    assert rates.yielded == {"saturated": pytest.approx(0.25)}
    assert rates_between(before, after, "interactive").yielded == {}
    assert rates_between(before, after, "throughput").arrived == 0.25
    happened = happened_between(before, after)
    assert (happened[Reason.SATURATED], happened[Reason.QUOTA], happened["arrived"]) == (1, 0, 1)


def test_no_time_is_no_rate() -> None:
    snapshot = Room().core.snapshot(100.0)

    assert rates_between(snapshot, snapshot).arrived == 0.0


def test_a_lane_that_is_gone_makes_no_negative_rate() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput", max_wait_s=0.0)
    before = room.core.snapshot(room.now)
    after = replace(before, now=before.now + 5.0, lanes=before.lanes[:0])

    rates = rates_between(before, after)
    assert (rates.arrived, rates.admitted, rates.yielded) == (0.0, 0.0, {})
    assert happened_between(before, after) == {}


def test_a_lane_that_is_gone_takes_nothing_from_the_rates_of_the_others() -> None:
    """A reload that took a lane away showed ten seconds without a request: its counts of hours were more than what came since."""
    room = Room()
    room.arrive(1, "throughput")
    before = room.core.snapshot(room.now)
    room.now += 5.0
    room.arrive(2, max_wait_s=0.0)
    after = room.core.snapshot(room.now)
    rates = rates_between(before, replace(after, lanes=after.lanes[:1]))
    assert rates.arrived == 0.2
    assert rates.yielded == {"saturated": pytest.approx(0.2)}
