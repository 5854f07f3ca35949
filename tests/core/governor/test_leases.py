"""Shares of limits that a cluster's replicas share: what one replica admits with them, and what it tells the others."""

from math import inf
from typing import Any

import pytest
from hypothesis import given, strategies as st

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import (
    AccountShare,
    Arrived,
    Draining,
    EngineDown,
    EngineSeen,
    EngineShare,
    FirstToken,
    LeaseGranted,
    OthersLine,
    QuotaShare,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
    TenantSettings,
)
from millgate.core.snapshot import PoolLine, SharedNumber
from millgate.core.words import QuotaKind, Reason
from millgate.wiring.governor import build_governor


def _grant(gate: Governor, now: float, until: float, streams: int, **more: Any) -> tuple[Any, ...]:
    return gate.handle(LeaseGranted(until, 4, (EngineShare("engine", streams),), **more), now)


def _use(gate: Governor, kind: str, now: float) -> SharedNumber:
    return next(each for each in gate.shared_use(now).numbers if each.kind == kind)


def _metered(kv_tokens: int, prefill_tokens: int) -> EngineSettings:
    return EngineSettings("engine", 16, kv_tokens, prefill_tokens, prior=steady_prior(2.0))


def test_a_replica_admits_no_more_than_its_share() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 3)
    decided = [ask(gate, number) for number in range(1, 6)]
    assert [type(each) for each in decided] == [Admit, Admit, Admit, Queue, Queue]
    assert gate.capacity() == (3, 3)


def test_a_larger_share_admits_what_waits_and_a_smaller_one_ends_nothing() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 2)
    for number in range(1, 7):
        ask(gate, number)
    assert [each.attempt for each in _grant(gate, 0.25, 2.25, 5)] == [3, 4, 5]
    assert _grant(gate, 0.5, 2.5, 1) == ()
    assert gate.capacity() == (5, 1)
    for number in range(1, 5):
        gate.handle(FirstToken(number), 0.6)
    assert _ended(gate, 1, 0.7) == []


def _ended(gate: Governor, attempt: int, now: float) -> list[Any]:
    return [each for each in gate.handle(Released(attempt), now) if isinstance(each, Admit)]


def test_from_its_end_on_a_lease_admits_nothing_and_requests_wait() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 4)
    assert isinstance(ask(gate, 1, 1.999), Admit)
    assert isinstance(ask(gate, 2, 2.0), Queue)
    assert gate.handle(Tick(), 2.5) == ()
    (admitted,) = _grant(gate, 3.0, 5.0, 4)
    assert admitted.attempt == 2


_CLOSED = LeaseGranted(inf, 4, closed=True)


def test_a_closed_replica_refuses_what_comes_at_once_and_admits_what_waited_when_it_has_a_lease() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 1)
    assert [type(ask(gate, number)) for number in (1, 2)] == [Admit, Queue]
    assert gate.handle(_CLOSED, 2.0) == ()
    refused = ask(gate, 3, 2.1)
    assert (refused.reason, refused.retry, refused.retry_after_s) == (Reason.NO_LEASE, True, 1.0)
    assert gate.handle(_CLOSED, 2.5) == ()
    (admitted,) = _grant(gate, 2.6, 4.6, 4)
    assert admitted.attempt == 2
    assert isinstance(ask(gate, 4, 2.7), Admit)


def test_what_waits_when_a_replica_closes_ends_by_its_own_deadline() -> None:
    gate = gate_of(LaneSettings("lane", deadline_s=10.0), streams=16)
    _grant(gate, 0.0, 2.0, 1)
    ask(gate, 1)
    ask(gate, 2, 1.0)
    gate.handle(_CLOSED, 2.0)
    wakes_at = gate.next_wake()
    assert wakes_at is not None
    assert 9.0 < wakes_at <= 11.0
    refused, ended = gate.handle(Tick(), wakes_at)
    assert isinstance(refused, Yield)
    assert (refused.attempt, refused.reason) == (2, Reason.TOO_LATE)
    assert ended.attempt == 2


@pytest.mark.parametrize("lane", [LaneSettings("lane"), LaneSettings("lane", max_queue=0)])
def test_a_replica_without_a_share_that_is_not_closed_never_says_that_it_has_no_lease(
    lane: LaneSettings,
) -> None:
    gate = gate_of(lane, streams=16)
    _grant(gate, 0.0, inf, 0)
    decided = [ask(gate, number) for number in range(1, 9)]
    assert not [each for each in decided if isinstance(each, Yield) and each.reason is Reason.NO_LEASE]
    _grant(gate, 0.0, inf, 16)
    assert isinstance(ask(gate, 9), Admit)


