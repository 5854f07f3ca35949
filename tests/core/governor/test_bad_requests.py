"""An engine's 4xx blames the request: its permit is free, and nothing is held against the engine."""

from collections.abc import Callable

import pytest

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Ended, Queue, Yield
from millgate.core.events import Failed, Finished, Released
from millgate.core.governor import Governor
from millgate.core.measure import OUTLIER_RATIO
from millgate.core.settings import AccountSettings, EngineSettings, LaneSettings, QuotaLimit, Settings
from millgate.core.words import DeadlineFrom, FailureKind, Outcome, QuotaKind, Sent
from millgate.wiring.governor import build_governor


def _declined(attempt: int) -> Failed:
    return Failed(attempt, FailureKind.STATUS, Sent.REQUEST, blames_request=True)


def test_a_request_at_fault_has_its_own_outcome_and_blames_no_engine() -> None:
    gate = gate_of()
    ask(gate, 1)
    (ended,) = gate.handle(_declined(1), 0.1)

    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.cause) == (Outcome.BAD_REQUEST, None)
    lane = gate.snapshot(0.1).lanes[0]
    assert dict(lane.outcomes) == {Outcome.BAD_REQUEST: 1}
    assert not any(dict(lane.failures).values())


def test_its_permit_goes_to_the_next_in_the_same_breath_and_its_release_says_nothing_new() -> None:
    gate = gate_of(streams=1)
    ask(gate, 1)
    ask(gate, 2)
    ended, admitted = gate.handle(_declined(1), 0.1)

    assert isinstance(ended, Ended)
    assert isinstance(admitted, Admit)
    assert admitted.attempt == 2
    assert gate.handle(Released(1), 0.1) == ()
    assert gate.snapshot(0.1).lanes[0].running == 1


def test_a_thousand_of_them_burn_no_objective() -> None:
    gate = gate_of(LaneSettings("lane", deadline_s=60.0))
    ask(gate, 0)
    gate.handle(Finished(0, 100, 10), 1.0)
    gate.handle(Released(0), 1.0)
    before = gate.snapshot(1.0).lanes[0].slo
    for attempt in range(1, 1001):
        ask(gate, attempt, 1.0)
        gate.handle(_declined(attempt), 1.0)

    assert gate.snapshot(1.0).lanes[0].slo == before


def test_their_short_stay_teaches_no_times() -> None:
    taught, untaught = gate_of(streams=1), gate_of(streams=1)
    for attempt in range(1, 101):
        ask(taught, attempt, attempt)
        taught.handle(_declined(attempt), attempt + 0.001)
    for gate in (taught, untaught):
        ask(gate, 200, 200.0)
    hold, expected = ask(taught, 201, 200.0), ask(untaught, 201, 200.0)

    assert hold == expected
    engines = [gate.snapshot(200.0).engines[0] for gate in (taught, untaught)]
    assert engines[0].drain_per_s == pytest.approx(engines[1].drain_per_s, rel=0.02)


def test_what_they_asked_for_is_not_taken_for_work_that_others_wait_behind() -> None:
    """Three mistakes of one client, refused by the engine at once, made every wait of the others a thousand times as long."""
    gate = gate_of(engine=EngineSettings("engine", 4, kv_tokens=30_000, prior=steady_prior(2.0)))
    for attempt in range(1, 61):
        asked = 20 + attempt % 60
        ask(gate, attempt, attempt, max_tokens=asked)
        gate.handle(Finished(attempt, 100, asked), attempt + 0.5)
        gate.handle(Released(attempt), attempt + 0.5)
    before = gate.snapshot(70.0).engines[0]
    for attempt in range(101, 104):
        ask(gate, attempt, 70.0, max_tokens=9_000_000)
        gate.handle(_declined(attempt), 70.005)

    after = gate.snapshot(70.1).engines[0]
    assert after.expected_service_s < OUTLIER_RATIO * before.expected_service_s
    assert after.drain_per_s > before.drain_per_s / OUTLIER_RATIO


def _account(*, own_key: bool = False) -> Governor:
    limits = AccountSettings((QuotaLimit(QuotaKind.RPM, 6000.0),))
    return gate_of(
        engine=EngineSettings("engine", 4, prior=steady_prior(2.0), account=limits, own_key=own_key)
    )


def _send(gate: Governor, attempt: int, now: float, event: Failed | Finished) -> Ended:
    """Let one request be sent, and answered a tenth of a second later."""
    assert isinstance(ask(gate, attempt, now), Admit)
    ended = gate.handle(event, now + 0.1)[0]
    gate.handle(Released(attempt), now + 0.1)
    assert isinstance(ended, Ended)
    return ended


def _is_open(gate: Governor, now: float) -> bool:
    account = gate.snapshot(now).engines[0].account
    assert account is not None
    return account.breaker_open


def _locked_out(attempt: int) -> Failed:
    return Failed(attempt, FailureKind.STATUS, Sent.REQUEST, blames_key=True)


def _unknown(attempt: int) -> Failed:
    return Failed(attempt, FailureKind.STATUS, Sent.REQUEST, blames_name=True)


def _broken(attempt: int) -> Failed:
    return Failed(attempt, FailureKind.STATUS, Sent.REQUEST)


@pytest.mark.parametrize("refused", [_declined, _locked_out, _unknown])
def test_they_open_no_breaker_of_an_account(refused: Callable[[int], Failed]) -> None:
    gate = _account()
    for attempt in range(1, 31):
        assert _send(gate, attempt, attempt, refused(attempt)).outcome is Outcome.BAD_REQUEST
        assert not _is_open(gate, attempt + 0.2)


