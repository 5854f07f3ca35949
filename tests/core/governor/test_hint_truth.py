"""Hints are judged by what became of those who were back when told, however they were recognised."""

from typing import Any

import pytest

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, EngineDown, EngineUp, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import (
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
    TenantSettings,
)
from millgate.core.words import QuotaKind, Reason
from millgate.wiring.governor import build_governor


class Gate:
    """One stream whose answers take 2 s, and nobody is queued but who is back when told, unless there is a queue."""

    def __init__(self, max_queue: int = 0) -> None:
        lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0, max_queue=max_queue)
        engine = EngineSettings("engine", 1, prior=steady_prior(2.0))
        self.core: Governor = build_governor(Settings((lane,), (engine,)), 0.0)

    def ask(self, attempt: int, now: float, body: int = 7, **more: Any) -> Any:
        arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: body, **more)
        return self.core.handle(arrival, now)[0]

    def finish(self, attempt: int, now: float) -> list[Admit]:
        """End an answer and return who is let in for it."""
        self.core.handle(FirstToken(attempt), now)
        self.core.handle(Finished(attempt, 100, 100), now)
        return [each for each in self.core.handle(Released(attempt), now) if isinstance(each, Admit)]

    def refused(self) -> float:
        """Fill the stream, be refused at 0 and return the hint."""
        self.ask(1, 0.0, body=1)
        refusal = self.ask(2, 0.0)
        assert isinstance(refusal, Yield)
        assert refusal.retry
        return refusal.retry_after_s

    @property
    def judged(self) -> tuple[int, int]:
        """Hints kept and broken."""
        (lane,) = self.core.snapshot(self.core.next_wake() or 0.0).lanes
        return lane.hints_kept, lane.hints_broken


def test_who_is_back_when_told_without_a_ticket_is_admitted_and_its_hint_was_true() -> None:
    gate = Gate()
    hint_s = gate.refused()
    gate.finish(1, hint_s - 0.1)
    admit = gate.ask(3, hint_s)

    assert isinstance(admit, Admit)
    assert admit.due_at == pytest.approx(hint_s)
    assert gate.judged == (1, 0)


def test_who_is_queued_for_long_after_its_hint_was_promised_too_much() -> None:
    gate = Gate()
    hint_s = gate.refused()
    gate.ask(3, hint_s)
    late_s = max(0.5, 0.2 * hint_s) + 0.05
    (admit,) = gate.finish(1, hint_s + late_s)

    assert admit.attempt == 3
    assert gate.judged == (0, 1)


def test_who_is_refused_again_though_back_when_told_was_promised_too_much() -> None:
    gate = Gate()
    hint_s = gate.refused()
    gate.ask(3, hint_s)
    decisions = gate.core.handle(Tick(), hint_s + 10.0)

    assert isinstance(decisions[0], Yield)
    assert gate.judged == (0, 1)


@pytest.mark.parametrize("back_share", [0.2, 4.0])
def test_who_is_not_back_when_told_says_nothing_about_its_hint(back_share: float) -> None:
    gate = Gate()
    hint_s = gate.refused()
    gate.finish(1, 0.1 * hint_s)
    admit = gate.ask(3, back_share * hint_s, retry_count=1)

    assert isinstance(admit, Admit)
    assert admit.due_at == pytest.approx(hint_s)
    assert gate.judged == (0, 0)


def test_who_was_told_nothing_has_nothing_to_keep_to() -> None:
    gate = Gate()
    admit = gate.ask(1, 0.0)

    assert admit.due_at is None
    assert gate.judged == (0, 0)


@pytest.mark.parametrize(("late_s", "judged"), [(1.9, (1, 0)), (2.1, (0, 1))])
def test_a_ticket_says_how_long_its_hint_was(late_s: float, judged: tuple[int, int]) -> None:
    """A fifth of ten seconds is longer than half a second."""
    gate = Gate(max_queue=5)
    gate.ask(1, 19.0, body=1)
    gate.ask(2, 20.0, body=2, first_seen=10.0, due_at=20.0, hint_s=10.0)
    gate.finish(1, 20.0 + late_s)

    assert gate.judged == judged


