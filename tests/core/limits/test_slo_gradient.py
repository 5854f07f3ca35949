"""One step of the gradient, sign by sign; what it does to an engine is in tests/lab/limiters."""

from math import sqrt
from statistics import fmean
from typing import Any

import pytest

from core.limits.readings import SOUND
from millgate.core.limits.slo_gradient import TARGET, SloGradientLimit

SLO_S = 0.02 / TARGET


def _limit(start: int = 100) -> SloGradientLimit:
    return SloGradientLimit(SLO_S, 1_000, start)


def _after(limit: SloGradientLimit, windows: int = 1, **change: Any) -> int:
    for _ in range(windows):
        limit.observe(SOUND._replace(**{"max_inflight": limit.current(), **change}))
    return limit.current()


def test_at_its_target_it_stays() -> None:
    assert _after(_limit(), 100, tpot_s=0.02) == 100


def test_far_below_the_slo_it_grows_by_a_third_of_the_root() -> None:
    assert _after(_limit(), tpot_s=0.001) == int(100 + 0.35 * sqrt(100))


def test_just_below_the_slo_it_grows_by_a_third_of_the_distance() -> None:
    assert _after(_limit(900), tpot_s=0.02 * 0.97) == int(900 * (1.0 + 0.35 * 0.03))


@pytest.mark.parametrize("streams", [2, 20, 200])
def test_as_far_above_the_slo_as_below_it_the_step_is_the_same(streams: int) -> None:
    """A p90 that sways by a tenth around its target, every window: the limit stays, however few streams there are."""
    limit = _limit(streams)
    for window in range(200):
        ratio = 0.95 if window % 2 else 1.0 / 0.95
        limit.observe(SOUND._replace(max_inflight=streams, tpot_s=0.02 * ratio))
    assert limit.current() in (streams - 1, streams)


def test_between_two_streams_and_three_the_mean_is_what_was_steered_for() -> None:
    """Two keep 0.9 of the target, three 1.1: half of the windows have three, and the mean is the target."""
    limit, seen = _limit(2), []
    for _ in range(1_000):
        streams = limit.current()
        seen.append(0.9 if streams < 3 else 1.1)
        limit.observe(SOUND._replace(max_inflight=streams, tpot_s=0.02 * seen[-1]))
    assert fmean(seen[100:]) == pytest.approx(1.0, abs=0.025)


@pytest.mark.parametrize(("tpot_s", "streams"), [(0.02 / 0.9, 96), (0.04, 82), (9.0, 65)])
def test_above_the_slo_it_falls_by_a_third_of_the_distance(tpot_s: float, streams: int) -> None:
    assert _after(_limit(), tpot_s=tpot_s) == streams


def test_from_ten_times_what_is_feasible_no_request_joins_until_the_streams_have_come_down_to_it() -> None:
    """TPOT = 10 ms + 0.1 ms a stream: 100 streams at 20 ms. What was let in ends at one in thirty a second."""
    limit, running, has_room = _limit(1_000), 1_000, []
    while running >= 120:
        limit.observe(SOUND._replace(max_inflight=running, tpot_s=0.01 + 0.0001 * running))
        has_room.append(limit.current() > running)
        running -= running // 30
    assert len(has_room) > 60
    assert not any(has_room)
    assert 90 <= limit.current() < 120


@pytest.mark.parametrize(
    "change",
    [{"kv_share": 0.95}, {"waiting": 6}, {"failures": 5}, {"waiting": None, "ttft_excess_p90_s": 1.1}],
)
def test_a_sign_of_overload_takes_a_tenth_though_answers_are_fast(change: dict[str, Any]) -> None:
    assert _after(_limit(), tpot_s=0.001, **change) == 90


def test_late_first_tokens_are_no_sign_where_the_engine_shows_that_nobody_waits() -> None:
    assert _after(_limit(), tpot_s=0.02, ttft_excess_p90_s=5.0, waiting=0) == 100


def test_a_latency_that_never_changes_does_not_let_it_climb() -> None:
    """A stable timeout: every sample the same and far too long, no variance, no drops."""
    assert _after(_limit(), 200, tpot_s=5.0) == 1


def test_mild_overload_does_not_let_it_run_away() -> None:
    """A gradient of 0.8 with a fixed sum added in every window would climb without bound."""
    limit = _limit()
    for _ in range(1_000):
        before = limit.current()
        assert _after(limit, tpot_s=0.02 / 0.8) <= before


def test_failures_at_once_are_not_taken_for_speed() -> None:
    """Nothing but refusals: no sample is fast, and the limit falls."""
    assert _after(_limit(), 10, samples=0, tpot_s=None, failures=50, answers=0) < 40


def test_a_spread_of_latencies_does_not_block_growth() -> None:
    """A single lucky sample in the mix sets no mark that the others are measured by."""
    limit = _limit(20)
    for window in range(200):
        _after(limit, tpot_s=0.001 if window % 20 == 0 else 0.018)
    assert limit.current() > 100


def test_a_bad_hour_teaches_it_nothing() -> None:
    """After an hour at three times the latency the same SLO gives the same limit within the minute."""

    def settle(limit: SloGradientLimit, per_stream_s: float, windows: int) -> int:
        for _ in range(windows):
            _after(limit, tpot_s=per_stream_s * limit.current())
        return limit.current()

    limit = _limit()
    before = settle(limit, 0.0002, 120)
    assert settle(limit, 0.0006, 3_600) < before / 2
    assert settle(limit, 0.0002, 60) == pytest.approx(before, rel=0.03)
