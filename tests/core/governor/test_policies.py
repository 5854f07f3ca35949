"""Every policy, through the governor: quotas, accounts, budgets, lanes, windows, limits that move."""

import pytest

from core.governor.asking import ask as _ask, gate_of as _gate
from core.world import steady_prior
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineProgress,
    Failed,
    Finished,
    FirstToken,
    Growth,
    QuotaSeen,
    Released,
    Remaining,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    LimitSettings,
    QuotaLimit,
    QuotaRule,
    TenantSettings,
)
from millgate.core.words import DeadlineFrom, FailureKind, QuotaKind, Reason, Sent

_LANE = LaneSettings("lane", deadline_s=60.0)


def _finish(
    gate: Governor, attempt: int, now: float, output_tokens: int = 100, cached: int | None = None
) -> tuple[Decision, ...]:
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, 100, output_tokens, cached), now)
    return gate.handle(Released(attempt), now)


# ---- tenants


def test_a_large_max_tokens_is_not_too_large_for_a_quota_after_answers_of_a_few_words() -> None:
    """Each was as long as its bound of 1 to 10 tokens, so 32,768 were expected of a chat: `coming back is of no use`, for good."""
    gate = _gate(quotas=(QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 20_000)),))
    for number in range(40):
        tokens = (1, 5, 10)[number % 3]
        assert isinstance(_ask(gate, number, number, max_tokens=tokens), Admit)
        _finish(gate, number, number + 0.5, output_tokens=tokens)
    assert isinstance(_ask(gate, 1_000, 100.0, max_tokens=32_768), Admit)


def test_a_quota_refuses_with_the_time_to_the_next_token_and_counts_what_was_used() -> None:
    rule = QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 600), each=("tenant",))
    gate = _gate(quotas=(rule,))
    assert isinstance(_ask(gate, 1, tenant="a", max_tokens=200), Admit)
    second = _ask(gate, 2, tenant="a", max_tokens=300)
    assert isinstance(second, Yield), "300 of 600 are reserved, and 100 + 256 expected do not fit"
    assert (second.reason, second.retry) == (Reason.QUOTA, True)
    assert second.retry_after_s == pytest.approx(56 / 10.0)
    assert isinstance(_ask(gate, 3, tenant="b", max_tokens=300), Admit), "every tenant has its own"

    _finish(gate, 1, 1.0, output_tokens=10)
    assert isinstance(_ask(gate, 4, 1.0, tenant="a", max_tokens=300), Admit), "190 were never used"


@pytest.mark.parametrize(("counts", "left"), [(True, 500), (False, 580)])
def test_what_came_from_a_cache_is_charged_only_where_that_counts(counts: bool, left: float) -> None:
    rule = QuotaRule("input", QuotaLimit(QuotaKind.ITPM, 600, count_cached=counts), each=("tenant",))
    gate = _gate(quotas=(rule,))
    _ask(gate, 1, tenant="a")
    _finish(gate, 1, 0.0, cached=80)
    (state,) = _ask(gate, 2, tenant="a", prompt_bytes=4).quota

    assert state.remaining == pytest.approx(left - 1, abs=0.6)


@pytest.mark.parametrize(("said", "told"), [(None, None), (0, 0), (80, 80), (150, 100)])
def test_the_end_says_how_much_of_the_prompt_was_cached_as_far_as_the_engine_does(
    said: int | None, told: int | None
) -> None:
    gate = _gate()
    _ask(gate, 1)
    (ended,) = gate.handle(Finished(1, 100, 20, said), 2.0)

    assert isinstance(ended, Ended)
    assert ended.cached_tokens == told


def test_what_never_ran_gives_its_quota_back() -> None:
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 2))
    gate = _gate(streams=1, quotas=(rule,))
    _ask(gate, 1)
    assert isinstance(_ask(gate, 2), Queue)
    assert _ask(gate, 3).reason is Reason.QUOTA
    gate.handle(ClientGone(2), 0.1)

    assert isinstance(_ask(gate, 4, 0.2), Queue)


