"""A slower pace for any limit: it sees one reading for many, when enough time and samples are in it.

After Netflix's WindowedLimit. An engine with few streams needs longer windows than one with hundreds.
"""

from collections.abc import Sequence

from millgate.core.limits.gate import Limit, LimitReading
from millgate.core.limits.signal import LONGEST_WINDOW_S


class WindowedLimit:
    """Hands `inner` the sum of the readings of at least `window_s` seconds and `least_samples` tokens.

    It waits for samples as long as a `Signal` does, not for ever. ValueError when either is not above 0.
    """

    def __init__(self, inner: Limit, window_s: float, least_samples: int) -> None:
        if not window_s > 0.0:
            raise ValueError(f"window must be above 0, not {window_s:g} s")
        if least_samples < 1:
            raise ValueError(f"window_samples must be at least 1, not {least_samples}")
        self._inner = inner
        self._window_s = window_s
        self._least_samples = least_samples
        self._readings: list[LimitReading] = []

    def current(self) -> int:
        """Return the wrapped limit."""
        return self._inner.current()

    def adopt(self, hard_cap: int) -> None:
        """Pass on."""
        self._inner.adopt(hard_cap)

    def observe(self, reading: LimitReading) -> None:
        """Keep the reading, and pass the sum on when the window is full."""
        readings = self._readings
        readings.append(reading)
        whole = together(readings)
        enough = whole.samples >= self._least_samples or whole.window_s >= LONGEST_WINDOW_S
        if whole.window_s >= self._window_s and enough:
            readings.clear()
            self._inner.observe(whole)


def together(readings: Sequence[LimitReading]) -> LimitReading:
    """Return several readings, at least one, as one.

    Counts add up, peaks stay, gauges are the newest known. The p90s are means weighted by samples (that of TPOT) and by
    answers (that of the first token): between the smallest and the largest, and equal to them where load is steady.
    """
    return LimitReading(
        sum([each.window_s for each in readings], 0.0),
        max(each.max_inflight for each in readings),
        sum([each.samples for each in readings]),
        _mean([(each.tpot_s, each.samples) for each in readings]),
        _mean([(each.ttft_excess_p90_s, each.answers + 1) for each in readings]),
        sum([each.failures for each in readings]),
        sum([each.answers for each in readings]),
        next((each.kv_share for each in reversed(readings) if each.kv_share is not None), None),
        next((each.waiting for each in reversed(readings) if each.waiting is not None), None),
    )


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """Return the weighted mean of what is known, None where nothing is."""
    known = [(value, weight) for value, weight in weighted if value is not None]
    whole = sum([weight for _, weight in known], 0.0)
    return sum([value * weight for value, weight in known], 0.0) / whole if whole else None