def test_explaining_judges_nobody() -> None:
    gate = Gate()
    hint_s = gate.refused()
    gate.finish(1, hint_s - 0.1)
    arrival = Arrived(3, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
    said = gate.core.explain(arrival, hint_s)

    assert gate.judged == (0, 0)
    assert said.decision == gate.core.handle(arrival, hint_s)[0]
    assert gate.judged == (1, 0)


def test_users_who_come_back_while_the_only_engine_restarts_were_promised_nothing_and_teach_no_longer_waits() -> (
    None
):
    """Each of them counted as a broken promise, and for minutes after a restart of 20 s all waits that were told were doubled."""
    gate = Gate()
    (pool,) = gate.core._knowledge.engines.routes.pools
    told_s = gate.refused()
    gate.finish(1, 1.0)
    gate.core.handle(EngineDown("engine"), 1.0)
    assert gate.ask(3, told_s).reason is Reason.NO_ENGINE
    assert gate.judged == (0, 1), "an engine that goes down breaks what was promised before"

    hint_s = gate.ask(4, 3.0, body=9).retry_after_s
    again = gate.ask(5, 3.0 + hint_s, body=9, retry_count=1)
    assert again.reason is Reason.NO_ENGINE
    back_at = 3.0 + hint_s + again.retry_after_s
    gate.core.handle(EngineUp("engine"), back_at - 1.0)
    gate.ask(6, back_at - 0.5, body=1)
    assert isinstance(gate.ask(7, back_at, body=9, retry_count=2), Yield)

    assert gate.judged == (0, 1)
    assert pool.overtaking.share == 0.0


def _quota_gate(max_inflight: int | None = None, streams: int = 4, **lane: Any) -> Governor:
    """Return a gate with a quota of a request a second, or one with a limit of running requests."""
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 60, burst_s=1.0))
    tenants = () if max_inflight is None else (TenantSettings("", max_inflight=max_inflight),)
    gate = gate_of(
        LaneSettings("lane", deadline_s=60.0, **lane),
        streams=streams,
        quotas=(rule,) if max_inflight is None else (),
        tenants=tenants,
    )
    assert isinstance(ask(gate, 0), Admit)
    return gate


def _judged(gate: Governor, now: float) -> tuple[int, int]:
    (lane,) = gate.snapshot(now).lanes
    return lane.hints_kept, lane.hints_broken


def test_a_hint_of_a_quota_is_judged_and_teaches_nothing_of_the_line_of_engines() -> None:
    gate = _quota_gate()
    (pool,) = gate._knowledge.engines.routes.pools
    pool.overtaking.share = 0.5
    told = [ask(gate, number) for number in (1, 2)]
    assert [each.retry_after_s for each in told] == pytest.approx([1.0, 2.0])
    back = ask(gate, 3, 1.0, fingerprint=lambda: 1, retry_count=1)

    assert isinstance(back, Admit)
    assert back.due_at == pytest.approx(1.0)
    assert _judged(gate, 1.0) == (1, 0)
    # The bucket is taken from by another gate's clients, as it seems: what was promised is not there.
    for _, bucket in gate._knowledge.allowances.ledger.shared():
        bucket.take(1.0, 1.5)
    assert isinstance(ask(gate, 4, 2.0, fingerprint=lambda: 2, retry_count=1), Yield)
    assert _judged(gate, 2.0) == (1, 1)
    assert pool.overtaking.share == 0.5


def test_a_quotas_hint_is_broken_where_an_engine_lets_its_client_wait() -> None:
    gate = _quota_gate(streams=1)
    assert ask(gate, 1).retry_after_s == pytest.approx(1.0)
    assert isinstance(ask(gate, 2, 1.0, fingerprint=lambda: 1, retry_count=1), Queue)
    assert _judged(gate, 1.0) == (0, 0)
    for event in (FirstToken(0), Finished(0, 100, 100)):
        gate.handle(event, 2.0)
    (admit,) = gate.handle(Released(0), 2.0)

    assert isinstance(admit, Admit)
    assert _judged(gate, 2.0) == (0, 1)


def test_a_return_that_a_quota_did_not_ask_for_is_not_judged() -> None:
    for back_at in (0.3, 2.6):
        gate = _quota_gate()
        ask(gate, 1)
        ask(gate, 2, back_at, fingerprint=lambda: 1, retry_count=1)
        assert _judged(gate, back_at) == (0, 0)


def test_the_limit_of_running_requests_promises_a_place_and_is_judged() -> None:
    gate = _quota_gate(max_inflight=1)
    refused = ask(gate, 1)
    assert (refused.reason, refused.retry) == (Reason.TENANT_LIMIT, True)
    back_at = refused.retry_after_s
    assert isinstance(ask(gate, 2, back_at, fingerprint=lambda: 1, retry_count=1), Queue)
    assert _judged(gate, back_at) == (0, 0)
    gate.handle(Tick(), back_at + 1.1)

    assert _judged(gate, back_at + 1.1) == (0, 1)
