"""How wrong were the estimates: in total, and one by one in logarithms, so that half and double weigh the same."""

from math import log
from typing import Final

from millgate.core.measure.sketch import Sketch
from millgate.core.snapshot import ErrorReading

# Errors below 1 % count as 1 %; those above e^10 are all the same disaster.
_LEAST_ERROR, _MOST_ERROR = 0.01, 10.0
# An old answer weighs 1/e after this many: what operators mean by "now".
_MEMORY_ANSWERS: Final = 300.0
_KEPT: Final = 1.0 - 1.0 / _MEMORY_ANSWERS
_TAIL: Final = 0.9


class EstimateError:
    """Collects the errors of one kind of estimate; both sizes of a pair must be positive."""

    __slots__ = ("_actual", "_estimated", "_spread")

    def __init__(self) -> None:
        self._actual = self._estimated = 0.0
        self._spread = Sketch(_LEAST_ERROR, _MOST_ERROR, memory=_MEMORY_ANSWERS)

    def add(self, estimated: float, actual: float) -> None:
        """Compare one estimate with what came."""
        self._actual = self._actual * _KEPT + actual
        self._estimated = self._estimated * _KEPT + estimated
        self._spread.add(abs(log(actual / estimated)))

    def read(self) -> ErrorReading:
        """Return the errors of the last few hundred answers; zeros before the first."""
        bias = self._actual / self._estimated - 1.0 if self._estimated else 0.0
        return ErrorReading(self._spread.samples, bias, self._spread.quantile(_TAIL))
