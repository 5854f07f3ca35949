"""How fast does a full gate empty: departures per second, measured only while it is full.

A quiet system completes at its arrival rate, which says nothing about its capacity; only the time during which
every permit was out counts. Prior and floor are streams / E[service] (Little's law on the full gate), with the
number of streams that the gate really ran while full: a gate whose KV meter binds is full at fewer streams than
its limit.
"""

from math import sqrt
from typing import Final

from headgate.core.measure.ewma import Ewma

# The prior counts as this many departures, so that the measured rate leads after about a dozen; that of the spread
# until so many cycles are there.
_PRIOR_DEPARTURES: Final = 4.0
# Departures and full time fade over this many departures: some batches' worth, long enough to average lengths.
_MEMORY_DEPARTURES: Final = 200.0
# The spread fades over so many cycles, each as many departures as the gate runs streams.
_MEMORY_CYCLES: Final = 50.0
# The floor counts for so much. Rate and floor are estimates of one number, each off by some 7 % (lengths that vary as
# much as their mean, 200 of them): the larger of the two as they are would be 4 % too fast, and so would every hint.
FLOOR_SHARE: Final = 0.8


class DrainRate:
    """Departures per second of one full gate, with the spread of the time that many of them take.

    The spread is measured over whole cycles, not between two departures: four answers that began together end
    together, and the next four a whole answer later; between two departures that is chance, over four it is a clock.
    """

    __slots__ = (
        "_cycle",
        "_cycle_departures",
        "_cycle_s",
        "_departures",
        "_full_since",
        "_full_time_s",
        "_streams",
    )

    def __init__(self, limit: int) -> None:
        self._departures = 0.0
        self._full_time_s = 0.0
        self._full_since: float | None = None
        self._cycle = Ewma(0.0, memory=_MEMORY_CYCLES, prior_samples=0.0)
        self._cycle_departures = 0
        self._cycle_s = 0.0
        self._streams = Ewma(float(limit), memory=50.0, prior_samples=4.0)

    @property
    def full_streams(self) -> float:
        """How many streams run while the gate is full, on average; the limit until that was seen."""
        return self._streams.mean

    @property
    def is_full(self) -> bool:
        """Whether the gate has been full since its last departure."""
        return self._full_since is not None

    @property
    def spread_is_measured(self) -> bool:
        """Whether cycles enough were seen for `spread_s` to be more than a belief."""
        return self._cycle.samples >= _PRIOR_DEPARTURES

    def became_full(self, now: float, streams: int) -> None:
        """The gate has no room left, with this many streams running."""
        if self._full_since is None:
            self._full_since = now
            self._streams.add(float(streams))

    def departed(self, now: float) -> None:
        """A permit has ended; counts only if the gate was full."""
        if self._full_since is None:
            return
        gap_s = max(0.0, now - self._full_since)
        self._full_since = None
        fade = 1.0 - 1.0 / _MEMORY_DEPARTURES
        self._departures = self._departures * fade + 1.0
        self._full_time_s = self._full_time_s * fade + gap_s
        self._measure_cycle(gap_s)

    def _measure_cycle(self, gap_s: float) -> None:
        self._cycle_departures += 1
        self._cycle_s += gap_s
        if self._cycle_departures >= self._streams.mean:
            self._cycle.add(self._cycle_s / self._cycle_departures)
            self._cycle_departures = 0
            self._cycle_s = 0.0

    def per_s(self, service_s: float, floor_share: float = FLOOR_SHARE) -> float:
        """Return departures per second of the full gate, given the expected service time of one permit.

        It is never less than so much of the floor.
        """
        floor = self._streams.mean / max(service_s, 1e-6)
        time_s = self._full_time_s + _PRIOR_DEPARTURES / floor
        return max(floor_share * floor, (self._departures + _PRIOR_DEPARTURES) / time_s)

    def spread_s(self, departures: float, service_s: float) -> float:
        """Return one standard deviation of the time that this many departures take."""
        if not self.spread_is_measured:
            return sqrt(departures) * 0.5 / self.per_s(service_s, 1.0)
        return sqrt(departures * self._streams.mean) * self._cycle.deviation
