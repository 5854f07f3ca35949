"""Little's law of one system, L = lambda x W, each side measured for itself.

L comes from a time integral of the number in the system, lambda from entries, W from completed stays. Work in flight at
both ends of a window counts by its ages: area = stays completed + ages at the end - ages at the start. It is an identity,
so what is left over is a leaked permit, a lost completion or a clock that jumped (Little 1961; Little and Graves 2008).
"""

from collections.abc import Sequence
from typing import NamedTuple

from millgate.core.instruments import StayInstrument
from millgate.core.settings import MINUTE_S
from millgate.core.snapshot import LittleReading, LittleSnapshot


class _Mark(NamedTuple):
    """All running totals at one instant."""

    at: float
    area: float
    entered: int
    completed: int
    stays_s: float
    ages_s: float


class LittlesLaw(StayInstrument):
    """Counts one system's entries, completions and occupancy; times are core seconds.

    The time integral of the number inside is the times of leaving less those of entering, plus now for each still in.
    Windows of all systems begin at the same instants, whole multiples of `MINUTE_S`, so that their readings add up.
    """

    def __init__(self, now: float) -> None:
        self.inside = 0
        self._area_at_zero = self._stays_s = self._entered_sum = 0.0
        self._slide_at = _begun(now) + MINUTE_S
        self._entered = self._completed = 0
        self._older = self._newer = _Mark(now, 0.0, 0, 0, 0.0, 0.0)

    def enter(self, now: float) -> None:
        """One attempt came in."""
        if now >= self._slide_at:
            self._slide(now)
        self.inside += 1
        self._area_at_zero -= now
        self._entered += 1
        self._entered_sum += now

    def leave(self, now: float) -> None:
        """One place is free again: the gate's side of the account."""
        if now >= self._slide_at:
            self._slide(now)
        self.inside -= 1
        self._area_at_zero += now

    def stayed(self, now: float, entered_at: float) -> None:
        """One attempt that came in at `entered_at` is through: the attempt's side of the account."""
        if now >= self._slide_at:
            self._slide(now)
        self._completed += 1
        self._stays_s += now - entered_at
        self._entered_sum -= entered_at

    def read(self, now: float) -> LittleReading:
        """Return L, lambda, W and the residual of the current window; changes nothing."""
        end, start = self._mark(now), self._marks(now)[0]
        window_s, area = end.at - start.at, end.area - start.area
        completed, stays_s = end.completed - start.completed, end.stays_s - start.stays_s
        return LittleReading(
            window_s=window_s,
            mean_attempts=area / window_s if window_s > 0 else float(self.inside),
            entered_per_s=(end.entered - start.entered) / window_s if window_s > 0 else 0.0,
            completed=completed,
            mean_stay_s=stays_s / completed if completed else 0.0,
            residual=(area - stays_s - end.ages_s + start.ages_s) / area if area > 0 else 0.0,
        )

    def _slide(self, now: float) -> None:
        self._older, self._newer = self._marks(now)
        self._slide_at = _begun(now) + MINUTE_S

    def _marks(self, now: float) -> tuple[_Mark, _Mark]:
        """Return the marks of the last two instants that windows begin at; nothing has changed since they were due."""
        if now < self._slide_at:
            return self._older, self._newer
        begun = _begun(now)
        before = begun - MINUTE_S
        return (self._newer if before < self._slide_at else self._mark(before)), self._mark(begun)

    def _mark(self, at: float) -> _Mark:
        area = self._area_at_zero + self.inside * at
        ages_s = (self._entered - self._completed) * at - self._entered_sum
        return _Mark(at, area, self._entered, self._completed, self._stays_s, ages_s)


def total(lanes: Sequence[LittleSnapshot]) -> LittleSnapshot:
    """Return the readings of several lanes as those of one: L and lambda add up, W is the mean over all stays."""
    return LittleSnapshot(
        _together([lane.whole for lane in lanes]),
        _together([lane.queue for lane in lanes]),
        _together([lane.engine for lane in lanes]),
    )


def _together(readings: Sequence[LittleReading]) -> LittleReading:
    """Add up the readings of one part; a lane that is younger than the window was empty before."""
    window_s = max([each.window_s for each in readings], default=0.0)
    completed = sum([each.completed for each in readings], 0)
    if window_s == 0.0:
        inside = sum([each.mean_attempts for each in readings], 0.0)
        return LittleReading(0.0, inside, 0.0, completed, 0.0, 0.0)
    areas = [each.mean_attempts * each.window_s for each in readings]
    area, entered = sum(areas, 0.0), sum([each.entered_per_s * each.window_s for each in readings], 0.0)
    stays_s = sum([each.mean_stay_s * each.completed for each in readings], 0.0)
    unexplained = sum([each.residual * part for each, part in zip(readings, areas, strict=True)], 0.0)
    return LittleReading(
        window_s=window_s,
        mean_attempts=area / window_s,
        entered_per_s=entered / window_s,
        completed=completed,
        mean_stay_s=stays_s / completed if completed else 0.0,
        residual=unexplained / area if area > 0.0 else 0.0,
    )


def _begun(now: float) -> float:
    """Return the last instant that windows begin at."""
    return now - now % MINUTE_S
