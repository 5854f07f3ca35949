"""How fast does a full gate empty: departures per second, measured only while it is full.

A quiet system completes at its arrival rate, which says nothing about its capacity; only the time during which
every permit was out counts. Prior and floor are streams / E[service] (Little's law on the full gate), with the
number of streams that the gate really ran while full: a gate whose KV meter binds is full at fewer streams than
its limit.
"""

from math import sqrt

from headgate.core.measure.ewma import Ewma

# The prior counts as this many departures, so that the measured rate leads after about a dozen.
_PRIOR_DEPARTURES = 4.0
# Departures and full time fade over this many departures: some batches' worth, long enough to average lengths.
_MEMORY_DEPARTURES = 200.0


class DrainRate:
    """Departures per second of one full gate, with the spread of the gaps between them."""

    __slots__ = ("_departures", "_full_since", "_full_time_s", "_gap", "_streams")

    def __init__(self, limit: int) -> None:
        self._departures = 0.0
        self._full_time_s = 0.0
        self._full_since: float | None = None
        self._gap = Ewma(0.0, memory=_MEMORY_DEPARTURES, prior_samples=0.0)
        self._streams = Ewma(float(limit), memory=50.0, prior_samples=4.0)

    @property
    def full_streams(self) -> float:
        """How many streams run while the gate is full, on average; the limit until that was seen."""
        return self._streams.mean

    @property
    def is_full(self) -> bool:
        """Whether the gate has been full since its last departure."""
        return self._full_since is not None

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
        self._gap.add(gap_s)

    def per_s(self, service_s: float) -> float:
        """Return departures per second of the full gate, given the expected service time of one permit."""
        floor = self._streams.mean / max(service_s, 1e-6)
        time_s = self._full_time_s + _PRIOR_DEPARTURES / floor
        return max(floor, (self._departures + _PRIOR_DEPARTURES) / time_s)

    def spread_s(self, departures: float, service_s: float) -> float:
        """Return one standard deviation of the time that this many departures take."""
        if self._gap.samples < _PRIOR_DEPARTURES:
            return sqrt(departures) * 0.5 / self.per_s(service_s)
        return sqrt(departures) * self._gap.deviation
