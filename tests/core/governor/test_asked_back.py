"""Who is back when a quota, or a gate without an engine, said so: no retry that nobody asked for, and not too old."""

from math import inf
from operator import itemgetter

import pytest

from core.governor.asking import ask as _ask, gate_of as _gate
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import EngineDown, EngineShare, EngineUp, Failed, LeaseGranted, Released
from millgate.core.limits.breaker import restart_hint_s
from millgate.core.settings import LaneSettings, QuotaLimit, QuotaRule
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.tickets.appointments import Appointments
from millgate.core.words import FailureKind, QuotaKind, Reason, Sent


def test_who_is_back_when_a_quota_said_so_is_no_retry_that_nobody_asked_for() -> None:
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 60, burst_s=1.0))
    gate = _gate(streams=1, quotas=(rule,))
    assert isinstance(_ask(gate, 0), Admit)
    hints = [_ask(gate, number, fingerprint=lambda number=number: number) for number in range(1, 9)]
    assert {(each.reason, each.retry) for each in hints} == {(Reason.QUOTA, True)}
    back = [
        _ask(gate, 10 + number, hint.retry_after_s, fingerprint=lambda number=number: number, retry_count=1)
        for number, hint in enumerate(hints, 1)
    ]
    assert all(isinstance(each, Queue) for each in back), "the budget of 1.2 retries is not theirs"

    now = hints[-1].retry_after_s
    for number in range(20, 28):
        assert _ask(gate, number, now).reason is Reason.QUOTA
    early = [
        _ask(gate, 20 + number, now + 0.2, fingerprint=lambda number=number: number, retry_count=1)
        for number in range(20, 28)
    ]
    assert early[-1].reason is Reason.RETRY_BUDGET, "who comes sooner pays"


def test_who_was_asked_back_after_its_deadline_is_not_refused_for_its_age() -> None:
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 6, burst_s=10.0))
    gate = _gate(LaneSettings("lane", deadline_s=3.0), quotas=(rule,))
    assert isinstance(_ask(gate, 0), Admit)
    by_body = _ask(gate, 1)
    assert (by_body.reason, by_body.retry, by_body.retry_after_s) == (Reason.QUOTA, True, 10.0)
    assert isinstance(_ask(gate, 2, 10.0, fingerprint=lambda: 1, retry_count=1), Admit)

    by_ticket = _ask(gate, 3, 10.0, fingerprint=lambda: 3)
    assert by_ticket.reason is Reason.QUOTA
    back = _ask(gate, 4, 20.0, first_seen=10.0, due_at=20.0, hint_s=10.0)
    assert isinstance(back, Admit)


def test_who_found_no_engine_is_served_when_it_is_back_as_told() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=3.0))
    gate.handle(EngineDown("engine"), 0.0)
    refused = _ask(gate, 1)
    assert (refused.reason, refused.retry) == (Reason.NO_ENGINE, True)
    assert refused.retry_after_s > 3.0
    gate.handle(EngineUp("engine"), 2.0)

    assert isinstance(_ask(gate, 2, refused.retry_after_s, fingerprint=lambda: 1, retry_count=1), Admit)


def test_who_was_asked_back_without_a_place_is_found_and_counts_in_no_line() -> None:
    appointments = Appointments(10)
    appointments.leave(ReturnRecord("t", 7, 1.0, 0, 1.1, 20.0, told_at=9.0))
    assert (appointments.open, appointments.records) == (0, 1)
    found = appointments.match("t", 7, 8.0, 1)
    assert found is not None
    assert (found.due_at, found.told_at, found.is_due(9.0)) == (None, 9.0, False)
    assert [found.is_agreed(now) for now in (7.9, 8.0, 9.0)] == [False, True, True]


def test_a_first_attempt_takes_no_place_of_others_with_its_body() -> None:
    """Of one body's users, as a load test's are, those that came back found that newcomers had taken their records, and were refused for good."""
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=1)
    assert isinstance(_ask(gate, 0, 20.0), Admit)
    hints = [_ask(gate, number, 20.0, fingerprint=lambda: 7, retry_count=0) for number in (1, 2)]
    back_at = 20.0 + max(each.retry_after_s for each in hints)
    newcomers = [_ask(gate, number, back_at, fingerprint=lambda: 7, retry_count=0) for number in range(3, 13)]
    assert {each.reason for each in newcomers} == {Reason.SATURATED}
    assert isinstance(_ask(gate, 20, back_at, fingerprint=lambda: 7, retry_count=1), Queue)
    assert isinstance(_ask(gate, 21, back_at, fingerprint=lambda: 7, retry_count=1), Queue)


