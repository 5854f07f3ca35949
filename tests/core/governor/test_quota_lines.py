"""Clients that one bucket refuses together are told successive times, and the bucket keeps what it has promised."""

from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings, strategies as some

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Yield
from millgate.core.events import Arrived, Withdrawn
from millgate.core.governor import Governor
from millgate.core.governor.quota_lines import MOST_APPOINTMENTS, MOST_IN_LINE, QuotaLines
from millgate.core.quotas.bucket import Bucket
from millgate.core.quotas.ledger import Demand
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
)
from millgate.core.tickets import ClientKind
from millgate.core.tickets.appointment import Appointment, age_key
from millgate.core.words import QuotaKind, Reason

LATE_S = Appointment(0.0, 1.0).late_s


def _requests(per_minute: float = 60.0, burst_s: float = 1.0, **whose: Any) -> QuotaRule:
    return QuotaRule("requests", QuotaLimit(QuotaKind.RPM, per_minute, burst_s=burst_s), **whose)


def _gate(*rules: QuotaRule) -> Governor:
    return gate_of(LaneSettings("lane", deadline_s=600.0), streams=500, quotas=rules or (_requests(),))


def _emptied(gate: Governor, requests: int = 1, **fields: Any) -> None:
    for number in range(requests):
        assert isinstance(ask(gate, 1_000_000 + number, **fields), Admit)


def _refused(gate: Governor, numbers: range, now: float = 0.0, **fields: Any) -> dict[int, float]:
    """Return when each of these requests was told to return, by the number that is also its body."""
    told = {}
    for number in numbers:
        answer = ask(gate, number, now, **fields)
        assert isinstance(answer, Yield), number
        assert (answer.reason, answer.retry) == (Reason.QUOTA, True)
        told[number] = now + answer.retry_after_s
    return told


def _back(gate: Governor, number: int, now: float, **fields: Any) -> Any:
    """Return what is decided about the return of the request with this number."""
    return ask(gate, 10_000 + number, now, fingerprint=lambda: number, retry_count=1, **fields)


def test_twenty_that_one_bucket_refuses_together_are_told_successive_times_and_admitted_then() -> None:
    gate = _gate()
    _emptied(gate)
    told = _refused(gate, range(20))

    assert list(told.values()) == pytest.approx([1.0 + number for number in range(20)])
    assert all(isinstance(_back(gate, number, at), Admit) for number, at in told.items())
    assert not gate._knowledge.allowances.lines.bookings


def test_clients_that_a_quota_told_to_return_are_shown_as_expected_until_they_are_back_or_lapse() -> None:
    gate = _gate()
    _emptied(gate)
    told = _refused(gate, range(3))
    assert gate.snapshot(0.0).retries.appointments == 3

    assert isinstance(_back(gate, 0, told[0]), Admit)
    assert gate.snapshot(told[0]).retries.appointments == 2
    assert gate.snapshot(told[2] + 60.0).retries.appointments == 0


def test_the_buckets_of_several_tenants_have_lines_of_their_own() -> None:
    gate = _gate(_requests(each=("tenant",)))
    for tenant in ("ann", "bob"):
        assert isinstance(ask(gate, hash(tenant), tenant=tenant), Admit)
    ann = _refused(gate, range(3), tenant="ann")
    bob = _refused(gate, range(10, 12), tenant="bob")

    assert list(ann.values()) == pytest.approx([1.0, 2.0, 3.0])
    assert list(bob.values()) == pytest.approx([1.0, 2.0])


def test_what_clients_of_one_tenant_do_shortens_no_hint_of_another_whose_bucket_is_its_own() -> None:
    """Two of `nightly` are refused and never return; 3 s later thirty of `ann` keep their hints."""
    gate = _gate(_requests(burst_s=10.0, each=("tenant",)))
    for number in range(10):
        assert isinstance(ask(gate, 900 + number, tenant="nightly"), Admit)
    _refused(gate, range(910, 912), tenant="nightly")
    for number in range(10):
        assert isinstance(ask(gate, 800 + number, 3.9, tenant="ann"), Admit)
    told = _refused(gate, range(20), 3.9, tenant="ann")

    assert list(told.values()) == pytest.approx([4.9 + number for number in range(20)])
    assert all(isinstance(_back(gate, number, at, tenant="ann"), Admit) for number, at in told.items())


