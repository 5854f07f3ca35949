"""The arithmetic of results, on stories small enough to count by hand."""

import pytest

from millgate.demos.scores import EngineCounts, is_good, quantile, score, share, tally
from millgate.demos.users import Story, UserEnding

WHOLE_SOON = Story(UserEnding.WHOLE, attempts=1, first_token_s=1.0, total_s=3.0, prompt_tokens=100)
WHOLE_LATE = Story(UserEnding.WHOLE, attempts=3, refreshes=2, first_token_s=4.0, total_s=5.0, late_s=0.25)
REFUSED = Story(UserEnding.REFUSED, attempts=2, reasons=("saturated", "too_late"))
GONE = Story(UserEnding.GONE, attempts=4, refreshes=3)


def test_good_is_whole_with_a_first_token_in_time_counted_from_the_first_attempt() -> None:
    assert is_good(WHOLE_SOON, 1.0)
    assert not is_good(WHOLE_LATE, 3.0)
    assert not is_good(Story(UserEnding.CUT, first_token_s=0.1), 3.0)
    assert not is_good(Story(UserEnding.WHOLE), 3.0)


def test_a_scaled_run_is_judged_in_engine_seconds() -> None:
    """At a time scale of 5 an SLO of 15 s is 3 real seconds, and every time is reported five times as long."""
    counts = EngineCounts(generated_tokens=200, wasted_tokens=50, prefilled_tokens=400, peak_inflight=4)

    result = score([WHOLE_SOON, WHOLE_LATE, REFUSED, GONE], counts, slo_s=15.0, window_s=10.0, time_scale=5.0)

    assert (result.requests, result.good, result.good_share) == (4, 1, 0.25)
    assert result.goodput_per_s == pytest.approx(0.1)
    assert result.retry_amplification == 2.5
    assert result.wasted_token_share == 0.25
    assert result.wasted_prefill_share == 0.75
    assert (result.ttft_p50_s, result.ttft_p99_s) == (5.0, 20.0)
    assert result.users_late_s == 1.25
    assert result.endings == {"gone": 1, "refused": 1, "whole": 2}
    assert result.yields == {"saturated": 1, "too_late": 1}


def test_an_empty_run_is_all_zero_and_has_no_latency() -> None:
    result = score([], EngineCounts(0, 0, 0, 0), slo_s=15.0, window_s=10.0, time_scale=1.0)

    assert (result.good_share, result.retry_amplification, result.wasted_token_share) == (0.0, 0.0, 0.0)
    assert (result.ttft_p50_s, result.ttft_p99_s) == (None, None)


@pytest.mark.parametrize(
    ("values", "at", "expected"),
    [([], 0.5, None), ([7.0], 0.99, 7.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0)],
)
def test_a_quantile_is_one_of_the_values(values: list[float], at: float, expected: float | None) -> None:
    assert quantile(values, at) == expected


def test_ninety_nine_of_a_hundred_do_not_exceed_the_p99() -> None:
    assert quantile(map(float, range(1, 101)), 0.99) == 99.0


def test_a_share_of_nothing_is_nothing() -> None:
    assert share(3, 0) == 0.0


def test_a_tally_is_in_alphabetical_order() -> None:
    assert list(tally(["b", "a", "b"]).items()) == [("a", 1), ("b", 2)]
