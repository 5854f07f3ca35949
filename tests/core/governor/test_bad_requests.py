"""An engine's 4xx blames the request: its permit is free, and nothing is held against the engine."""

import pytest

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Ended, Queue, Yield
from millgate.core.events import Failed, Finished, Released
from millgate.core.settings import AccountSettings, EngineSettings, LaneSettings, QuotaLimit
from millgate.core.words import DeadlineFrom, FailureKind, Outcome, QuotaKind, Sent


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


def test_they_open_no_breaker_of_an_account() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 6000.0),))
    engine = EngineSettings("engine", 4, prior=steady_prior(2.0), account=account)
    gate = gate_of(engine=engine)
    for attempt in range(1, 31):
        assert isinstance(ask(gate, attempt, attempt), Admit)
        gate.handle(_declined(attempt), attempt + 0.1)


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