@pytest.mark.parametrize("whose", [{"each": ("tenant",)}, {"tenant": "ann"}])
def test_a_bucket_of_one_tenant_counts_by_what_its_own_clients_did(whose: dict[str, Any]) -> None:
    gate = _gate(_requests(burst_s=10.0, **whose))
    for number in range(10):
        assert isinstance(ask(gate, 800 + number, tenant="ann"), Admit)
    _refused(gate, range(2), tenant="ann")
    for number in range(3):
        assert isinstance(ask(gate, 810 + number, 3.2, tenant="ann"), Admit)
    arrivals = [Arrived(20 + number, "ann", prompt_bytes=400, fingerprint=lambda: 7) for number in range(2)]
    said = gate.explain(arrivals[0], 3.9).decision
    first, second = [gate.handle(arrival, 3.9)[0] for arrival in arrivals]

    assert isinstance(first, Yield)
    assert isinstance(second, Yield)
    assert first._replace(quota=()) == said
    # Of the two that were told none came, the first forgotten by a fiftieth: with the prior of 1.5 outcomes 1.5 of 3.48 are expected.
    assert second.promised == pytest.approx(1.5 / (1.5 + 1.98))
    assert second.retry_after_s - first.retry_after_s == pytest.approx(second.promised)


def test_tokens_are_promised_by_how_many_each_asks_for() -> None:
    rule = QuotaRule("tokens", QuotaLimit(QuotaKind.ITPM, 6_000, burst_s=10.0))
    gate = _gate(rule)
    first = gate.explain(Arrived(1, prompt_bytes=4_000, max_tokens=10), 0.0).prompt_tokens
    _emptied(gate, prompt_bytes=4_000, max_tokens=10)
    told, ahead = [], 0
    for number, prompt_bytes in enumerate((400, 2_000, 400, 1_200)):
        arrival = Arrived(number, prompt_bytes=prompt_bytes, max_tokens=10, fingerprint=partial(int, number))
        ahead += gate.explain(arrival, 0.0).prompt_tokens
        (answer,) = gate.handle(arrival, 0.0)
        assert isinstance(answer, Yield)
        told.append(answer.retry_after_s)
        assert told[-1] == pytest.approx((ahead - (1_000 - first)) / 100.0, rel=0.01)


def test_clients_of_a_providers_account_are_told_successive_times_and_admitted_then() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 60, burst_s=1.0),))
    engine = EngineSettings("engine", 500, prior=steady_prior(2.0), account=account)
    gate = gate_of(LaneSettings("lane", deadline_s=600.0, max_queue=0), engine=engine)
    _emptied(gate)
    refused = [ask(gate, number) for number in range(20)]
    told = [each.retry_after_s for each in refused]

    assert {each.reason for each in refused} == {Reason.SATURATED}
    each_s = 60.0 / (60.0 * 0.98)
    # A client is asked back a little early, by a twenty-fifth of its wait.
    assert told == pytest.approx([each_s * (place + 1) / 1.02 for place in range(20)], abs=0.5)
    for number, at in enumerate(told):
        assert not isinstance(_back(gate, number, at), Yield), "admitted, or queued until the bucket has it"


def test_a_newcomer_does_not_take_what_is_promised_to_a_client_that_is_due() -> None:
    gate = _gate()
    _emptied(gate)
    (at,) = _refused(gate, range(1)).values()
    newcomer = ask(gate, 50, at + 0.2)

    assert isinstance(newcomer, Yield)
    assert newcomer.promised == pytest.approx(1.0)
    assert newcomer.bound == pytest.approx(1.0), "a request is left, and it is promised"
    assert newcomer.retry_after_s == pytest.approx(1.0)
    assert isinstance(_back(gate, 0, at + 0.3), Admit)


def test_a_free_request_does_not_wait_for_a_client_that_is_not_due() -> None:
    gate = _gate(_requests(burst_s=10.0))
    _emptied(gate, 10)
    told = _refused(gate, range(40, 60))
    assert isinstance(_back(gate, 40, told[40]), Admit)
    assert told[45] == pytest.approx(6.0)

    # At 4.5 s there are 3.5 requests: two clients have lapsed, two are due, and one in two is expected by now.
    assert [type(ask(gate, 200 + each, 4.5)) for each in range(3)] == [Admit, Admit, Yield]


def test_a_client_that_returns_early_gains_nothing_and_loses_nothing() -> None:
    gate = _gate(_requests(burst_s=5.0))
    _emptied(gate, 5)
    told = _refused(gate, range(3))
    early = _back(gate, 2, 1.1)

    assert isinstance(early, Yield)
    assert 1.1 + early.retry_after_s == pytest.approx(told[2])
    assert isinstance(_back(gate, 0, 1.2), Admit), "its request was not taken by one that was early"
    assert isinstance(_back(gate, 1, told[1]), Admit)
    assert isinstance(_back(gate, 2, told[2]), Admit)