def test_a_refusal_out_of_the_queue_says_what_is_left_as_one_at_the_door_does() -> None:
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 6))
    gate = _gate(streams=1, quotas=(rule,))
    _ask(gate, 1)
    assert isinstance(_ask(gate, 2, time_allowed_s=8.0), Queue)
    (refused, _ended) = gate.handle(Tick(), 8.0)

    assert isinstance(refused, Yield)
    assert [state.remaining for state in refused.quota] == [pytest.approx(5.8, abs=0.01)]


def test_what_no_quota_can_ever_hold_is_too_large() -> None:
    gate = _gate(quotas=(QuotaRule("prompts", QuotaLimit(QuotaKind.ITPM, 50)),))
    refused = _ask(gate, 1)
    assert (refused.reason, refused.retry) == (Reason.TOO_LARGE, False)
    assert (refused.value, refused.bound) == (100, 50)
    _ask(gate, 2, prompt_bytes=40)
    assert _ask(gate, 3).bound == 50, "the whole bucket, not what is left of it"


def test_a_tenant_has_so_many_streams_and_no_more() -> None:
    gate = _gate(tenants=(TenantSettings("a", max_inflight=2),))
    decisions = [_ask(gate, attempt, tenant="a") for attempt in range(3)]
    assert [type(each) for each in decisions] == [Admit, Admit, Yield]
    assert decisions[2].reason is Reason.TENANT_LIMIT
    assert isinstance(_ask(gate, 10, tenant="b"), Admit)
    _finish(gate, 0, 1.0)
    assert isinstance(_ask(gate, 11, 1.0, tenant="a"), Admit)


def test_retries_that_nobody_asked_for_end_with_the_budget() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=1)
    _ask(gate, 0, 61.0)
    stormers = [_ask(gate, 1 + each, 61.0 + 0.01 * each, retry_count=1) for each in range(20)]
    reasons = [each.reason for each in stormers]

    assert reasons[0] is Reason.SATURATED
    assert reasons[-1] is Reason.RETRY_BUDGET
    assert not stormers[-1].retry
    assert _ask(gate, 50, 61.5, retry_count=0).reason is Reason.SATURATED, (
        "first attempts are nobody's retries"
    )


def test_who_came_too_often_is_served_all_the_same_once_the_engine_has_nothing_to_do() -> None:
    """A client without a label asks again every second: it hears nothing of hints, and the gate is idle in the end."""
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), streams=1)
    _ask(gate, 0)
    impatient = [_ask(gate, 1 + each, 0.2 * each, fingerprint=lambda: 1) for each in range(8)]
    assert impatient[-1].reason is Reason.RETRY_BUDGET

    _finish(gate, 0, 2.0)
    assert isinstance(_ask(gate, 20, 2.1, fingerprint=lambda: 1), Admit)
    assert _ask(gate, 21, 2.2, fingerprint=lambda: 2).reason is Reason.SATURATED


def test_waiting_tenants_take_turns_by_the_tokens_they_had() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=600.0, fair=True), streams=1)
    _ask(gate, 0, tenant="loud")
    for attempt in range(1, 5):
        _ask(gate, attempt, tenant="loud")
    _ask(gate, 5, tenant="quiet")
    admitted: list[int] = []
    running, now = 0, 0.0
    while len(admitted) < 5:
        now += 2.0
        running = next(each.attempt for each in _finish(gate, running, now) if isinstance(each, Admit))
        admitted.append(running)

    assert admitted.index(5) <= 1


# ---- lanes


def test_a_lane_under_its_share_goes_before_one_over_it() -> None:
    lanes = (
        LaneSettings("bulk", deadline_s=600.0, share=1.0, headroom=0),
        LaneSettings("chat", deadline_s=600.0, share=1.0, headroom=0),
    )
    gate = _gate(*lanes, streams=2)
    for attempt in range(6):
        _ask(gate, attempt, lane="bulk")
    _ask(gate, 10, lane="chat")
    admitted = [each.attempt for each in _finish(gate, 0, 2.0) if isinstance(each, Admit)]

    assert admitted == [10]