def test_a_restarted_gate_takes_retries_that_it_does_not_know_for_first_attempts_for_ten_seconds() -> None:
    """Every client of a gate that was restarted into a full engine was refused for good: what had earned its retry was forgotten."""
    for now, reason in ((1.0, Reason.SATURATED), (9.0, Reason.SATURATED), (11.0, Reason.RETRY_BUDGET)):
        gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=64)
        answers = [_ask(gate, number, now + number / 100.0, retry_count=1) for number in range(90)]
        assert [isinstance(each, Admit) for each in answers[:64]] == [True] * 64, "streams are free"
        assert answers[-1].reason is reason
        assert answers[-1].retry is (reason is Reason.SATURATED)


def test_without_a_store_retries_that_another_replica_may_know_are_no_storm_until_ten_seconds_after() -> None:
    """Replicas do not tell each other of clients then: each that a balancer sent to another replica was refused for good."""
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=64)
    _ask(gate, 0)
    shares = (EngineShare("engine", 1),)

    def last_reason(now: float) -> Reason:
        answers = [_ask(gate, int(now * 1000) + each, now, retry_count=1) for each in range(30)]
        reason: Reason = answers[-1].reason
        return reason

    gate.handle(LeaseGranted(100.0, 2, shares, retries=1), 1.0)
    assert last_reason(20.0) is Reason.RETRY_BUDGET
    gate.handle(LeaseGranted(inf, 2, shares, retries=1), 30.0)
    for now in (31.0, 300.0):
        assert last_reason(now) is Reason.SATURATED
    gate.handle(LeaseGranted(400.0, 2, shares, retries=1), 301.0)
    gate.handle(LeaseGranted(400.0, 2, shares, retries=1), 305.0)
    assert last_reason(310.0) is Reason.SATURATED
    assert last_reason(312.0) is Reason.RETRY_BUDGET


def test_a_storm_into_a_restarted_gate_pays_from_its_second_attempt_on() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=1)
    _ask(gate, 0)
    for attempt in range(1, 21):
        hint = _ask(gate, attempt, 1.0, retry_count=1)
        assert (hint.reason, hint.retry) == (Reason.SATURATED, True)
    early = [
        _ask(gate, 20 + each, 1.2, fingerprint=lambda each=each: each, retry_count=2) for each in range(1, 21)
    ]
    assert early[-1].reason is Reason.RETRY_BUDGET


@pytest.mark.parametrize(
    ("kind", "hint_s", "told_s"), [(FailureKind.CONNECT, None, None), (FailureKind.REFUSED, 3.0, 3.0)]
)
def test_who_was_told_to_come_back_as_the_engine_was_gone_or_full_pays_for_no_retry(
    kind: FailureKind, hint_s: float | None, told_s: float | None
) -> None:
    """All that was queued failed within a moment of the engine's death, and on time a second later half was refused for good."""
    for is_told, reasons in ((True, set[Reason]()), (False, {Reason.RETRY_BUDGET})):
        gate = _gate(streams=4)
        clients = range(40)
        for client in clients:
            _ask(gate, client, 61.0)
        for client in clients:
            gate.handle(Failed(client, kind, Sent.REQUEST, hint_s), 61.1)
            gate.handle(Released(client), 61.1)
        waits_s = {client: told_s or restart_hint_s(client, None) if is_told else 0.9 for client in clients}
        back = [
            _ask(gate, 100 + client, 61.1 + wait_s, fingerprint=lambda client=client: client, retry_count=1)
            for client, wait_s in sorted(waits_s.items(), key=itemgetter(1))
        ]
        assert {each.reason for each in back if isinstance(each, Yield)} == reasons


def test_the_last_try_of_an_sdk_comes_when_an_engine_may_have_been_loaded() -> None:
    """Told 5 to 10 s each time, clients with the usual two retries tried for the last time after 10 to 20 s."""
    gate = _gate(LaneSettings("lane", deadline_s=5.0))
    gate.handle(EngineDown("engine"), 0.0)
    for client in range(20):
        now, tried_at = 0.0, list[float]()
        for retry in range(3):
            tried_at.append(now)
            told = _ask(
                gate, 10 * client + retry, now, fingerprint=lambda client=client: client, retry_count=retry
            )
            assert (told.reason, told.retry) == (Reason.NO_ENGINE, True)
            assert 5.0 * 2**retry <= told.retry_after_s < 10.0 * 2**retry
            now += told.retry_after_s
        assert 15.0 <= tried_at[-1] < 30.0
    assert _ask(gate, 999, now, retry_count=50).retry_after_s <= 40.0
