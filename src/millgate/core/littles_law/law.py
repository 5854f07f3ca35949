"""Little's law as an instrument: L = lambda x W, each side measured for itself.

L comes from a time integral of the number in the system, lambda from admissions, W from completed stays. Work in flight at
both ends of a window counts by its ages: area = stays completed + ages at the end - ages at the start. It is an identity,
so what is left over is a leaked permit, a lost completion or a clock that jumped (Little 1961; Little and Graves 2008).
"""

from typing import Final, NamedTuple

from millgate.core.snapshot import LittleSnapshot

# Readings cover one to two of these. Edge errors fade with window / W; ten stays is the rule of reference texts.
HALF_WINDOW_S: Final = 60.0


class _Mark(NamedTuple):
    """All running totals at one instant."""

    at: float
    area: float
    admitted: int
    completed: int
    stays_s: float
    ages_s: float


class LittlesLaw:
    """Counts one system's admissions, completions and occupancy; times are core seconds.

    The time integral of the number running is the times of leaving less those of entering, plus now for each still in.
    """

    def __init__(self, now: float) -> None:
        self.running = 0
        self._area_at_zero = self._stays_s = self._entered_sum = 0.0
        self._slide_at = now + HALF_WINDOW_S
        self._admitted = self._completed = 0
        self._older = self._newer = _Mark(now, 0.0, 0, 0, 0.0, 0.0)

    def enter(self, now: float) -> None:
        """One attempt was admitted."""
        if now >= self._slide_at:
            self._slide(now)
        self.running += 1
        self._area_at_zero -= now
        self._admitted += 1
        self._entered_sum += now

    def leave(self, now: float) -> None:
        """One permit has ended: the gate's side of the account."""
        if now >= self._slide_at:
            self._slide(now)
        self.running -= 1
        self._area_at_zero += now

    def stayed(self, now: float, entered_at: float) -> None:
        """One attempt admitted at `entered_at` is over: the attempt's side of the account."""
        self._completed += 1
        self._stays_s += now - entered_at
        self._entered_sum -= entered_at

    def read(self, now: float) -> LittleSnapshot:
        """Return L, lambda, W and the residual of the current window; changes nothing."""
        end, start = self._mark(now), self._older
        window_s, area = end.at - start.at, end.area - start.area
        completed, stays_s = end.completed - start.completed, end.stays_s - start.stays_s
        return LittleSnapshot(
            window_s=window_s,
            mean_running=area / window_s if window_s > 0 else float(self.running),
            admitted_per_s=(end.admitted - start.admitted) / window_s if window_s > 0 else 0.0,
            mean_stay_s=stays_s / completed if completed else 0.0,
            residual=(area - stays_s - end.ages_s + start.ages_s) / area if area > 0 else 0.0,
        )

    def _slide(self, now: float) -> None:
        self._older = self._newer
        self._newer = self._mark(now)
        self._slide_at = now + HALF_WINDOW_S

    def _mark(self, now: float) -> _Mark:
        area = self._area_at_zero + self.running * now
        ages_s = (self._admitted - self._completed) * now - self._entered_sum
        return _Mark(now, area, self._admitted, self._completed, self._stays_s, ages_s)