@pytest.mark.parametrize("prefill_tokens", [None, 16_384])
def test_what_waits_beside_the_headroom_of_others_is_told_when_a_stream_of_its_own_is_free(
    prefill_tokens: int | None,
) -> None:
    """With the meter of prompts eight that waited beside eight free streams were told that they run at once, for as long as they waited."""
    lanes = (
        LaneSettings("bulk", deadline_s=600.0, headroom=0),
        LaneSettings("chat", deadline_s=600.0, headroom=8),
    )
    engine = EngineSettings("engine", 24, prefill_tokens=prefill_tokens, prior=steady_prior(2.0))
    gate = _gate(*lanes, engine=engine)
    told = [_ask(gate, number, lane="bulk") for number in range(20)]
    assert [type(each) for each in told] == 16 * [Admit] + 4 * [Queue]
    assert all(each.expected_wait_s > 0.05 for each in told[16:])
    assert isinstance(_ask(gate, 20, lane="chat"), Admit)


def test_headroom_is_lent_to_nobody() -> None:
    lanes = (
        LaneSettings("bulk", deadline_s=600.0, headroom=0),
        LaneSettings("chat", deadline_s=600.0, headroom=2),
    )
    gate = _gate(*lanes, streams=4)
    bulk = [_ask(gate, attempt, lane="bulk") for attempt in range(4)]
    assert [type(each) for each in bulk] == [Admit, Admit, Queue, Queue]
    assert isinstance(_ask(gate, 10, lane="chat"), Admit)


def test_a_smaller_band_goes_first() -> None:
    lanes = (LaneSettings("low", deadline_s=600.0, band=1), LaneSettings("high", deadline_s=600.0, band=0))
    gate = _gate(*lanes, streams=1)
    for attempt in range(3):
        _ask(gate, attempt, lane="low")
    _ask(gate, 10, lane="high")

    assert [each.attempt for each in _finish(gate, 0, 2.0) if isinstance(each, Admit)] == [10]


def test_a_window_forms_a_batch_and_lets_it_go_together() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, window_s=0.5), streams=4)
    assert isinstance(_ask(gate, 1), Queue)
    assert isinstance(_ask(gate, 2, 0.2), Queue)
    wake = gate.next_wake()
    assert wake == pytest.approx(0.5)
    admitted = gate.handle(Tick(), 0.5)

    assert [each.attempt for each in admitted if isinstance(each, Admit)] == [1, 2]
    assert [each.window_s for each in admitted if isinstance(each, Admit)] == pytest.approx([0.5, 0.3])


def test_a_newcomer_of_another_lane_does_not_wait_for_a_batch_that_forms() -> None:
    """It was queued before an idle engine for as long as the window was shut."""
    batches = LaneSettings("batches", deadline_s=60.0, window_s=0.5)
    gate = _gate(batches, LaneSettings("lane", deadline_s=60.0), streams=4)
    assert isinstance(_ask(gate, 1, lane="batches"), Queue)

    assert isinstance(_ask(gate, 2, 0.1, lane="lane"), Admit)
    assert isinstance(_ask(gate, 3, 0.1, lane="batches"), Queue)


def test_only_the_wait_for_company_counts_as_the_windows() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, window_s=0.5), streams=2)
    _ask(gate, 1)
    _ask(gate, 2, 0.1)
    gate.handle(Tick(), 0.1)
    assert isinstance(_ask(gate, 3, 0.2), Queue), "both streams are out"
    admitted = [each for each in _finish(gate, 1, 2.2) if isinstance(each, Admit)]

    assert [(each.attempt, each.window_s, each.waited_s) for each in admitted] == [(3, 0.0, 2.0)]


def test_a_full_batch_does_not_wait_for_its_window() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, window_s=5.0), streams=2)
    assert isinstance(_ask(gate, 1), Queue)
    _ask(gate, 2, 0.1)
    admitted = gate.handle(Tick(), 0.1)

    assert {each.attempt for each in admitted if isinstance(each, Admit)} == {1, 2}


# ---- accounts


def _account(**limits: float) -> EngineSettings:
    settings = AccountSettings(tuple(QuotaLimit(QuotaKind(kind), amount) for kind, amount in limits.items()))
    return EngineSettings("provider", 100, account=settings, prior=steady_prior(2.0))


def test_work_waits_for_the_account_and_goes_when_it_has_room() -> None:
    gate = _gate(engine=_account(rpm=60))
    decisions = [_ask(gate, attempt) for attempt in range(60)]
    admitted = sum(isinstance(each, Admit) for each in decisions)
    assert 1 <= admitted < 60, "what the account has left is not known yet"
    assert all(isinstance(each, Queue | Yield) for each in decisions[admitted:])
    assert _admitted_by(gate, 20.0) == pytest.approx(20, abs=2), "then it goes as the minute refills"


