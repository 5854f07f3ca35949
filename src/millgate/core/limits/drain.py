"""How fast does a full gate empty: departures per second, measured only while it is full.

A quiet system completes at its arrival rate, which says nothing about its capacity; only the time during which
every permit was out counts. Prior and floor are streams / E[service] (Little's law on the full gate), with the
number of streams that the gate really ran while full: a gate whose KV meter binds is full at fewer streams than
its limit.

How far off a foreseen wait may be is measured by how far off single permits were. Where their lengths are known that
is next to nothing, however uneven they are.
"""

from math import sqrt
from typing import Final, NamedTuple

from millgate.core.measure.ewma import Ewma

# The prior counts as this many departures, so that the measured rate leads after about a dozen.
_PRIOR_DEPARTURES: Final = 4.0
# The spread is believed from so many cycles on: waiting for four broke up to a tenth more of the promises of the first
# twenty seconds before four streams whose lengths were not known.
_MEASURED_CYCLES: Final = 2.0
# Departures and full time fade over this many departures: some batches' worth, long enough to average lengths.
_MEMORY_DEPARTURES: Final = 200.0
# The spread fades over so many cycles, each as many departures as the gate runs streams.
_MEMORY_CYCLES: Final = 50.0
# Of many streams a part will do: that they slow down together shows in eight as well, and is known sooner.
_LARGEST_CYCLE: Final = 8.0
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

    The spread is that of permits about what was foreseen of each, not of the gaps between departures: four answers that
    began together end together, and the next four a whole answer later, which is a clock and no chance. It is taken over
    the mean of as many as run together, so that what makes all of them slow is not averaged away.
    """

    __slots__ = (
        "_cycle",
        "_cycle_departures",
        "_cycle_s",
        "_departures",
        "_full_since",
        "_full_time_s",
        "_stayed_s",
        "_streams",
        "_work_s",
    )

    def __init__(self, limit: int) -> None:
        self._departures = 0.0
        self._full_time_s = 0.0
        self._work_s = self._stayed_s = 0.0
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
        return self._cycle.samples >= _MEASURED_CYCLES

    def became_full(self, now: float, streams: int) -> None:
        """The gate has no room left, with this many streams running."""
        if self._full_since is None:
            self._full_since = now
            self._streams.add(float(streams))

    def departed(self, now: float, work_s: float, foreseen_s: float, stayed_s: float) -> None:
        """A permit has ended after `stayed_s`; counts only if the gate was full.

        `work_s` is what it took and `foreseen_s` what was foreseen, both by the price list; so long as nothing was
        foreseen but a mean, all of its spread is that of answers.
        """
        if self._full_since is None:
            return
        gap_s = max(0.0, now - self._full_since)
        self._full_since = None
        fade = 1.0 - 1.0 / _MEMORY_DEPARTURES
        self._departures = self._departures * fade + 1.0
        self._full_time_s = self._full_time_s * fade + gap_s
        self._work_s = self._work_s * fade + work_s
        self._stayed_s = self._stayed_s * fade + stayed_s
        dearness = self._stayed_s / self._work_s if self._work_s else 0.0
        self._measure_cycle((stayed_s - dearness * foreseen_s) / self._streams.mean)

    def left(self, now: float) -> None:
        """A permit has ended that says nothing of how long work takes: the full time counts, the departure does not."""
        if self._full_since is not None:
            self._full_time_s += max(0.0, now - self._full_since)
            self._full_since = None

    def _measure_cycle(self, surprise_s: float) -> None:
        self._cycle_departures += 1
        self._cycle_s += surprise_s
        if self._cycle_departures >= self._cycle_size():
            self._cycle.add(self._cycle_s / self._cycle_departures)
            self._cycle_departures = 0
            self._cycle_s = 0.0

    def _cycle_size(self) -> float:
        return min(self._streams.mean, _LARGEST_CYCLE)

    def per_s(self, service_s: float, floor_share: float = FLOOR_SHARE) -> float:
        """Return departures per second of the full gate, given the expected service time of one permit.

        It is never less than so much of the floor.
        """
        floor = self._streams.mean / max(service_s, 1e-6)
        time_s = self._full_time_s + _PRIOR_DEPARTURES / floor
        return max(floor_share * floor, (self._departures + _PRIOR_DEPARTURES) / time_s)

    def read(self, service_s: float, work_s: float, floor_share: float) -> DrainReading:
        """Return all of it at once, given what is believed of one permit: its time, and the same by the price list."""
        work_sum_s = max(1e-6, self._work_s + _PRIOR_DEPARTURES * work_s)
        return DrainReading(
            self.per_s(service_s, floor_share),
            self.spread_s(1.0, service_s),
            work_sum_s / (self._departures + _PRIOR_DEPARTURES),
            (self._stayed_s + _PRIOR_DEPARTURES * service_s) / work_sum_s,
            max(1.0, self._departures),
        )

    def spread_s(self, departures: float, service_s: float) -> float:
        """Return one standard deviation of the time that this many departures take."""
        if not self.spread_is_measured:
            return sqrt(departures) * 0.5 / self.per_s(service_s, 1.0)
        return sqrt(departures * self._cycle_size()) * self._cycle.deviation
