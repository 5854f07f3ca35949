"""What goes wrong with an engine, on a timetable: loss, drift, stall, and storms of refusals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millgate.core.events import EngineDown, EngineUp, Event
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import EngineProfile, scaled
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports, Station
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.randomness import Draws

# A gateway notices a dead engine by its next failed request or its next health check (once a second).
NOTICE_S = 1.0
_DRIFT_STEPS = 10


@dataclass(frozen=True, slots=True)
class EngineTrouble:
    """One trouble of one engine, from `at_s` for `for_s`.

    `loss` crashes it and brings it back; `stall` lets it stand still; `drift` slows it down to `factor` times its
    step times, in ten even steps, and leaves it there; `refusals` lets it refuse the share `factor` of what it is
    sent.
    """

    kind: Literal["loss", "stall", "drift", "refusals"]
    engine: str
    at_s: float
    for_s: float
    factor: float = 1.0


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


class Timetable:
    """Puts troubles on the loop and tells the governor what its health checks would."""

    def __init__(self, loop: Loop, post: Callable[[Event], None]) -> None:
        self._loop = loop
        self._post = post

    def put(
        self, trouble: EngineTrouble, station: BatchedStation, door: Refusing, profile: EngineProfile
    ) -> None:
        """Let this trouble happen to this station behind this door."""
        begin, end = trouble.at_s, trouble.at_s + trouble.for_s
        at = self._loop.at
        if trouble.kind == "loss":
            at(begin, lambda _: station.crash(), None, ENGINES)
            at(begin + NOTICE_S, self._post, EngineDown(station.name), ENGINES)
            at(end, lambda _: station.restart(), None, ENGINES)
            at(end + NOTICE_S, self._post, EngineUp(station.name), ENGINES)
        elif trouble.kind == "stall":
            at(begin, station.stall, trouble.for_s, ENGINES)
        elif trouble.kind == "drift":
            for step in range(1, _DRIFT_STEPS + 1):
                share = step / _DRIFT_STEPS
                model = scaled(profile, 1.0 / (1.0 + share * (trouble.factor - 1.0))).step_model()
                at(begin + share * trouble.for_s, station.change_model, model, ENGINES)
        else:
            at(begin, lambda _: setattr(door, "share", trouble.factor), None, ENGINES)
            at(end, lambda _: setattr(door, "share", 0.0), None, ENGINES)