@pytest.mark.parametrize(("refused", "opens"), [(_locked_out, True), (_unknown, False)])
def test_a_refused_key_that_is_the_gates_own_opens_the_breaker(
    refused: Callable[[int], Failed], opens: bool
) -> None:
    gate = _account(own_key=True)
    for attempt in range(1, 6):
        _send(gate, attempt, attempt, refused(attempt))

    assert _is_open(gate, 5.2) is opens


@pytest.mark.parametrize("refused", [_declined, _locked_out, _unknown])
def test_they_hide_no_row_of_failures(refused: Callable[[int], Failed]) -> None:
    gate = _account()
    for number in range(5):
        assert not _is_open(gate, number)
        _send(gate, 2 * number + 1, number, _broken(2 * number + 1))
        if number < 4:
            _send(gate, 2 * number + 2, number + 0.5, refused(2 * number + 2))

    assert _is_open(gate, 4.2)


@pytest.mark.parametrize("refused", [_declined, _locked_out, _unknown])
def test_a_trial_that_is_one_of_them_leaves_the_next_request_to_try(refused: Callable[[int], Failed]) -> None:
    """The breaker opened at 4.1 s for 5 s: it neither closes for a wrong key nor stays open longer."""
    gate = _account()
    for number in range(5):
        _send(gate, number, number, _broken(number))
    assert isinstance(ask(gate, 10, 9.0), Yield)
    for number in range(20):
        now = 9.2 + 0.2 * number
        _send(gate, 20 + number, now, refused(20 + number))
        assert _is_open(gate, now + 0.1)

    _send(gate, 50, 13.4, Finished(50, 100, 10))
    assert not _is_open(gate, 13.6)


def test_an_account_without_credit_pauses_nothing() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 6000.0),))
    engine = EngineSettings("engine", 4, prior=steady_prior(2.0), account=account)
    gate = gate_of(engine=engine)
    for attempt in range(1, 11):
        assert isinstance(ask(gate, attempt, 0.0), Admit)
        ended = gate.handle(Failed(attempt, FailureKind.NO_CREDIT, Sent.REQUEST), 0.0)[0]
        assert isinstance(ended, Ended)
        assert (ended.outcome, ended.cause) == (Outcome.ENGINE_FAILED, FailureKind.NO_CREDIT)
        gate.handle(Released(attempt), 0.0)


def test_an_account_of_the_gates_own_key_without_credit_takes_no_work_from_one_that_has_credit() -> None:
    """Its refusals came at once, so it was always the idlest: all requests went there and were refused."""
    spent, paid = (
        EngineSettings(
            name,
            8,
            prior=steady_prior(2.0),
            account=AccountSettings((QuotaLimit(QuotaKind.RPM, 6000.0),)),
            own_key=True,
        )
        for name in ("spent", "paid")
    )
    gate = build_governor(Settings((LaneSettings("lane", deadline_s=60.0),), (spent, paid)), 0.0)
    refused = 0
    for attempt in range(1, 101):
        now = 0.05 * attempt
        decision = ask(gate, attempt, now)
        assert isinstance(decision, Admit)
        if decision.legs[0].engine == "spent":
            refused += 1
            gate.handle(Failed(attempt, FailureKind.NO_CREDIT, Sent.REQUEST), now + 0.001)
        else:
            gate.handle(Finished(attempt, 100, 10), now + 0.001)
        gate.handle(Released(attempt), now + 0.001)

    assert refused <= 6


@pytest.mark.parametrize("asked_at", [1.0, 20.0, 45.0])
def test_after_a_long_429_clients_whose_deadline_begins_anew_are_asked_back(asked_at: float) -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 600.0),))
    engine = EngineSettings("engine", 4, prior=steady_prior(2.0), account=account)
    lane = LaneSettings("lane", deadline_s=10.0, deadline_from=DeadlineFrom.ATTEMPT)
    gate = gate_of(lane, engine=engine)
    ask(gate, 1)
    gate.handle(Failed(1, FailureKind.REFUSED, Sent.REQUEST, 90.0, over_limit=True), 0.5)
    gate.handle(Released(1), 0.5)

    refused = ask(gate, 2, asked_at)
    assert refused.retry
    assert refused.retry_after_s <= 60.0


def test_after_a_long_429_a_client_of_the_default_lane_is_asked_back_until_it_is_served() -> None:
    """Its deadline is over long before the account opens: it begins anew at each return, and none is its last."""
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 600.0),))
    engine = EngineSettings("engine", 4, prior=steady_prior(2.0), account=account)
    gate = gate_of(LaneSettings("lane", deadline_s=10.0), engine=engine)
    ask(gate, 1)
    gate.handle(Failed(1, FailureKind.REFUSED, Sent.REQUEST, 90.0, over_limit=True), 0.5)
    gate.handle(Released(1), 0.5)

    at, answer = 1.0, ask(gate, 2, 1.0)
    for attempt in range(3, 6):
        assert isinstance(answer, Yield)
        assert answer.retry
        assert 10.0 < answer.retry_after_s <= 60.0
        at += answer.retry_after_s
        answer = ask(gate, attempt, at, fingerprint=lambda: 2, retry_count=1)
        if not isinstance(answer, Yield):
            break
    assert isinstance(answer, Admit | Queue)
    assert at < 90.5 + 60.0


def test_a_busy_account_that_is_open_asks_no_client_back_after_its_deadline() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 60.0),))
    engine = EngineSettings("engine", 100, prior=steady_prior(2.0), account=account)
    gate = gate_of(LaneSettings("lane", deadline_s=10.0), engine=engine)
    refused = [each for each in (ask(gate, number) for number in range(200)) if isinstance(each, Yield)]
    assert not refused[-1].retry