def test_a_closed_replica_says_what_no_other_replica_can_help_first_and_quotas_not_at_all() -> None:
    engine = EngineSettings("engine", 16, kv_tokens=1_000, prior=steady_prior(2.0))
    gate = gate_of(engine=engine, quotas=(_TPM,), tenants=(TenantSettings("a", max_inflight=1),))
    gate.handle(_CLOSED, 0.0)
    assert ask(gate, 1, tenant="a").reason is Reason.NO_LEASE
    assert ask(gate, 2, prompt_bytes=400_000).reason is Reason.TOO_LARGE
    gate.handle(EngineDown("engine"), 0.1)
    assert ask(gate, 3, 0.2).reason is Reason.NO_ENGINE


def test_what_a_closed_replica_refuses_has_no_appointment_and_keeps_its_age() -> None:
    gate = gate_of(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=16)
    gate.handle(_CLOSED, 0.0)
    for number in range(1, 9):
        assert ask(gate, number, fingerprint=lambda: 7).reason is Reason.NO_LEASE
    line = gate.shared_use(0.5).lines[0]
    assert (line.queued, line.work_s) == (0, 0.0)
    again = ask(gate, 9, 1.0, fingerprint=lambda: 7, retry_count=1)
    assert (again.reason, again.first_seen) == (Reason.NO_LEASE, 0.0)
    assert gate.snapshot(1.0).retries.budget_spent == 0, "it was told to come back"


def test_what_a_closed_replica_would_say_is_what_it_says() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 1)
    for number, now in enumerate((0.0, 0.5, 2.5, 3.0, 4.5), start=1):
        if now == 2.5:
            gate.handle(_CLOSED, 2.4)
        if now == 4.5:
            _grant(gate, 4.0, 6.0, 16)
        arrival = Arrived(number, prompt_bytes=400, max_tokens=100)
        explained = gate.explain(arrival, now).decision
        assert explained == gate.handle(arrival, now)[0]
        closed = isinstance(explained, Yield) and explained.reason is Reason.NO_LEASE
        assert closed is (now in {2.5, 3.0})


def test_a_replica_that_was_stopped_admits_nothing_on_wake_up_although_its_old_answer_comes_first() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 1)
    ask(gate, 1)
    assert isinstance(ask(gate, 2), Queue)
    assert _grant(gate, 7.0, 2.25, 8) == ()
    assert isinstance(ask(gate, 3, 7.1), Queue)


def test_a_reload_after_the_end_admits_nothing_and_a_new_engine_has_no_share() -> None:
    engines = [EngineSettings(name, 4, prior=steady_prior(2.0)) for name in ("engine", "other")]
    lane = LaneSettings("lane", deadline_s=60.0)
    gate = build_governor(Settings((lane,), (engines[0],)), 0.0)
    _grant(gate, 0.0, 2.0, 1)
    ask(gate, 1)
    ask(gate, 2)
    assert gate.reconfigure(Settings((lane,), tuple(engines)), 1.0) == ()
    assert gate.capacity() == (1, 1)
    gate.handle(Released(1), 1.5)
    assert gate.reconfigure(Settings((lane,), tuple(engines)), 2.5) == ()


def test_what_can_ever_run_is_judged_by_the_whole() -> None:
    gate = gate_of(engine=_metered(10_000, 2_000))
    _grant(gate, 0.0, 2.0, 4)
    gate.handle(LeaseGranted(2.0, 4, (EngineShare("engine", 4, 500, 100),)), 0.0)
    waits = ask(gate, 1, prompt_bytes=16_000, answers=8)
    assert isinstance(waits, Queue)
    number = _use(gate, "streams", 0.0)
    assert (number.used, number.wanted, number.floor) == (0, 8, 8) or number.floor == 8
    assert _use(gate, "prefill", 0.0).floor == 2_000
    share = EngineShare("engine", 8, 10_000, 2_000)
    (admitted,) = gate.handle(LeaseGranted(2.25, 4, (share,)), 0.25)
    assert isinstance(admitted, Admit)
    assert admitted.legs[0].streams == 8


