"""How much work is on offer, by its size: a long request waits for all that is shorter, what is still to come included.

Where the shortest goes first, a wait is not a place over a rate. While W seconds of work go before a request, shorter
work arrives and goes before it too: it waits W / (1 - load), load being the part of the engine's time that shorter
work asks for (the mean-value law of non-preemptive priorities: Cobham 1954; for shortest job first Phipps 1956).
Where shorter work alone asks for all of it, there is no such time.
"""

from math import floor, log2
from typing import Final

from millgate.core.measure.ewma import Ewma

# Classes of size, four to a doubling, from a millisecond of an engine's time up to a quarter of an hour.
_CLASSES: Final = 80
_PER_DOUBLING: Final = 4.0
_SHORTEST_S: Final = 0.001
# Arrivals are summed up over a second, and believed as the mean of so many seconds.
_MEMORY_S: Final = 30.0
# What arrives at once is a line, not a load: of one second no more counts than so many times what can be served in it.
_MOST_OF_SECOND: Final = 8.0
# The mean size of what is served is trusted from so many on.
_TRUSTED_STARTS: Final = 20.0


class OfferedWork:
    """The engine time that arrives a second in one queue, by size of the request; seconds of an engine's own time."""

    __slots__ = ("_below", "_rates", "_second", "_served", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._second = [0.0] * _CLASSES
        self._rates = [0.0] * _CLASSES
        self._below = [0.0] * _CLASSES
        self._served = Ewma(0.0, memory=200.0, prior_samples=0.0)

    def is_over(self, now: float) -> bool:
        """Return whether it is time to `learn` what has arrived."""
        return now - self._since >= 1.0

    def arrived(self, work_s: float) -> None:
        """Count a new request of this size."""
        self._second[_class_of(work_s)] += work_s

    def started(self, work_s: float) -> None:
        """Learn how large a request is that is served."""
        self._served.add(work_s)

    def load_below(self, work_s: float, now: float, per_s: float) -> float:
        """Return which part of the engines' time shorter work asks for, 0 while that is not known."""
        if self._served.samples < _TRUSTED_STARTS or per_s <= 0.0:
            return 0.0
        missed = floor(max(0.0, now - self._since - 1.0))
        faded = (1.0 - 1.0 / _MEMORY_S) ** missed
        return self._below[_class_of(work_s)] * faded / (per_s * self._served.mean)

    def learn(self, now: float, per_s: float) -> None:
        """Learn from what has arrived since the last time, a second ago or more; `per_s` can be served a second."""
        seconds = floor(now - self._since)
        keep = 1.0 - 1.0 / _MEMORY_S
        offered = sum(self._second, 0.0)
        most = _MOST_OF_SECOND * per_s * self._served.mean
        weight = (1.0 - keep) * (most / offered if offered > most > 0.0 else 1.0)
        below = 0.0
        for each in range(_CLASSES):
            rate = (self._rates[each] * keep + self._second[each] * weight) * keep ** (seconds - 1)
            self._rates[each] = rate
            self._below[each] = below
            below += rate
            self._second[each] = 0.0
        self._since += seconds


def _class_of(work_s: float) -> int:
    if work_s <= _SHORTEST_S:
        return 0
    return min(_CLASSES - 1, floor(_PER_DOUBLING * log2(work_s / _SHORTEST_S)))
