"""How fast a full gate empties: departures per second, measured only while it is full.

A quiet system completes at its arrival rate, which says nothing about its capacity. Prior and floor are
streams / E[service] (Little's law on the full gate), with the streams that the gate really ran while full: a gate whose
KV meter binds is full at fewer than its limit.
"""

from math import sqrt
from typing import Final, NamedTuple

from millgate.core.measure.ewma import MEMORY, Ewma

# The prior counts as so many departures: the measured rate leads after about a dozen. So many at most, or as many as streams
# run, make one sample of the spread: that all slow down together shows in four as well, and is known sooner.
_FEW: Final = 4.0
# The floor counts for so much. Rate and floor are estimates of one number, each off by some 7 % (lengths that vary as
# much as their mean, 200 of them): the larger of the two as they are would be 4 % too fast, and so would every hint.
FLOOR_SHARE: Final = 0.8


class DrainReading(NamedTuple):
    """Permits that end a second while a gate is full, and one standard deviation of the time that one takes.

    `usual_work_s` is how long one is usually out by the price list, and what is out is out `dearness` times as long;
    all of it rests on so many `departures`.
    """

    per_s: float
    spread_s: float
    usual_work_s: float
    dearness: float
    departures: float


class DrainRate:
    """Departures per second of one full gate, with the spread of the time that many of them take.

    The spread is that of permits about what was foreseen of each: gaps between departures are no chance where answers
    began together. It is taken over cycles of a few departures, so that what makes all of them slow shows.
    """

    def __init__(self, limit: int) -> None:
        self._departures = self._full_time_s = self._work_s = self._stayed_s = 0.0
        self._full_since: float | None = None
        self._cycle = Ewma(0.0, prior_samples=0.0)
        self._cycle_departures, self._cycle_s = 0, 0.0
        self._streams = Ewma(float(limit))

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
        """Whether `spread_s` is more than a belief: one cycle has no deviation."""
        return self._cycle.samples > 1.0

    def became_full(self, now: float, streams: int) -> None:
        """The gate has no room left, with this many streams running."""
        if self._full_since is None:
            self._full_since = now
            self._streams.add(float(streams))

    def departed(self, now: float, work_s: float, foreseen_s: float, stayed_s: float) -> None:
        """A permit has ended after `stayed_s`; counts only if the gate was full.

        `work_s` is what it took and `foreseen_s` what was foreseen, both by the price list.
        """
        if self._full_since is None:
            return
        fade = 1.0 - 1.0 / MEMORY
        self._departures = self._departures * fade + 1.0
        self._full_time_s *= fade
        self._work_s = self._work_s * fade + work_s
        self._stayed_s = self._stayed_s * fade + stayed_s
        self.left(now)
        dearness = self._stayed_s / self._work_s if self._work_s else 0.0
        self._cycle_departures += 1
        self._cycle_s += (stayed_s - dearness * foreseen_s) / self._streams.mean
        if self._cycle_departures >= self._cycle_size():
            self._cycle.add(self._cycle_s / self._cycle_departures)
            self._cycle_departures, self._cycle_s = 0, 0.0

    def _cycle_size(self) -> float:
        return min(self._streams.mean, _FEW)

    def left(self, now: float) -> None:
        """A permit has ended that says nothing of how long work takes: the full time counts, the departure does not."""
        if self._full_since is not None:
            self._full_time_s += max(0.0, now - self._full_since)
            self._full_since = None

    def per_s(self, service_s: float, floor_share: float = FLOOR_SHARE) -> float:
        """Return departures per second, so much of the floor at least, given the expected service time of one permit."""
        floor = self._streams.mean / max(service_s, 1e-6)
        time_s = self._full_time_s + _FEW / floor
        return max(floor_share * floor, (self._departures + _FEW) / time_s)

    def read(self, service_s: float, work_s: float, floor_share: float) -> DrainReading:
        """Return all of it at once, given what is believed of one permit: its time, and the same by the price list."""
        work_sum_s = max(1e-6, self._work_s + _FEW * work_s)
        return DrainReading(
            self.per_s(service_s, floor_share),
            self.spread_s(1.0, service_s),
            work_sum_s / (self._departures + _FEW),
            (self._stayed_s + _FEW * service_s) / work_sum_s,
            max(1.0, self._departures),
        )

    def spread_s(self, departures: float, service_s: float) -> float:
        """Return one standard deviation of the time that this many departures take; half a gap each until measured."""
        if not self.spread_is_measured:
            return sqrt(departures) * 0.5 / self.per_s(service_s, 1.0)
        return sqrt(departures * self._cycle_size()) * self._cycle.deviation