def test_a_refusal_by_the_provider_empties_the_account_until_its_hint() -> None:
    gate = _gate(engine=_account(rpm=600))
    _ask(gate, 1)
    gate.handle(Failed(1, FailureKind.REFUSED, Sent.REQUEST, 5.0, over_limit=True), 0.5)
    gate.handle(Released(1), 0.5)

    assert isinstance(_ask(gate, 2, 1.0), Queue)
    assert _admitted_by(gate, 5.4) == 0
    assert _admitted_by(gate, 10.0) == 1


def test_what_an_account_can_never_carry_is_too_large() -> None:
    gate = _gate(engine=_account(tpm=150))
    refused = _ask(gate, 1, prompt_bytes=800, max_tokens=100)
    assert (refused.reason, refused.retry) == (Reason.TOO_LARGE, False)
    assert (refused.value, refused.bound) == (200, 150)


def test_headers_lower_what_may_be_sent() -> None:
    gate = _gate(engine=_account(rpm=600))
    _ask(gate, 1)
    gate.handle(QuotaSeen("provider", (Remaining(QuotaKind.RPM, 600, 0, 60.0),)), 0.5)

    assert isinstance(_ask(gate, 2, 0.5), Queue)


def test_repeated_failures_open_the_breaker_and_one_probe_closes_it() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=0), engine=_account(rpm=6000))
    for attempt in range(5):
        now = 70.0 * attempt
        assert isinstance(_ask(gate, attempt, now), Admit)
        gate.handle(Failed(attempt, FailureKind.TIMEOUT, Sent.REQUEST), now)
        gate.handle(Released(attempt), now)
    now = 70.0 * 4
    assert isinstance(_ask(gate, 10, now + 3.0), Yield)
    assert _breaker_is_open(gate, now + 3.0)
    probe, beside = _ask(gate, 11, now + 70.0), _ask(gate, 12, now + 70.0)
    assert (type(probe), type(beside)) == (Admit, Yield)
    _finish(gate, 11, now + 71.0)
    assert isinstance(_ask(gate, 13, now + 71.0), Admit)
    assert not _breaker_is_open(gate, now + 71.0)


def _breaker_is_open(gate: Governor, now: float) -> bool:
    (engine,) = gate.snapshot(now).engines
    assert engine.account is not None
    return engine.account.breaker_open


def _admitted_by(gate: Governor, until: float) -> int:
    """Wake the gate whenever it asks for it, and return how many it admits."""
    admitted = 0
    while (wake := gate.next_wake()) is not None and wake <= until:
        admitted += sum(isinstance(each, Admit) for each in gate.handle(Tick(), wake))
    return admitted


# ---- limits that move


def test_a_limit_follows_the_time_per_token_and_never_passes_the_cap() -> None:
    limit = LimitSettings("slo_gradient", tpot_slo_s=0.05, start=20, minimum=2)
    engine = EngineSettings("engine", 32, limit=limit, prior=steady_prior(2.0))
    gate = _gate(LaneSettings("lane", deadline_s=600.0, tpot_slo_s=0.05), engine=engine)
    for attempt in range(60):
        _ask(gate, attempt)
    running = list(range(20))
    for attempt in running:
        gate.handle(FirstToken(attempt), 0.1)
    for second in range(1, 20):
        grown = tuple(Growth(attempt, 10 * second) for attempt in running)
        gate.handle(EngineProgress("engine", grown), 0.1 + second)

    assert gate.snapshot(20.0).engines[0].limit < 20, "a token takes 0.1 s, twice what is promised"


# ---- room made by others, and room made by oneself


def test_where_everything_is_full_the_least_important_makes_room() -> None:
    lanes = (LaneSettings("high", deadline_s=600.0, band=0), LaneSettings("low", deadline_s=600.0, band=5))
    gate = _gate(*lanes, streams=1, max_queued=2)
    _ask(gate, 0, lane="low")
    for attempt in (1, 2):
        assert isinstance(_ask(gate, attempt, lane="low"), Queue)
    full = _ask(gate, 3, lane="low")
    assert (full.reason, full.value, full.bound) == (Reason.QUEUE_FULL, 2, 2)
    decisions = gate.handle(Arrived(4, lane="high", prompt_bytes=400, max_tokens=100), 0.0)

    assert isinstance(decisions[0], Queue)
    assert isinstance(decisions[1], Yield)
    assert (decisions[1].attempt, decisions[1].reason) == (2, Reason.DISPLACED)


