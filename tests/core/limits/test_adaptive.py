"""What every adaptive limit keeps to, whatever it is told."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from core.limits.readings import SOUND
from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import AdaptiveLimit, overloaded
from millgate.core.limits.slo_gradient import SloGradientLimit

Build = Callable[[int, int, int], AdaptiveLimit]
BUILDERS: dict[str, Build] = {
    "slo_gradient": lambda cap, start, minimum: SloGradientLimit(0.03, cap, start, minimum),
    "aimd": lambda cap, start, minimum: AimdLimit(cap, start, minimum, tpot_slo_s=0.03),
}

seconds = st.floats(1e-4, 100.0)
readings = st.builds(
    LimitReading,
    window_s=st.floats(1.0, 30.0),
    max_inflight=st.integers(0, 2_000),
    samples=st.integers(0, 10**6),
    tpot_s=st.none() | seconds,
    ttft_excess_p90_s=st.none() | seconds,
    failures=st.integers(0, 100),
    answers=st.integers(0, 100),
    kv_share=st.none() | st.floats(0.0, 1.0),
    waiting=st.none() | st.integers(0, 1_000),
)


@pytest.mark.parametrize("kind", BUILDERS)
@settings(max_examples=60)
@given(
    cap=st.integers(1, 500),
    start=st.integers(1, 1_000),
    minimum=st.integers(1, 20),
    windows=st.lists(st.one_of(readings, st.integers(1, 500)), max_size=80),
)
def test_a_limit_never_leaves_its_range(
    kind: str, cap: int, start: int, minimum: int, windows: list[LimitReading | int]
) -> None:
    """Within minimum (or 1) and the hard cap of the moment, under any readings and any new hard caps."""
    limit = BUILDERS[kind](cap, start, minimum)
    for window in windows:
        if isinstance(window, int):
            cap = window
            limit.adopt(cap)
        else:
            limit.observe(window)
        assert min(minimum, cap) <= limit.current() <= cap


@pytest.mark.parametrize("kind", BUILDERS)
def test_one_window_takes_a_tenth_at_most_and_only_once(kind: str) -> None:
    """Slow, full, queueing and failing all at once is one cut."""
    limit = BUILDERS[kind](1_000, 100, 1)
    limit.observe(
        SOUND._replace(max_inflight=100, tpot_s=9.0, kv_share=0.99, waiting=50, failures=9, answers=1)
    )

    assert limit.current() == 90


@pytest.mark.parametrize(("kind", "streams"), [("slo_gradient", 95), ("aimd", 100)])
def test_a_limit_waits_for_those_whom_it_let_in(kind: str, streams: int) -> None:
    """With 200 still running under a limit of 100, their latency is that of 200 streams: about half keep the SLO."""
    limit = BUILDERS[kind](1_000, 100, 1)
    for _ in range(200):
        limit.observe(SOUND._replace(max_inflight=200, tpot_s=0.06))

    assert limit.current() == streams


@pytest.mark.parametrize("kind", BUILDERS)
def test_no_collapse_to_one_under_errors_for_an_hour(kind: str) -> None:
    limit = BUILDERS[kind](1_000, 100, 4)
    for _ in range(3_600):
        limit.observe(SOUND._replace(max_inflight=limit.current(), failures=10, answers=0))

    assert limit.current() == 4


@pytest.mark.parametrize("kind", BUILDERS)
def test_low_traffic_freezes_it(kind: str) -> None:
    """49 tokens in half a minute say nothing, however slow they were."""
    limit = BUILDERS[kind](1_000, 60, 1)
    for _ in range(1_000):
        limit.observe(SOUND._replace(window_s=30.0, max_inflight=1, samples=49, tpot_s=3.0))

    assert limit.current() == 60


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_limit_that_is_less_than_half_used_does_not_grow(kind: str) -> None:
    limit = BUILDERS[kind](1_000, 60, 1)
    for _ in range(100):
        limit.observe(SOUND._replace(max_inflight=29))

    assert limit.current() == 60


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({}, False),
        ({"kv_share": 0.91}, True),
        ({"kv_share": 0.9}, False),
        ({"waiting": 6}, True),
        ({"waiting": 5}, False),
        ({"kv_share": None, "waiting": None}, False),
        ({"failures": 1, "answers": 9}, True),
        ({"failures": 1, "answers": 10}, False),
        ({"failures": 1, "answers": 0, "samples": 0}, True),
    ],
)
def test_the_signs_of_overload(change: dict[str, Any], sign: bool) -> None:
    assert overloaded(SOUND._replace(**change)) is sign
