"""The cap of a tenant's streams over replicas: clients that were told to return come to whichever they like."""

from typing import Any

import pytest

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import EngineShare, Finished, LeaseGranted, OthersLine, Released, TenantShare, Tick
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings, TenantSettings
from millgate.core.snapshot import PoolLine
from millgate.core.words import Reason

_CAP, _HERE, _ANSWER_S = 8, 2, 2.0


def _gate(*tenants: str) -> Governor:
    """Return a replica with two of the eight streams of each tenant, whose answers take 2 s: all eight end four a second."""
    caps = tuple(TenantSettings(name, max_inflight=_CAP) for name in tenants or ("ann",))
    return gate_of(LaneSettings("lane", deadline_s=60.0), streams=64, tenants=caps, retry_budget=False)


def _granted(gate: Governor, now: float, *lines: OthersLine, streams: int = _HERE) -> tuple[Any, ...]:
    shares = tuple(TenantShare(name, streams) for name in ("ann", "bob"))
    return gate.handle(LeaseGranted(1e9, 4, (EngineShare("engine", 64),), (), (), lines, shares), now)


def _full(gate: Governor, tenant: str = "ann", first: int = 1) -> None:
    for number in range(first, first + _HERE):
        assert isinstance(ask(gate, number, tenant=tenant), Admit)


def _hint_s(gate: Governor, attempt: int, now: float = 0.0, tenant: str = "ann") -> float:
    refused = ask(gate, attempt, now, tenant=tenant)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TENANT_LIMIT
    return refused.retry_after_s


def _line(gate: Governor, name: str, now: float) -> PoolLine:
    return next(each for each in gate.shared_use(now).lines if each.pool == name)


def test_a_hint_counts_what_other_replicas_have_promised_of_the_tenants_streams() -> None:
    alone, busy = _gate(), _gate()
    _granted(alone, 0.0, OthersLine("tenant/ann", 6, 0.0))
    _granted(busy, 0.0, OthersLine("tenant/ann", 6, 40.0))
    _full(alone)
    _full(busy)

    added_s = _hint_s(busy, 9) - _hint_s(alone, 9)
    assert added_s == pytest.approx(40.0 * _ANSWER_S / _CAP, rel=0.2)


def test_what_is_promised_of_a_tenants_streams_and_who_is_held_is_told_to_the_others() -> None:
    gate = _gate()
    _granted(gate, 0.0, OthersLine("tenant/ann", 6, 0.0))
    _full(gate)
    told = [_hint_s(gate, number) for number in range(11, 14)]
    assert _line(gate, "tenant/ann", 0.0)[1:3] == (_HERE, 3.0)

    assert isinstance(ask(gate, 21, told[0], first_seen=0.0, fingerprint=lambda: 11, tenant="ann"), Queue)
    assert _line(gate, "tenant/ann", told[0])[1:3] == (_HERE, 3.0), "one is held, two are to come"


def test_a_client_that_another_replica_told_is_held_for_the_next_stream_of_its_tenant() -> None:
    gate = _gate()
    _granted(gate, 0.0, OthersLine("tenant/ann", 6, 0.0))
    _full(gate)
    back = ask(gate, 9, 10.0, tenant="ann", first_seen=0.0, due_at=10.0, hint_s=10.0)
    assert isinstance(back, Queue)
    held = next(each for each in gate.shared_use(11.0).numbers if each.kind == "tenant")
    assert (held.used, held.wanted, held.waits_s) == (_HERE, _HERE + 1, 1.0)

    gate.handle(Finished(1, 100, 100), 11.0)
    admitted = [each for each in gate.handle(Released(1), 11.0) if isinstance(each, Admit)]
    assert [each.attempt for each in admitted] == [9]


def test_a_larger_share_lets_in_those_that_are_held() -> None:
    gate = _gate()
    _granted(gate, 0.0, OthersLine("tenant/ann", 6, 0.0))
    _full(gate)
    ask(gate, 9, 10.0, tenant="ann", first_seen=0.0, due_at=10.0, hint_s=10.0)
    admitted = _granted(gate, 10.5, OthersLine("tenant/ann", 5, 0.0), streams=_HERE + 1)
    assert [each.attempt for each in admitted if isinstance(each, Admit)] == [9]


def test_the_absent_clients_of_one_tenant_are_not_believed_to_be_anothers() -> None:
    gate = _gate("ann", "bob")
    _granted(gate, 0.0, OthersLine("tenant/ann", 6, 0.0), OthersLine("tenant/bob", 6, 0.0))
    _full(gate)
    _full(gate, "bob", first=5)
    for number in range(11, 31):
        _hint_s(gate, number, tenant="bob")
    gate.handle(Tick(), 40.0)
    lines = OthersLine("tenant/ann", 6, 0.0, 20.0, 20.0), OthersLine("tenant/bob", 6, 0.0)
    _granted(gate, 40.0, *lines, OthersLine("lines/", 0, 0.0, 20.0, 20.0))
    for number in range(41, 44):
        _hint_s(gate, number, 40.0)
        _hint_s(gate, number + 10, 40.0, "bob")
    assert _line(gate, "tenant/ann", 40.0).work_s == pytest.approx(3.0)
    assert _line(gate, "tenant/bob", 40.0).work_s < 1.5