@pytest.mark.parametrize("by_body", [True, False])
def test_a_ticket_keeps_an_appointment_as_a_body_does(by_body: bool) -> None:
    gate = _gate()
    _emptied(gate)
    told = _refused(gate, range(3))
    for number, at in told.items():
        ticket = {"fingerprint": None, "first_seen": 0.0, "due_at": round(at, 3), "hint_s": round(at, 3)}
        newcomer = ask(gate, 500 + number, at)
        back = _back(gate, number, at) if by_body else ask(gate, 600 + number, at, **ticket)
        assert isinstance(newcomer, Yield)
        assert newcomer.promised > 0.0
        assert isinstance(back, Admit)
    assert len(gate._knowledge.allowances.lines.bookings) == 3, "those of the newcomers"


def test_a_client_that_was_told_twice_and_kept_its_turn_is_known_by_its_last_ticket() -> None:
    lines, demands = QuotaLines(), [Demand(Bucket(1.0, 1.0, 0.0), 1.0)]
    kept_turn, said = age_key(2.0, 7), Appointment(10.0004, 5.0)
    lines.book(7, "ann", ClientKind.FIRST, Appointment(10.0, 5.0), demands, kept_turn)

    assert lines.number_of("bob", said) is None
    assert lines.number_of("ann", said) == 7
    assert lines.returned(7) == kept_turn
    assert lines.number_of("ann", said) is None


def test_a_ticket_of_another_tenant_keeps_no_appointment() -> None:
    gate = _gate()
    _emptied(gate)
    (at,) = _refused(gate, range(1), tenant="ann").values()
    ticket = {"fingerprint": None, "first_seen": 0.0, "due_at": at, "hint_s": at}

    assert isinstance(ask(gate, 600, at, tenant="bob", **ticket), Yield)
    assert isinstance(ask(gate, 601, at, tenant="ann", **ticket), Admit)


def test_looking_ahead_leaves_out_what_has_lapsed_by_then() -> None:
    gate = _gate(_requests(burst_s=5.0))
    _emptied(gate, 5)
    told = _refused(gate, range(30))
    newcomer = Arrived(99, prompt_bytes=400, max_tokens=100)
    for now in (0.5, told[3], told[9] + 0.3, told[29] + LATE_S + 0.1):
        said = gate.explain(newcomer, now).decision
        again = _gate(_requests(burst_s=5.0))
        _emptied(again, 5)
        _refused(again, range(30))
        (answer,) = again.handle(newcomer, now)
        assert isinstance(answer, Admit | Yield)
        assert answer._replace(quota=()) == said


def test_a_removed_quota_leaves_no_line_that_anyone_waits_in() -> None:
    gate = _gate()
    _emptied(gate)
    told = _refused(gate, range(5))
    lane = LaneSettings("lane", deadline_s=600.0)
    engine = EngineSettings("engine", 500, prior=steady_prior(2.0))
    gate.reconfigure(Settings((lane,), (engine,)), 0.5)

    assert isinstance(ask(gate, 50, 0.6), Admit)
    assert isinstance(_back(gate, 4, 0.7), Admit)
    ask(gate, 51, told[4] + LATE_S + 0.1)
    assert not gate._knowledge.allowances.lines.bookings


def test_a_client_at_its_own_time_waits_for_none_that_is_absent() -> None:
    gate = _gate()
    _emptied(gate)
    told = _refused(gate, range(6))
    assert all(isinstance(_back(gate, number, told[number]), Admit) for number in (1, 3, 5))


def test_absent_clients_do_not_idle_a_bucket_longer_than_a_client_may_be_late() -> None:
    """A bucket that holds one request has idled since a second after an admission at the earliest."""
    gate = _gate()
    _emptied(gate)
    _refused(gate, range(40))
    admitted_at, idle_s = 0.0, []
    for tenth in range(1, 600):
        now = tenth / 10.0
        if isinstance(ask(gate, 1_000 + tenth, now, fingerprint=None), Admit):
            idle_s.append(now - admitted_at - 1.0)
            admitted_at = now

    assert max(idle_s) <= LATE_S + 0.101, "asked each tenth of a second"
    assert sum(idle_s[-20:]) / 20 < 0.2 * LATE_S, "that they stay away is learned"


def test_a_time_beyond_the_longest_hint_is_no_appointment() -> None:
    gate = _gate()
    _emptied(gate)
    told = list(_refused(gate, range(200)).values())

    assert told[:60] == pytest.approx([1.0 + number for number in range(60)])
    assert all(45.0 <= at <= 60.0 for at in told[60:])
    assert len(gate._knowledge.allowances.lines.bookings) == 60


def test_a_client_that_is_refused_again_keeps_its_turn() -> None:
    """The bucket gets less than it had promised: the first client is told the first time again."""
    gate = _gate(_requests(burst_s=5.0))
    _emptied(gate, 5)
    told = _refused(gate, range(4))
    gate._knowledge.allowances.ledger._shared["requests"].lower_to(-1.0, 1.0)
    again = [_back(gate, number, told[0]) for number in range(4)]

    assert [told[0] + each.retry_after_s for each in again] == pytest.approx([3.0, 4.0, 5.0, 6.0])


