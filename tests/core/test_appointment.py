"""When a client that was told to return is on time, by the clock, by its record and by its ticket."""

import pytest
from hypothesis import given, settings, strategies as some

from core.world import steady_prior
from millgate.core.decisions import Admit, Decision, Yield
from millgate.core.events import Arrived, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.governor.assess import assess
from millgate.core.settings import EngineSettings, LaneSettings, QuotaLimit, QuotaRule, Settings
from millgate.core.tickets import SOONEST_RETURN_S
from millgate.core.tickets.appointment import Appointment, ReturnRecord, kept_within_s, shortest_kept_s
from millgate.core.tickets.appointments import Appointments
from millgate.core.words import DeadlineFrom, QuotaKind
from millgate.wiring.governor import build_governor

HINTS = some.integers(100, 60_000).map(lambda ms: ms / 1000.0)


@pytest.mark.parametrize(
    ("hint_s", "opens_s", "lapses_s", "hold_s", "known_s"),
    [
        (0.1, 0.1, 1.1, 1.0, 2.1),
        (0.8, 0.45, 1.8, 1.0, 2.8),
        (4.0, 3.0, 5.0, 1.0, 6.0),
        (40.0, 39.0, 44.0, 7.98, 44.0),
    ],
)
def test_every_tolerance_follows_from_the_hint(
    hint_s: float, opens_s: float, lapses_s: float, hold_s: float, known_s: float
) -> None:
    told = Appointment(100.0, hint_s)
    assert told.opens_at == pytest.approx(100.0 + opens_s)
    assert told.lapses_at == pytest.approx(100.0 + lapses_s)
    assert told.hold_s == pytest.approx(hold_s)
    assert told.known_until(0.0) == pytest.approx(100.0 + known_s)
    assert told.known_until(900.0) == 900.0


@given(hint_s=HINTS, back_s=some.floats(0.0, 200.0))
def test_a_return_is_early_on_time_or_late(hint_s: float, back_s: float) -> None:
    told = Appointment(7.0, hint_s)
    now = 7.0 + back_s
    early, late = now < told.opens_at, now > told.lapses_at
    assert [early, told.is_honoured(now), late].count(True) == 1
    assert told.is_due(now) is not early
    assert told.is_honoured(told.due_at)
    assert told.lapses_at <= told.known_until(0.0)


@given(latest_s=some.floats(0.5, 100.0))
def test_the_shortest_hint_that_is_kept_is_kept_just_so(latest_s: float) -> None:
    hint_s = shortest_kept_s(latest_s)
    assert hint_s + kept_within_s(hint_s) == pytest.approx(latest_s)


@given(hint_s=HINTS, back_s=some.floats(SOONEST_RETURN_S, 120.0))
def test_a_record_says_of_every_instant_what_its_appointment_says(hint_s: float, back_s: float) -> None:
    told = Appointment(5.0, hint_s)
    until = told.known_until(0.0)
    placed = ReturnRecord("t", 7, 5.0, 1, told.known_from, until, told.due_at, told.lapses_at)
    asked = ReturnRecord("t", 8, 5.0, 2, told.known_from, until, told_at=told.due_at)
    appointments = Appointments(10)
    assert appointments.leave(placed)
    assert appointments.leave(asked)
    now = _off_the_edges(told, 5.0 + back_s)
    for body in (7, 8):
        found = appointments.match("t", body, now, 1)
        assert (found is None) is (now >= until)
        if found is not None:
            assert found.is_agreed(now) is told.is_due(now)


def _off_the_edges(told: Appointment, now: float) -> float:
    """Return this instant, a little later if it is an edge: a record keeps times to the last bits but one."""
    edges = (told.opens_at, told.due_at, told.lapses_at, told.known_until(0.0), told.known_from)
    return now + 1e-6 if any(abs(now - edge) < 1e-7 for edge in edges) else now


class _Gate:
    """One stream that is busy; a lane with a queue, or without one; a retry budget that is spent."""

    def __init__(self, deadline_from: DeadlineFrom, max_queue: int) -> None:
        lane = LaneSettings(
            "lane", ttft_slo_s=30.0, deadline_s=30.0, deadline_from=deadline_from, max_queue=max_queue
        )
        engine = EngineSettings("engine", 1, prior=steady_prior(2.0))
        rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 6, burst_s=10.0))
        self.core: Governor = build_governor(Settings((lane,), (engine,), quotas=(rule,)), 0.0)

    def ask(self, number: int, now: float, **more: object) -> Decision:
        return self.core.handle(_arrival(number, **more), now)[0]


def _arrival(number: int, **more: object) -> Arrived:
    return Arrived(number, prompt_bytes=400, max_tokens=100, **more)  # type: ignore[arg-type]


@settings(max_examples=150)
@given(
    back_ms=some.integers(101, 45_000),
    deadline_from=some.sampled_from(DeadlineFrom),
    max_queue=some.sampled_from([0, 4]),
)
def test_a_ticket_and_a_record_that_return_at_the_same_instant_are_judged_alike(
    back_ms: int, deadline_from: DeadlineFrom, max_queue: int
) -> None:
    """The hint of 10 s is a quota's, so that neither has a place and only the time of the return counts."""
    gate = _Gate(deadline_from, max_queue)
    assert isinstance(gate.ask(1, 0.0), Admit)
    refused = gate.ask(2, 0.0, fingerprint=lambda: 2)
    assert isinstance(refused, Yield)
    hint_s = refused.retry_after_s
    now = _off_the_edges(Appointment(0.0, hint_s), back_ms / 1000.0)
    gate.core.handle(FirstToken(1), 0.1)
    gate.core.handle(Finished(1, 100, 100), 0.1)
    gate.core.handle(Released(1), 0.1)

    by_body = _arrival(3, fingerprint=lambda: 2, retry_count=1)
    by_ticket = _arrival(3, first_seen=0.0, due_at=hint_s, hint_s=hint_s, retry_count=1)
    body, ticket = gate.core.explain(by_body, now), gate.core.explain(by_ticket, now)
    assert type(body.decision) is type(ticket.decision)
    assert body.first_seen == ticket.first_seen
    knowledge = gate.core._knowledge
    plans = [assess(knowledge, each, now) for each in (by_body, by_ticket)]
    body_agreed, ticket_agreed = [each.request.age.agreed for each in plans]
    assert body_agreed is ticket_agreed
    assert plans[0].request.recognised is plans[1].request.recognised
