"""A door that refuses by chance, before any engine."""

from millgate.core.words import FailureKind, Sent
from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports, Station
from millgate.sim.jobs import Job
from millgate.sim.randomness import Draws


class Refusing:
    """A station whose door refuses a share of what it is sent; the share may change at any time."""

    def __init__(self, inner: Station, reports: Reports, dice: Draws, share: float = 0.0) -> None:
        self.name = inner.name
        self.inner = inner
        self.share = share
        self._reports = reports
        self._dice = dice

    def start(self, attempt: int, job: Job) -> None:
        """Refuse with a 503 by chance, or pass on."""
        if self.share > 0.0 and self._dice.next() < self.share:
            self._reports.failed(attempt, FailureKind.STATUS, Sent.REQUEST, None)
        else:
            self.inner.start(attempt, job)

    def hang_up(self, attempt: int) -> None:
        """Pass on."""
        self.inner.hang_up(attempt)

    def produced(self, attempt: int) -> int:
        """Pass on."""
        return self.inner.produced(attempt)

    def read(self) -> GaugeReading:
        """Pass on."""
        return self.inner.read()

    def totals(self) -> EngineTotals:
        """Pass on."""
        return self.inner.totals()
