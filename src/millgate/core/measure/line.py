"""A straight line learned online: y = base + slope x, by least squares that forget.

Recursive least squares over decayed sums. The prior is two pseudo-observations that never decay, at x = 0 and at a
typical x: an unused part of the line stays where the prior put it, and no line is fitted through one point. Both
coefficients are kept at or above zero: no engine gets faster with more work.
"""

from typing import Final

from millgate.core.measure.ewma import MEMORY

# A sample counts as at most so many times the prediction, or as that part of it: one stalled answer must not teach a
# second per token, and a truly slower engine is reached within a few samples (8 x 8 x 8).
_OUTLIER_RATIO: Final = 8.0


class LearnedLine:
    """A line through a cloud of points, newest points weighing most."""

    __slots__ = ("_decay", "_n", "_prior", "_x", "_xx", "_xy", "_y", "base", "slope")

    def __init__(self, base: float, slope: float, *, typical_x: float) -> None:
        self.base, self.slope = base, slope
        self._decay = 1.0 - 1.0 / MEMORY
        far = base + slope * typical_x
        self._prior = 2.0, typical_x, base + far, typical_x * typical_x, typical_x * far
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def at(self, x: float) -> float:
        """Return the predicted y."""
        return self.base + self.slope * x

    def add(self, x: float, y: float) -> None:
        """Learn one point."""
        expected = self.base + self.slope * x
        if expected > 0.0:  # a line that lies at zero must be able to leave it
            y = max(expected / _OUTLIER_RATIO, min(expected * _OUTLIER_RATIO, y))
        decay = self._decay
        self._n = n = self._n * decay + 1.0
        self._x = sum_x = self._x * decay + x
        self._y = sum_y = self._y * decay + y
        self._xx = sum_xx = self._xx * decay + x * x
        self._xy = sum_xy = self._xy * decay + x * y
        # Solve the two normal equations, prior included, within the positive quadrant.
        n0, x0, y0, xx0, xy0 = self._prior
        n += n0
        sum_x += x0
        sum_y += y0
        sum_xx += xx0
        sum_xy += xy0
        spread = n * sum_xx - sum_x * sum_x
        slope = (n * sum_xy - sum_x * sum_y) / spread if spread > 0.0 else 0.0
        base = (sum_y - slope * sum_x) / n
        if slope < 0.0:
            slope, base = 0.0, sum_y / n
        elif base < 0.0:
            slope, base = sum_xy / sum_xx, 0.0
        self.slope, self.base = slope, base
