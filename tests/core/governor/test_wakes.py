"""What falls due comes in the order of its time, once, and what nobody waits for is dropped."""

from math import inf

from hypothesis import given, strategies as some

from millgate.core.events import Arrived
from millgate.core.governor.knowledge import Wakes
from millgate.core.settings import LaneSettings
from millgate.core.state.attempt import Age, Attempt, Request
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Pool, Route
from millgate.core.tickets.appointments import Appointments
from millgate.wiring.governor import INSTRUMENTS, make_order


def _alive(count: int) -> dict[int, Attempt]:
    settings, route = LaneSettings("lane"), Route((), Pool((), Appointments(1), INSTRUMENTS, 0.0))
    request = Request(
        Arrived(0),
        Lane(settings, make_order, INSTRUMENTS, 0.0),
        route,
        1.0,
        0.0,
        Age(Arrived(0), settings, None, 0, 0.0),
        sizes=(0, 0, 0, 0),
        deadlines=(0.0, 0.0),
        work_s=0.0,
        service_s=0.0,
    )
    return dict.fromkeys(range(count), Attempt(request, 1))


def _due(wakes: Wakes, now: float) -> list[int]:
    due = []
    while (attempt := wakes.pop(now)) is not None:
        due.append(attempt)
    return due


times = some.lists(some.sampled_from([0.0, 1.0, 1.5, 2.0, 1e9]))
moments = some.sampled_from([-1.0, 1.0, 1.7, 3.0])


@given(times, moments)
def test_what_is_due_comes_earliest_first_and_equals_as_they_were_asked_for(
    times: list[float], now: float
) -> None:
    wakes, alive = Wakes(), _alive(len(times))
    for attempt, at in enumerate(times):
        wakes.add(at, attempt, alive)

    due = [attempt for attempt, at in sorted(enumerate(times), key=lambda pair: pair[1]) if at <= now]
    assert _due(wakes, now) == due
    assert len(wakes) == len(times) - len(due)
    first = wakes.first()
    assert first is None if len(due) == len(times) else first is not None and first > now


def test_what_is_over_is_not_the_next_to_fall_due_once_something_is_asked_for() -> None:
    wakes = Wakes()
    alive = _alive(3)
    for attempt in alive:
        wakes.add(float(attempt), attempt, alive)
    wakes.forget(1)
    del alive[0]
    wakes.add(9.0, 2, alive)
    assert (len(wakes), wakes.first()) == (2, 2.0)
    assert _due(wakes, 10.0) == [2, 2]


def test_forever_falls_never_due() -> None:
    wakes, alive = Wakes(), _alive(3)
    for attempt in alive:
        wakes.add(inf, attempt, alive)
    assert (len(wakes), wakes.first()) == (0, None)


def test_a_forgotten_attempt_is_not_woken() -> None:
    wakes, alive = Wakes(), _alive(4)
    for attempt, at in [(1, 3.0), (2, 2.0), (1, 1.0), (3, 1.0)]:
        wakes.add(at, attempt, alive)
    wakes.forget(1)
    assert _due(wakes, 9.0) == [3, 2]


def test_a_crowd_of_one_time_comes_in_its_order() -> None:
    wakes = Wakes()
    alive = _alive(50_000)
    for attempt in alive:
        wakes.add(5.0, attempt, alive)
    wakes.forget(7)
    assert _due(wakes, 5.0) == [attempt for attempt in alive if attempt != 7]
    assert (len(wakes), wakes.first()) == (0, None)


def test_those_of_attempts_that_are_over_do_not_pile_up() -> None:
    wakes = Wakes()
    alive = _alive(10)
    for attempt in range(20_000):
        wakes.add(attempt / 7.0, attempt, alive)
    assert len(wakes) <= 4 * (10 + 1_000) + 1
    assert _due(wakes, 1e9)[:10] == list(range(10))
