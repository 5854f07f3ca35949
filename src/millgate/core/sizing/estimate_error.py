"""How wrong were the estimates: in total, and one by one in logarithms, so that half and double weigh the same."""

from math import log

from millgate.core.measure.sketch import Sketch
from millgate.core.sizing import MEMORY_ANSWERS
from millgate.core.snapshot import ErrorReading


class EstimateError:
    """Collects the errors of one kind of estimate; both sizes of a pair must be positive."""

    __slots__ = ("_actual", "_estimated", "_spread")

    def __init__(self) -> None:
        self._actual = self._estimated = 0.0
        self._spread = Sketch(memory=MEMORY_ANSWERS)

    def add(self, estimated: float, actual: float) -> None:
        """Compare one estimate with what came."""
        keep = 1.0 - 1.0 / MEMORY_ANSWERS
        self._actual = self._actual * keep + actual
        self._estimated = self._estimated * keep + estimated
        self._spread.add(abs(log(actual / estimated)))

    def read(self) -> ErrorReading:
        """Return the errors of the last few hundred answers; zeros before the first."""
        bias = self._actual / self._estimated - 1.0 if self._estimated else 0.0
        return ErrorReading(self._spread.samples, bias, p90=self._spread.quantile(0.9))