def test_memory_and_prompts_have_shares_too() -> None:
    gate = gate_of(engine=_metered(10_000, 2_000))
    gate.handle(LeaseGranted(2.0, 4, (EngineShare("engine", 4, 10_000, 150),)), 0.0)
    assert isinstance(ask(gate, 1), Admit)
    assert isinstance(ask(gate, 2), Queue)
    gate = gate_of(engine=_metered(10_000, 2_000))
    gate.handle(LeaseGranted(2.0, 4, (EngineShare("engine", 4, 300, 2_000),)), 0.0)
    assert isinstance(ask(gate, 1), Admit)
    assert isinstance(ask(gate, 2), Queue)


def test_a_replica_wants_what_runs_and_what_waits_and_says_how_long_it_may_last() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 3)
    for number in range(1, 8):
        ask(gate, number)
    gate.handle(EngineSeen("engine", 0.4, running=9, waiting=1), 0.5)
    use = _use(gate, "streams", 0.6)
    assert use == SharedNumber(
        "streams", ("engine",), 16, 3, 7, 1, use.lingers_s, 10, use.seen_age_s, use.waits_s
    )
    assert abs(use.waits_s - 0.6) < 1e-9
    assert 2.0 < use.lingers_s < 6.0
    assert abs(use.seen_age_s - 0.2) < 1e-9
    line = gate.shared_use(0.6).lines[0]
    assert (line.pool, line.queued) == ("engine", 4)
    assert line.work_s > 0.0


def test_for_clients_that_were_told_to_come_back_one_stream_is_wanted() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=0)
    gate = gate_of(lane, streams=16)
    _grant(gate, 0.0, 2.0, 2)
    decided = [ask(gate, number) for number in range(1, 11)]
    assert sum(isinstance(each, Yield) for each in decided) == 8
    use = _use(gate, "streams", 0.1)
    assert (use.used, use.wanted, use.waits_s) == (2, 3, 0.0)
    line = gate.shared_use(0.1).lines[0]
    assert line.queued == 0
    assert line.work_s > 0.0, "all who are away stand in the line"


def test_a_hint_counts_the_line_of_all_replicas() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=0)

    def hint_s(*lines: OthersLine) -> float:
        gate = gate_of(lane, streams=16)
        _grant(gate, 0.0, 2.0, 4, lines=lines)
        for number in range(1, 5):
            assert isinstance(ask(gate, number), Admit)
        refused = ask(gate, 5)
        assert isinstance(refused, Yield)
        return refused.retry_after_s

    alone_s, behind_s = hint_s(OthersLine("other", 99, 99.0)), hint_s(OthersLine("engine", 0, 32.0))
    assert 0.9 < (behind_s - alone_s) / (32.0 / 16) < 1.1, "32 s of work on 16 streams"


def test_clients_that_come_to_other_replicas_are_not_believed_absent() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=0)
    gate = gate_of(lane, streams=16)
    _grant(gate, 0.0, 1e9, 2, lines=(OthersLine("engine", 0, 0.0, came=40.0, told=20.0),))
    for number in range(1, 21):
        ask(gate, number)
    gate.handle(Tick(), 100.0)
    (pool,) = gate._knowledge.engines.routes.pools
    assert pool.appointments.attendance.counts()[1] == 18.0, "as many have lapsed here"
    assert min(pool.appointments.shares(100.0)) == 1.0


def test_a_replica_that_drains_wants_nothing_more_than_runs() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 2)
    for number in range(1, 5):
        ask(gate, number)
    gate.handle(Draining(30.0), 0.5)
    use = _use(gate, "streams", 0.5)
    assert (use.used, use.wanted, use.floor) == (2, 2, 0.0)


def test_an_idle_replica_wants_nothing_so_that_others_have_all() -> None:
    gate = gate_of(streams=16)
    _grant(gate, 0.0, 2.0, 1)
    use = _use(gate, "streams", 0.0)
    assert (use.used, use.wanted, use.floor) == (0, 0, 0)
    assert use.lingers_s > 2.0, "what it starts before it is given up runs on"


_TPM = QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 60_000.0))
_SMALL = QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 6_000.0))


def _with_quota(*rules: QuotaRule) -> Governor:
    return gate_of(streams=16, quotas=rules or (_TPM,))


def _quota(now: float, until: float, rate_per_s: float, burst: float, replicas: int = 4) -> LeaseGranted:
    share = QuotaShare("tokens", rate_per_s, burst)
    return LeaseGranted(until, replicas, (EngineShare("engine", 16),), (share,))


