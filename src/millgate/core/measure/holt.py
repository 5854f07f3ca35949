"""Level and trend of a series by double exponential smoothing (Holt, 1957)."""


class Holt:
    """A line that follows a series: `level` in its unit, `trend` in its unit per step.

    `share` is the weight of a new sample for both: 0.3 follows within some three steps, 0.1 within ten.
    """

    def __init__(self, share: float) -> None:
        self._share, self._is_empty = share, True
        self.level = self.trend = 0.0

    def add(self, value: float) -> None:
        """Learn the next sample; the first one is the level."""
        if self._is_empty:
            self._is_empty, self.level = False, value
            return
        before = self.level
        expected = before + self.trend
        self.level = expected + self._share * (value - expected)
        self.trend += self._share * (self.level - before - self.trend)
