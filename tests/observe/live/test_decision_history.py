"""History is kept every five seconds in bounded memory, whether or not anybody watches."""

import pytest

from millgate.core.events import Tick
from millgate.observe.live.decision_history import EVERY_S, MOST_POINTS
from observe.live.rooms import Room


def test_a_step_says_what_happened_in_it_and_how_it_ended() -> None:
    room = Room(max_queue=1)
    for attempt in range(1, 6):
        room.arrive(attempt)
    room.now += EVERY_S
    room.step(Tick())

    (point,) = room.history.points
    assert point.arrived_per_s == pytest.approx(5 / EVERY_S)
    assert point.refused_per_s == pytest.approx(3 / EVERY_S)
    assert (point.queued, point.used, point.good_per_s) == (1, 1.0, 0.0)
    assert point.wait_s > 0.0


def test_no_step_is_shorter_than_five_seconds() -> None:
    room = Room()
    for _ in range(100):
        room.now += 0.1
        room.step(Tick())

    assert len(room.history.points) == 1


def test_history_is_bounded_and_snapshots_are_few() -> None:
    room = Room()
    for _ in range(MOST_POINTS + 30):
        room.now += EVERY_S
        room.step(Tick())

    assert len(room.history.points) == MOST_POINTS
    assert room.history.before(room.now, 5.0).now == room.now - 5.0
    assert room.history.before(room.now, 1e6).now == room.now - 15.0
