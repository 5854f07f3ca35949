"""How many were good, and how fast that burns the budget."""

from dataclasses import replace

import pytest

from millgate.core.settings import LaneSettings
from millgate.core.snapshot import SloReading
from millgate.instruments.objectives import SloWatch

FIRST_TOKEN_ONLY = LaneSettings("lane", ttft_slo_s=1.0)
BOTH = LaneSettings("lane", ttft_slo_s=1.0, tpot_slo_s=0.1)


def _watched(*answers: tuple[float, float, bool], each_s: float = 1.0) -> tuple[SloWatch, float]:
    """Return a watch of the lane with both objectives, and the time after these answers."""
    watch, now = SloWatch(BOTH, 0.0), 0.0
    for ttft_s, tpot_s, good in answers:
        now += each_s
        watch.add(now, ttft_s, tpot_s, good=good)
    return watch, now


IN_TIME, FIRST_LATE, REST_LATE = (0.5, 0.05, True), (3.0, 0.05, False), (0.5, 0.3, False)


def test_a_lane_that_nobody_uses_attains_everything() -> None:
    read = SloWatch(BOTH, 0.0).read(10.0)
    assert (read.ttft, read.tpot, read.is_burning, read.advice) == (None, None, False, "")
    assert (read.short.good_share, read.long.burn, read.short.answers) == (1.0, 0.0, 0)


def test_one_miss_in_twenty_burns_exactly_the_budget_of_a_p95_objective() -> None:
    watch, now = _watched(*([FIRST_LATE] + [IN_TIME] * 19) * 10)
    read = watch.read(now)
    assert read.short.good_share == read.long.good_share == pytest.approx(0.95)
    assert read.short.burn == pytest.approx(1.0)
    assert not read.is_burning


def test_the_upper_quantiles_are_those_of_what_was_streamed() -> None:
    watch, now = _watched(*[(0.1 * number, 0.01 * number, True) for number in range(1, 101)], each_s=0.1)
    watch.add(now, None, None, good=True)
    read = watch.read(now)
    assert read.ttft is not None
    assert read.tpot is not None
    assert tuple(read.ttft) == pytest.approx((9.5, 9.9, 9.5), rel=0.06)
    assert tuple(read.tpot) == pytest.approx((0.95, 0.99, 0.95), rel=0.06)


@pytest.mark.parametrize(
    ("missed", "advice"),
    [
        (FIRST_LATE, "let less wait"),
        (REST_LATE, "lower the limit of streams"),
        ((0.5, 0.05, False), "engine failures"),
    ],
)
def test_when_both_windows_burn_it_advises_by_what_is_missed(
    missed: tuple[float, float, bool], advice: str
) -> None:
    watch, now = _watched(*[missed, missed, IN_TIME] * 100, each_s=0.5)
    read = watch.read(now)
    assert read.is_burning
    assert "Lane lane: 33 % good" in read.advice
    assert advice in read.advice


def test_a_blip_after_a_good_hour_is_no_alarm_and_an_old_one_ends_with_its_cause() -> None:
    watch, now = _watched(*[IN_TIME] * 3_000, *[FIRST_LATE] * 120)
    assert watch.read(now).short.burn > watch.read(now).long.burn
    assert not watch.read(now).is_burning
    watch, now = _watched(*[FIRST_LATE] * 2_000, *[IN_TIME] * 320)
    read = watch.read(now)
    assert (read.short.burn, read.is_burning) == (0.0, False)
    assert read.long.burn > 10.0


def test_a_quiet_nights_slow_answers_are_no_alarm() -> None:
    watch, now = _watched(*[FIRST_LATE] * 10, each_s=20.0)
    assert watch.read(now).short.burn == pytest.approx(20.0)
    assert not watch.read(now).is_burning


def test_the_windows_forget() -> None:
    watch, now = _watched(*[FIRST_LATE] * 100)
    assert watch.read(now + 400.0).short.answers == 0
    assert watch.read(now + 400.0).long.answers == 100
    assert watch.read(now + 3_700.0).long.answers == 0


def test_a_stricter_target_burns_faster_and_one_of_all_or_nothing_is_refused() -> None:
    watch = SloWatch(replace(BOTH, ttft_share=0.99, tpot_share=0.99), 0.0)
    for second in range(100):
        watch.add(float(second), 0.5, 0.05, good=second % 5 > 0)
    assert watch.read(100.0).short.burn == pytest.approx(20.0)
    assert watch.read(100.0).is_burning
    with pytest.raises(ValueError, match=r"ttft_share is 1\.0, must lie between 0 and 1"):
        SloWatch(replace(BOTH, ttft_share=1.0), 0.0)
    with pytest.raises(ValueError, match=r"tpot_share is 0\.0, must lie between 0 and 1"):
        SloWatch(replace(BOTH, tpot_share=0.0), 0.0)


