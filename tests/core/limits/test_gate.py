"""The gate of one engine: three meters."""

from math import inf

import pytest

from millgate.core.events import EngineShare
from millgate.core.limits.gate import EngineGate, FixedLimit


def _gate() -> EngineGate:
    return EngineGate(FixedLimit(3), kv_limit=1_000, prefill_limit=200)


def _meters(gate: EngineGate) -> tuple[int, int, int]:
    return gate.streams, gate.kv_tokens, gate.prefill_tokens


def test_each_meter_alone_can_be_full() -> None:
    gate = _gate()
    gate.take(1, 600, 150)
    assert gate.has_room(400, 50)
    assert not gate.has_room(401, 50)
    assert not gate.has_room(400, 51)
    gate.take(2, 1, 1)
    gate.take(3, 1, 1)
    assert not gate.has_room(0, 0)


def test_meters_that_are_off_never_refuse() -> None:
    gate = EngineGate(FixedLimit(1))
    assert gate.fits(10**9)
    assert gate.has_room(10**9, 10**9)
    assert gate.clip(10**9, 10**9) == (10**9, 10**9)


def test_what_is_larger_than_a_meter_runs_alone_with_its_reservation_cut() -> None:
    gate = _gate()
    assert gate.clip(5_000, 300) == (1_000, 200)
    assert gate.has_room(5_000, 300)
    gate.take(1, *gate.clip(5_000, 300))
    assert not gate.has_room(1, 1)
    gate.release(1)
    gate.take(2, 1, 1)
    assert not gate.has_room(5_000, 1)
    assert not gate.has_room(1, 300)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert _gate().fits(999)
    assert not _gate().fits(1_000)


def test_inv_3_a_permit_ends_once_and_gives_back_what_it_has_at_that_time() -> None:
    """INV-3, with growth and the prefill share in between."""
    gate = _gate()
    gate.take(1, 100, 50)
    gate.take(2, 100, 50)
    gate.prefilled(1)
    gate.prefilled(1)
    assert _meters(gate) == (2, 200, 50)
    gate.grow(1, 300)
    gate.grow(1, 20)
    assert _meters(gate) == (2, 400, 50)
    assert gate.release(1) == 300
    assert gate.release(1) is None
    assert _meters(gate) == (1, 100, 50)
    assert gate.release(2) == 100
    assert _meters(gate) == (0, 0, 0)


def test_news_of_a_stranger_changes_nothing() -> None:
    gate = _gate()
    gate.prefilled(9)
    gate.grow(9, 1_000)
    assert gate.release(9) is None
    assert _meters(gate) == (0, 0, 0)


def test_growth_above_the_limit_only_blocks_admissions() -> None:
    gate = _gate()
    gate.take(1, 100, 0)
    gate.grow(1, 5_000)
    assert gate.kv_tokens == 5_000
    assert not gate.has_room(1, 0)


def test_a_second_permit_for_one_attempt_is_our_own_mistake() -> None:
    gate = _gate()
    gate.take(1, 1, 1)
    with pytest.raises(AssertionError, match="attempt 1 already has a permit"):
        gate.take(1, 1, 1)


def test_what_is_left_of_its_memory_is_that_of_its_share() -> None:
    gate = _gate()
    gate.take(1, 300, 50)
    assert gate.kv_left() == 700.0
    gate.leased(EngineShare("engine", 3, kv_tokens=400))
    assert gate.kv_left() == 100.0
    gate.grow(1, 500)
    assert gate.kv_left() == 0.0
    assert EngineGate(FixedLimit(4)).kv_left() == inf
