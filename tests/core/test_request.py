"""A request is what it was when it came: what it continues, and whether its retry is charged."""

import pytest

from millgate.core.events import Arrived
from millgate.core.settings import LaneSettings
from millgate.core.state.attempt import Age, Request
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Pool, Route
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.tickets.appointments import Appointments
from millgate.core.words import DeadlineFrom
from millgate.wiring.governor import INSTRUMENTS, make_order

NOW = 5.0


def _request(retry_count: int | None = None, record: ReturnRecord | None = None) -> Request:
    settings = LaneSettings("lane", deadline_s=60.0, deadline_from=DeadlineFrom.FIRST_ATTEMPT)
    arrival = Arrived(1, tenant="t", retry_count=retry_count, fingerprint=lambda: 7)
    lane, route = (
        Lane(settings, make_order, INSTRUMENTS, 0.0),
        Route((), Pool((), Appointments(1), INSTRUMENTS, 0.0)),
    )
    age = Age(arrival, settings, record, 3, NOW)
    return Request(
        arrival,
        lane,
        route,
        1.0,
        NOW,
        age,
        sizes=(100, 50, 150, 0),
        deadlines=(60.0, 40.0),
        work_s=2.0,
        service_s=3.0,
    )


def _record(due_at: float) -> ReturnRecord:
    return ReturnRecord("t", 7, 1.0, 2, 1.1, 100.0, due_at, due_at + 1.0)


@pytest.mark.parametrize(
    ("retry_count", "due_at", "charged"),
    [
        (None, None, False),
        (0, None, False),
        (1, None, True),
        (None, 30.0, True),
        (1, 30.0, True),
        (None, NOW, False),
        (2, NOW, False),
    ],
)
def test_only_a_retry_without_an_appointment_is_charged(
    retry_count: int | None, due_at: float | None, charged: bool
) -> None:
    record = None if due_at is None else _record(due_at)

    assert _request(retry_count, record).is_charged is charged


def test_a_request_that_is_back_on_time_is_as_old_as_its_first_attempt_and_ranked_before_shorter_work() -> (
    None
):
    request = _request(record=_record(NOW))

    assert (request.first_seen, request.arrival_number, request.recognised) == (1.0, 2, True)
    assert (request.work_s, request.engine_s) == (2.0, 0.0)
    assert request.origin == 1.0


def test_a_request_that_moves_to_another_route_stays_as_old_as_urgent_and_as_dear() -> None:
    request = _request(record=_record(30.0))
    route = Route((), request.route.pool)
    request.lane.reconfigured(LaneSettings("lane", deadline_s=1.0), NOW)

    moved = request.moved(route)

    assert moved.route is route
    assert moved.queue.route is route
    for name in (
        "age",
        "first_seen",
        "as_old_as",
        "deadline",
        "lane_deadline",
        "work_s",
        "engine_s",
        "kv_tokens",
    ):
        assert getattr(moved, name) == getattr(request, name)
    assert moved.body() == 7