def test_the_bucket_of_a_replica_that_joins_others_begins_empty_and_fills_at_its_share() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 2.0, 250.0, 15_000.0), 0.0)
    refused = ask(gate, 1)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.QUOTA
    assert refused.retry
    assert isinstance(ask(gate, 2, refused.retry_after_s, fingerprint=lambda: 1), Admit)


def test_the_bucket_of_a_lone_replica_begins_full() -> None:
    gate = _with_quota()
    gate.handle(LeaseGranted(2.0, 1, (EngineShare("engine", 16),)), 0.0)
    gate.handle(_quota(0.1, 2.1, 1_000.0, 60_000.0, replicas=1), 0.1)
    assert isinstance(ask(gate, 1, 0.2), Admit)


def test_a_quota_whose_lease_has_ended_is_refused_with_a_hint_that_is_worth_coming_back_for() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 2.0, 1_000.0, 60_000.0, replicas=1), 0.0)
    refused = ask(gate, 1, 2.0)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.QUOTA
    assert refused.retry
    assert refused.retry_after_s < 60.0


def test_a_request_larger_than_the_share_of_a_burst_makes_its_replica_want_more() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 30.0, 250.0, 300.0), 0.0)
    refused = ask(gate, 1, 20.0, prompt_bytes=4_000, max_tokens=100)
    assert refused.reason is Reason.QUOTA
    burst = _use(gate, "burst", 20.1)
    assert burst.floor > 900.0
    assert burst.whole == 60_000.0


def test_a_replica_wants_the_more_of_a_rate_the_emptier_its_bucket_is() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 30.0, 250.0, 15_000.0), 0.0)
    assert _use(gate, "rate", 0.0).wanted == 1_000.0
    gate.handle(Tick(), 30.0)
    assert _use(gate, "rate", 30.0).wanted == 1_000.0, "its lease has ended: it has nothing"
    gate.handle(_quota(30.0, 300.0, 250.0, 15_000.0), 30.0)
    half = _use(gate, "rate", 60.0).wanted
    assert 400.0 < half < 600.0
    assert _use(gate, "rate", 100.0).wanted == 0.0


def test_a_replica_whose_bucket_is_full_keeps_a_part_of_the_rate_and_what_it_has_saved_up() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 300.0, 250.0, 15_000.0), 0.0)
    use = _use(gate, "rate", 100.0)
    assert (use.wanted, use.floor > 0.0) == (0.0, True)
    gate.handle(_quota(100.0, 300.0, use.floor, 15_000.0), 100.0)
    assert [type(ask(gate, number, 100.0)) for number in range(1, 17)] == [Admit] * 16


def _refused(gate: Governor, numbers: range, now: float) -> list[float]:
    """Return when each of these is told to return."""
    answers = [ask(gate, number, now) for number in numbers]
    assert all(isinstance(each, Yield) and each.reason is Reason.QUOTA for each in answers)
    return [now + each.retry_after_s for each in answers]


def _promised(gate: Governor) -> PoolLine:
    return next(each for each in gate.shared_use(0.0).lines if each.pool == "quota/tokens")


def test_what_is_promised_here_is_the_least_that_a_replica_wants_of_a_rate() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 30.0, 250.0, 15_000.0), 0.0)
    before = _use(gate, "rate", 0.0).floor
    _refused(gate, range(1, 4), 0.0)
    promised = _promised(gate)
    assert before < _use(gate, "rate", 0.0).floor == promised.work_s < 1_000.0


def test_clients_of_a_quota_are_told_when_the_rate_of_all_replicas_has_enough_for_all_that_wait() -> None:
    gate = _with_quota()
    lease = _quota(0.0, 30.0, 50.0, 15_000.0)
    gate.handle(lease._replace(lines=(OthersLine("quota/tokens", 0, 4_000.0),)), 0.0)
    told = _refused(gate, range(1, 5), 0.0)
    needed = _promised(gate).work_s / 4.0
    # And a quarter of a second, for shares of a rate are a little less than the rate while they move.
    assert told == pytest.approx([0.25 + (4_000.0 + number * needed) / 1_000.0 for number in range(1, 5)])


