"""Observe mode, through the governor: everything runs as it came, and what a protecting gate would have refused is told."""

from dataclasses import replace
from math import inf

from core.governor.asking import ask as _ask, gate_of as _gate
from core.world import steady_prior
from millgate.core.decisions import Admit, Yield
from millgate.core.events import Finished, LeaseGranted, Released
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


def test_observe_mode_lets_everything_run_and_says_what_it_would_have_done() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=3.0), streams=1, observe=True)
    decisions = [_ask(gate, attempt) for attempt in range(6)]

    assert all(isinstance(each, Admit) for each in decisions)
    assert decisions[0].would is None
    assert decisions[-1].would is Reason.TOO_LATE
    assert gate.snapshot(0.0).engines[0].running == 6


def test_observe_mode_sends_a_prompt_to_an_engine_that_can_hold_it() -> None:
    """The other one, which is less busy, would have refused it."""
    small = EngineSettings("small", 4, 8_000, prior=steady_prior(2.0))
    engines = (small, replace(small, name="large", kv_tokens=100_000))
    gate = build_governor(Settings((LaneSettings("lane", deadline_s=60.0),), engines, observe=True), 0.0)
    asked = [_ask(gate, number, prompt_bytes=4 * 60_000) for number in range(3)]

    assert [each.legs[0].engine for each in asked] == ["large"] * 3


def test_observe_mode_keeps_the_hard_cap_where_it_is_asked_to() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=3.0, max_queue=0), streams=1, observe=True, hard_cap=True)
    assert isinstance(_ask(gate, 1), Admit)
    assert isinstance(_ask(gate, 2), Yield)


def test_observe_mode_lets_run_what_a_closed_replica_would_have_refused_but_for_a_hard_cap() -> None:
    observing, capped = _gate(observe=True), _gate(observe=True, hard_cap=True)
    for gate in (observing, capped):
        gate.handle(LeaseGranted(inf, 4, closed=True), 0.0)
    assert _ask(observing, 1).would is Reason.NO_LEASE
    assert _ask(capped, 1).reason is Reason.NO_LEASE


def test_observe_mode_owes_no_quota_for_what_a_protecting_gate_would_have_refused() -> None:
    """Observed, no client returns: so none is told a time that others would stand behind."""
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 60, burst_s=2.0))
    observing = _gate(streams=100, observe=True, quotas=(rule,))
    protecting = _gate(streams=100, quotas=(rule,))
    would = [_ask(observing, number, 0.5 * number, fingerprint=None).would for number in range(40)]
    does = [_ask(protecting, number, 0.5 * number, fingerprint=None) for number in range(40)]

    assert would == [each.reason if isinstance(each, Yield) else None for each in does]
    assert would.count(Reason.QUOTA) == 19, "two at first and one a second pass"


def test_observe_mode_charges_no_retry_that_a_protecting_gate_would_have_refused() -> None:
    gate = _gate(streams=1, observe=True)
    would = [_ask(gate, number, 61.0, retry_count=1).would for number in range(20)]
    assert Reason.RETRY_BUDGET in would
    assert gate.snapshot(61.0).retries.budget_spent == would.count(None)


def test_observe_mode_changes_no_answer() -> None:
    lanes = (
        LaneSettings("chat", deadline_s=4.0, max_queue=0, clip_tokens=50, demote="batch"),
        LaneSettings("batch", deadline_s=600.0),
    )
    gate = _gate(*lanes, streams=1, observe=True)
    decisions = [_ask(gate, attempt, lane="chat", max_tokens=300, may_clip=True) for attempt in range(4)]

    assert [each.reshaped for each in decisions] == [None] * 4
    assert [each.would for each in decisions] == [None] * 4, (
        "protecting, it would have queued them in the other lane"
    )
    assert gate.snapshot(0.0).lanes[0].admitted == 4


def test_observe_mode_counts_a_tenants_streams_as_a_protecting_gate_would() -> None:
    tenants = (TenantSettings("ann", max_inflight=2),)
    gates = [_gate(streams=100, observe=observe, tenants=tenants) for observe in (True, False)]
    would: list[list[Reason | None]] = [[], []]
    for second in range(12):
        for gate, said in zip(gates, would, strict=True):
            decision = _ask(gate, second, float(second), tenant="ann")
            said.append(decision.reason if isinstance(decision, Yield) else decision.would)
            if second >= 3:
                for event in (Finished(second - 3, 100, 100), Released(second - 3)):
                    gate.handle(event, second + 0.5)

    assert would[0] == would[1]
    assert Reason.TENANT_LIMIT in would[0]
    assert gates[0].snapshot(12.0).engines[0].running > gates[1].snapshot(12.0).engines[0].running