def test_the_promised_quantiles_are_those_that_the_lane_names() -> None:
    watch = SloWatch(replace(BOTH, ttft_share=0.5, tpot_share=0.999), 0.0)
    for number in range(1, 1001):
        watch.add(0.0, 0.01 * number, 0.001 * number, good=True)
    read = watch.read(0.0)
    assert read.ttft is not None
    assert read.tpot is not None
    assert (read.ttft_promise, read.tpot_promise) == ((1.0, 0.5), (0.1, 0.999))
    assert (read.ttft.promised, read.tpot.promised) == pytest.approx((5.0, 0.999), rel=0.06)


def _mixed(late: int, slow: int) -> SloReading:
    """Return what a hundred requests read, of which so many miss a TTFT of p99 or a TPOT of p90."""
    watch = SloWatch(replace(BOTH, ttft_share=0.99, tpot_share=0.9), 0.0)
    for ttft_s, tpot_s, good in [FIRST_LATE] * late + [REST_LATE] * slow + [IN_TIME] * (100 - late - slow):
        watch.add(1.0, ttft_s, tpot_s, good=good)
    return watch.read(1.0)


@pytest.mark.parametrize(
    ("late", "slow", "burn"),
    [(0, 10, 1.0), (0, 1, 0.1), (1, 0, 1.0), (5, 0, 5.0), (5, 50, 5.5), (20, 0, 20.0)],
)
def test_of_two_quantiles_a_good_request_has_the_looser_and_the_stricter_has_its_own_budget(
    late: int, slow: int, burn: float
) -> None:
    read = _mixed(late, slow)
    assert read.target_share == 0.9
    assert read.short.burn == pytest.approx(burn)


def test_the_stricter_objective_alarms_by_its_own_budget() -> None:
    assert not _mixed(14, 0).is_burning
    read = _mixed(15, 0)
    assert read.is_burning
    assert (
        "85 % good over five minutes, 90 % promised. First tokens come too late (p99 is promised)"
        in read.advice
    )


def test_what_was_refused_got_no_first_token_in_time() -> None:
    watch = SloWatch(replace(BOTH, ttft_share=0.99, tpot_share=0.5), 0.0)
    for number in range(100):
        if number < 20:
            watch.refuse(1.0)
        else:
            watch.add(1.0, 0.5, 0.05, good=True)
    read = watch.read(1.0)
    assert read.short.good_share == 0.8
    assert read.short.burn == pytest.approx(20.0)
    assert read.is_burning


@pytest.mark.parametrize(("missed", "is_burning"), [(50, False), (74, False), (75, True)])
def test_an_objective_that_lets_half_be_late_alarms_well_above_half(missed: int, is_burning: bool) -> None:
    watch = SloWatch(replace(FIRST_TOKEN_ONLY, ttft_share=0.5), 0.0)
    for number in range(100):
        watch.add(1.0, 3.0 if number < missed else 0.5, 0.05, good=number >= missed)
    assert watch.read(1.0).is_burning is is_burning


def test_without_a_tpot_objective_none_is_judged() -> None:
    watch = SloWatch(FIRST_TOKEN_ONLY, 0.0)
    watch.add(1.0, 0.5, 9.0, good=True)
    assert watch.read(1.0).short.tpot_share == 1.0


def test_a_refused_request_is_a_miss_until_a_retry_of_it_is_good() -> None:
    watch, now = _watched(*[IN_TIME] * 60)
    for _ in range(20):
        watch.refuse(now)
    short = watch.read(now).short
    assert (short.answers, short.requests, short.refused, short.good_share) == (60, 80, 20, 0.75)
    for _ in range(20):
        watch.add(now, 0.5, 0.05, good=True, first=False)
    assert watch.read(now).short.good_share == 1.0


def test_where_refusals_are_most_of_what_is_missed_the_advice_says_so() -> None:
    watch, now = _watched(*[FIRST_LATE] * 10, *[IN_TIME] * 10)
    for _ in range(80):
        watch.refuse(now)
    read = watch.read(now)
    assert read.is_burning
    assert read.advice == (
        "Lane lane: 10 % good over five minutes, 95 % promised. 80 of 100 requests were refused: mend engines that are down or fail; where all are well add engines, or ask for less."
    )