def test_a_client_that_another_replica_told_to_come_now_needs_only_what_the_bucket_has() -> None:
    gate = _with_quota()
    gate.handle(_quota(0.0, 30.0, 250.0, 15_000.0), 0.0)
    told = _refused(gate, range(1, 11), 0.0)
    now = told[4]
    lease = _quota(now, 30.0, 250.0, 15_000.0)
    gate.handle(lease._replace(lines=(OthersLine("quota/tokens", 0, 1_000.0),)), now)
    assert isinstance(ask(gate, 20, now), Yield), "a newcomer waits for those that are due"
    assert isinstance(ask(gate, 21, now, first_seen=0.0, due_at=now, hint_s=now), Admit)


def test_a_newcomer_waits_for_as_many_as_are_due_though_those_that_were_told_here_come_to_other_replicas() -> (
    None
):
    gate = _with_quota()
    others = (OthersLine("quota/tokens", 0, 0.0, came=80.0, told=20.0),)
    gate.handle(_quota(0.0, 1e9, 250.0, 2_000.0)._replace(lines=others), 0.0)
    _refused(gate, range(1, 31), 0.0)
    gate.handle(Tick(), 100.0)
    numbers = iter(range(31, 1_000))
    while isinstance(ask(gate, next(numbers), 100.0), Admit):
        pass
    first = next(numbers)
    told = _refused(gate, range(first, first + 10), 100.0)

    assert isinstance(ask(gate, first + 20, told[8]), Yield)
    assert isinstance(ask(gate, first + 21, told[8], first_seen=100.0, due_at=told[8], hint_s=1.0), Admit)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.0, 1.0), st.floats(0.01, 2.0), st.booleans()), max_size=60
    )
)
def test_inv_6_over_a_cluster_that_divides_one_bucket_in_any_way(
    steps: list[tuple[int, float, float, bool]],
) -> None:
    """What four replicas take together is at most burst + rate x time, however shares move, and while replicas are silent."""
    limit = _SMALL.limit
    gates = [_with_quota(_SMALL) for _ in range(4)]
    now, taken, number = 0.0, 0.0, 0
    parts, ends = [0.25] * 4, [0.0] * 4
    for replica, wished, pause_s, answers in steps:
        now += pause_s
        # One replica gets what it wishes, or is not heard of; the others share the rest, and all of it once its lease is over.
        silent_part = parts[replica] if now < ends[replica] else 0.0
        part = wished if answers else silent_part
        parts = [part if each == replica else (1.0 - part) / 3.0 for each in range(4)]
        for each, gate in enumerate(gates):
            if answers or each != replica:
                ends[each] = now + 2.0
                rate_per_s, burst = limit.rate_per_s * parts[each], limit.burst * parts[each]
                gate.handle(_quota(now, ends[each], rate_per_s, burst), now)
        for gate in gates:
            number += 1
            arrival = Arrived(number, prompt_bytes=4_000, max_tokens=1)
            (decided,) = gate.handle(arrival, now)
            if isinstance(decided, Admit | Queue):
                taken += 1_001
        assert taken <= limit.burst + limit.rate_per_s * now + 1e-6


def test_an_account_runs_on_its_share_and_on_nothing_without_one() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 600.0),))
    gate = gate_of(engine=EngineSettings("engine", 16, account=account, prior=steady_prior(2.0)))
    engines = (EngineShare("engine", 16),)
    gate.handle(LeaseGranted(2.0, 4, engines), 0.0)
    ask(gate, 1)
    assert isinstance(ask(gate, 2), Queue)
    share = AccountShare("engine", (QuotaShare("rpm", 2.5, 150.0),))
    gate.handle(LeaseGranted(60.0, 4, engines, (), (share,)), 1.0)
    rate = _use(gate, "account_rate", 1.0)
    assert rate.names == ("engine", "rpm")
    assert rate.whole == 10.0
    admitted = [each for each in gate.handle(Tick(), 11.0) if isinstance(each, Admit)]
    assert len(admitted) == 1


def test_a_quota_with_owners_is_divided_evenly() -> None:
    rule = QuotaRule("each", QuotaLimit(QuotaKind.RPM, 8.0), each=("tenant",))
    gate = _with_quota(rule)
    gate.handle(LeaseGranted(60.0, 4, (EngineShare("engine", 16),)), 0.0)
    decided = [ask(gate, number, tenant="a") for number in range(1, 5)]
    assert [type(each) for each in decided] == [Admit, Admit, Yield, Yield]


def test_without_a_lease_nothing_is_shared_and_nothing_ends() -> None:
    gate = gate_of(streams=4)
    assert [type(ask(gate, number)) for number in range(1, 6)] == [Admit] * 4 + [Queue]
    assert gate.capacity() == (4, 4)