def test_lines_are_bounded_and_beyond_them_the_plain_wait_is_told() -> None:
    lines, bucket, others = QuotaLines(), Bucket(1.0, 1.0, 0.0), [Bucket(1.0, 1.0, 0.0) for _ in range(9)]
    for number in range(MOST_IN_LINE + 5):
        lines.book(number, "t", ClientKind.FIRST, Appointment(0.0, 10.0), [Demand(bucket, 1.0)])
    assert len(lines.bookings) == MOST_IN_LINE

    for number in range(MOST_IN_LINE, 2 * MOST_APPOINTMENTS):
        lines.book(number, "t", ClientKind.FIRST, Appointment(0.0, 10.0), [Demand(others[number % 9], 1.0)])
    assert len(lines.bookings) == MOST_APPOINTMENTS
    lines.expire(inf)
    assert not lines.bookings
    assert lines._lines == {}
    assert lines._ends == []


def test_clients_that_have_left_keep_no_newcomer_waiting_for_a_quota() -> None:
    """Their peer on the line door has closed; each newcomer was told a second more for each of them."""
    gate = _gate()
    assert isinstance(ask(gate, 0), Admit)
    hints = [ask(gate, attempt, 0.1).retry_after_s for attempt in range(1, 6)]
    assert hints == pytest.approx([0.9, 1.9, 2.9, 3.9, 4.9], abs=0.2)

    gate.handle(Withdrawn((1, 2, 3, 5)), 0.2)
    assert ask(gate, 6, 0.3).retry_after_s == pytest.approx(1.7, abs=0.2), "behind the fourth"


def test_who_a_quota_refuses_after_two_billion_requests_has_an_appointment_too() -> None:
    lines, bucket = QuotaLines(), Bucket(1.0, 1.0, 0.0)
    number = 1 << 31
    lines.book(number, "", ClientKind.FIRST, Appointment(0.0, 1.0), [Demand(bucket, 1.0)])
    assert len(lines.bookings) == 1
    assert lines.returned(number) is not None


def test_notes_of_appointments_that_are_over_do_not_pile_up() -> None:
    lines, bucket = QuotaLines(), Bucket(1.0, 1.0, 0.0)
    for number in range(5_000):
        lines.book(number, "t", ClientKind.FIRST, Appointment(0.0, 10.0), [Demand(bucket, 1.0)])
        lines.returned(number)
    assert len(lines._ends) <= 2_001


STEPS = some.lists(
    some.tuples(
        some.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0, 3.0]),
        some.integers(0, 12),
        some.booleans(),
        some.sampled_from([40, 400, 2_000]),
    ),
    max_size=60,
)


@settings(max_examples=120)
@given(steps=STEPS, burst_s=some.sampled_from([1.0, 4.0, 30.0]))
def test_whatever_is_promised_a_bucket_gives_no_more_than_its_law_and_looking_says_what_is_done(
    steps: list[tuple[float, int, bool, int]], burst_s: float
) -> None:
    """The law: burst and rate x time, over every interval between two admissions."""
    limits = (
        QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 60, burst_s=burst_s)),
        QuotaRule("tokens", QuotaLimit(QuotaKind.ITPM, 12_000, burst_s=burst_s + 4.0)),
    )
    gate = _gate(*limits)
    now, told = 0.0, dict[int, float]()
    taken: list[tuple[float, int]] = []
    for attempt, (step_s, body, waits, prompt_bytes) in enumerate(steps):
        now += step_s
        if waits and body in told:
            now = max(now, told[body])
        arrival = Arrived(
            attempt,
            prompt_bytes=prompt_bytes,
            max_tokens=10,
            fingerprint=partial(int, body),
            retry_count=int(body in told),
        )
        said = gate.explain(arrival, now)
        (answer,) = gate.handle(arrival, now)
        assert isinstance(answer, Admit | Yield)
        assert said.decision == answer._replace(quota=())
        told.pop(body, None)
        if isinstance(answer, Admit):
            taken.append((now, said.prompt_tokens))
        elif answer.retry:
            assert 0.1 <= answer.retry_after_s <= 60.0
            told[body] = now + answer.retry_after_s
    for first, (since, _) in enumerate(taken):
        tokens = 0
        for requests, (at, prompt_tokens) in enumerate(taken[first:], 1):
            tokens += prompt_tokens
            assert requests <= burst_s + (at - since) + 1e-6
            assert tokens <= 200.0 * (burst_s + 4.0 + at - since) + 1e-6