@pytest.mark.parametrize("max_queue", [0, 1])
def test_where_everything_is_full_not_even_who_is_due_is_queued(max_queue: int) -> None:
    gate = _gate(LaneSettings("lane", deadline_s=600.0, max_queue=max_queue), streams=1, max_queued=1)
    bodies = [attempt for attempt in range(4) if isinstance(_ask(gate, attempt), Yield)][:2]
    answers = [_ask(gate, 10 + body, 60.0, fingerprint=lambda body=body: body) for body in bodies]

    assert [type(each) for each in answers] == ([Queue, Yield] if max_queue == 0 else [Yield, Yield])
    assert (answers[-1].reason, answers[-1].value, answers[-1].bound) == (Reason.QUEUE_FULL, 1, 1)


def test_a_lane_under_pressure_cuts_answers_before_it_refuses_them() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=0, clip_tokens=50)
    engine = EngineSettings("engine", 4, kv_tokens=1_000, prior=steady_prior(2.0))
    gate = _gate(lane, engine=engine)
    _ask(gate, 1, max_tokens=700)
    whole = _ask(gate, 2, max_tokens=300)
    cut = _ask(gate, 3, max_tokens=300, may_clip=True)

    assert isinstance(whole, Yield), "800 and 400 tokens do not fit into 1,000"
    assert isinstance(cut, Admit)
    assert cut.reshaped == (None, 50)
    assert cut.legs[0].kv_tokens == 150


def test_a_lane_under_pressure_may_demote() -> None:
    lanes = (
        LaneSettings("chat", deadline_s=4.0, demote="batch", headroom=0),
        LaneSettings("batch", deadline_s=600.0, deadline_from=DeadlineFrom.ATTEMPT, headroom=0),
    )
    gate = _gate(*lanes, streams=1)
    decisions = [_ask(gate, attempt, lane="chat") for attempt in range(5)]
    assert not any(isinstance(each, Yield) for each in decisions)
    running, now = 0, 0.0
    told: list[object] = []
    while len(told) < 4:
        now += 2.0
        admitted = next(each for each in _finish(gate, running, now) if isinstance(each, Admit))
        running = admitted.attempt
        told.append(admitted.reshaped)

    assert told[0] is None
    assert ("batch", None) in told


@pytest.mark.parametrize(("most", "reshaped"), [(None, ("batch", None)), (200, ("batch", 50))])
def test_a_demoted_request_is_cut_only_where_it_has_to_be(
    most: int | None, reshaped: tuple[str, int | None]
) -> None:
    """Whole it would be 400 tokens of the queue, and cut 150."""
    batch = LaneSettings("batch", deadline_s=600.0, max_queue_tokens=most, headroom=0)
    chat = LaneSettings("chat", deadline_s=4.0, max_queue=0, clip_tokens=50, demote="batch", headroom=0)
    gate = _gate(chat, batch, streams=1)
    _ask(gate, 1, lane="chat")
    assert isinstance(_ask(gate, 2, lane="chat", max_tokens=300, may_clip=True), Queue)
    admitted = next(each for each in _finish(gate, 1, 2.0) if isinstance(each, Admit))
    assert (admitted.attempt, admitted.reshaped) == (2, reshaped)


def test_nobody_is_kept_waiting_for_a_provider_that_cannot_be_reached() -> None:
    gate = _gate(engine=_account(rpm=6000))
    for attempt in (1, 2):
        now = 10.0 * attempt
        assert isinstance(_ask(gate, attempt, now), Admit)
        gate.handle(Failed(attempt, FailureKind.CONNECT, Sent.NONE), now)
        gate.handle(Released(attempt), now)
    refused = _ask(gate, 3, 20.1)

    assert isinstance(refused, Yield)
    assert refused.reason is Reason.NO_ENGINE
    trial = _ask(gate, 4, 30.0)
    assert isinstance(trial, Admit)
    _finish(gate, 4, 31.0)
    assert isinstance(_ask(gate, 5, 31.0), Admit)
