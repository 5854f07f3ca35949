"""Everything that watches a gateway's attempts, built together: distributions, recorded decisions, the log."""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from millgate import __version__
from millgate.observe.attempt_log import AttemptLog
from millgate.observe.explanation import ExplainedAttempt, retell
from millgate.observe.refusals import Refusals
from millgate.observe.ring import KEPT_ATTEMPTS, Ring
from millgate.observe.step_accounting import Defer, StepAccounting
from millgate.observe.tracing import TraceExporter, Traces, TracingSettings
from millgate.observe.traffic import Traffic
from millgate.observe.traffic_records import TrafficSnapshot


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """`log_attempts` is a file, `-` for standard output, None for no log; `kept_attempts` 0 keeps none for `why`, no `tracing` makes no spans."""

    log_attempts: str | None = None
    kept_attempts: int = KEPT_ATTEMPTS
    tracing: TracingSettings | None = None


class Observers:
    """Watches through `witness`, an observer of the driver, until `close`; raises OSError where the log cannot be opened.

    `boot` begins the ids that the door makes, `first_lane` takes what names none, `tenants` are the configured ones. It
    is one of so many `workers`. `ring` and `refusals` are current after `settle`, which `defer` has called within a
    tenth of a second; without it the last attempt before a silence is read, and logged, at the next look or event.
    """

    def __init__(
        self,
        settings: ObserverSettings,
        *,
        boot: str = "",
        first_lane: str = "",
        tenants: Iterable[str] = (),
        workers: int = 1,
        defer: Defer | None = None,
    ) -> None:
        names = tuple(tenants)
        path = settings.log_attempts
        self._traffic = Traffic(names, workers)
        self.ring = Ring(boot, settings.kept_attempts)
        self.refusals = Refusals()
        self._log = (
            AttemptLog(path, boot=boot, first_lane=first_lane, tenants=names) if path is not None else None
        )
        self.traces = _traces(settings.tracing, first_lane)
        self.accounting = StepAccounting(
            self.ring, self._traffic, self.refusals, self._log, first_lane, defer, self.traces
        )
        self.settle = self.accounting.settle
        """Does the books of everything that has been seen."""

    @property
    def lines_dropped(self) -> int:
        """How many lines of the log were lost."""
        return 0 if self._log is None else self._log.dropped

    @property
    def traces_dropped(self) -> int:
        """How many attempts' spans were lost."""
        return 0 if self.traces is None else self.traces.dropped

    def traffic(self) -> TrafficSnapshot:
        """Return the distributions as they are now."""
        self.settle()
        return self._traffic.read()

    def adopt(self, lanes: Sequence[str], tenants: Collection[str], engines: Collection[str]) -> None:
        """Name by these what happens from now on, and forget how it went in lanes and on engines that are no longer there."""
        self.settle()
        first_lane = lanes[0]
        self._traffic.places_are(lanes, engines)
        self._traffic.tenants_are(tenants)
        self.accounting.first_lane = first_lane
        if self._log is not None:
            self._log.adopt(first_lane, tenants)
        if self.traces is not None:
            self.traces.first_lane = first_lane

    def why(self, wanted: str) -> list[ExplainedAttempt]:
        """Return what was decided about the attempts under this id, newest first, in sentences; none when not kept."""
        self.settle()
        epoch_offset_s = time.time() - time.monotonic()
        return [retell(recorded, epoch_offset_s) for recorded in self.ring.find(wanted)]

    def reopen(self) -> None:
        """Open the log's file anew: its old name may have been moved away."""
        if self._log is not None:
            self._log.reopen()

    def close(self) -> None:
        """Write what waits, within about a second, and stop."""
        self.settle()
        if self._log is not None:
            self._log.close()
        if self.traces is not None:
            self.traces.close()


def _traces(settings: TracingSettings | None, first_lane: str) -> Traces | None:
    if settings is None:
        return None
    return Traces(TraceExporter(settings, __version__), settings.share, first_lane)
