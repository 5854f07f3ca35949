"""One reading for many."""

import pytest

from core.limits.readings import SOUND
from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.gate import FixedLimit, LimitReading
from millgate.core.limits.windowed import WindowedLimit, together


class Listening:
    """A limit of nine that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[LimitReading] = []

    def current(self) -> int:
        return 9

    def observe(self, reading: LimitReading) -> None:
        self.heard.append(reading)

    def adopt(self, hard_cap: int) -> None:
        assert hard_cap == 9


def test_the_wrapped_limit_moves_once_a_window() -> None:
    limit = WindowedLimit(AimdLimit(100, 10, tpot_slo_s=0.03), window_s=5.0, least_samples=50)
    limits = []
    for _ in range(10):
        limit.observe(SOUND)
        limits.append(limit.current())

    assert limits == [10] * 4 + [11] * 5 + [12]


def test_a_window_waits_for_its_samples_but_not_for_ever() -> None:
    inner = Listening()
    limit = WindowedLimit(inner, window_s=2.0, least_samples=100)
    for _ in range(30):
        limit.observe(SOUND._replace(samples=1))
    assert [reading.samples for reading in inner.heard] == [30]
    limit.observe(SOUND._replace(samples=200))
    limit.observe(SOUND._replace(samples=0))
    assert inner.heard[-1].window_s == 2.0


def test_counts_add_up_peaks_stay_and_gauges_are_the_newest_known() -> None:
    whole = together(
        [
            SOUND._replace(
                max_inflight=9,
                samples=100,
                tpot_s=0.02,
                failures=1,
            ),
            SOUND._replace(
                window_s=3.0,
                max_inflight=5,
                samples=300,
                tpot_s=0.04,
                ttft_excess_p90_s=None,
                kv_share=None,
                waiting=2,
            ),
        ]
    )

    assert whole[:3] == (4.0, 9, 400)
    assert whole.tpot_s == pytest.approx(0.035)
    assert whole.ttft_excess_p90_s == 0.0
    assert whole[5:9] == (1, 40, 0.5, 2)


def test_what_is_unknown_in_every_window_stays_unknown() -> None:
    whole = together([SOUND._replace(samples=0, tpot_s=None, waiting=None)] * 2)
    assert (whole.tpot_s, whole.waiting) == (None, None)


def test_a_new_hard_cap_is_passed_on() -> None:
    limit = WindowedLimit(AimdLimit(100, 50), 5.0, 50)
    limit.adopt(20)
    assert limit.current() == 20


@pytest.mark.parametrize(
    ("window_s", "least_samples", "message"),
    [(0.0, 50, "window must be above 0, not 0 s"), (5.0, 0, "window_samples must be at least 1, not 0")],
)
def test_a_window_of_nothing_is_refused(window_s: float, least_samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowedLimit(FixedLimit(1), window_s, least_samples)
