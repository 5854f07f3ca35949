"""Engines that load adapters (LoRA): requests wait for the place and for the loading of theirs."""

from collections.abc import Iterable

from millgate.core.words import FailureKind, Sent
from millgate.engine.adapters import ADAPTER_LOAD_S, AdapterSlots, AdapterStart
from millgate.engine.profile import EngineProfile
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports
from millgate.sim.fleet import USUAL_ABORT_LAG_S, SimulatedFleet
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.world import World


class AdapterStation:
    """A station that runs requests for so many adapters at once."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        reports: Reports,
        profile: EngineProfile,
        adapters: AdapterSlots,
        abort_lag_s: float = USUAL_ABORT_LAG_S,
    ) -> None:
        self.name = name
        self._loop = loop
        self._reports = reports
        self._adapters = adapters
        self._abort_lag_s = abort_lag_s
        self._loading: dict[int, Job] = {}
        self._station = BatchedStation(
            name, loop, self, profile.step_model(), profile.limits(), abort_lag_s=abort_lag_s
        )

    def start(self, attempt: int, job: Job) -> None:
        """Start this attempt, once its adapter is loaded where it asks for one."""
        if not job.adapter:
            self._station.start(attempt, job)
            return
        self._loading[attempt] = job
        start = self._adapters.ask(job.adapter, attempt, self._loop.now)
        self._begin_later(() if start is None else (start,))

    def hang_up(self, attempt: int) -> None:
        """Let go of the adapter when the engine notices; of what waits for its adapter at once."""
        if self._loading.pop(attempt, None) is not None:
            self._leave(attempt)
            return
        self._station.hang_up(attempt)
        self._loop.at(self._loop.now + self._abort_lag_s, self._leave, attempt, ENGINES)

    def produced(self, attempt: int) -> int:
        """Output tokens made so far."""
        return self._station.produced(attempt)

    def read(self) -> GaugeReading:
        """Return the gauges; what waits for an adapter waits."""
        seen = self._station.read()
        return seen._replace(waiting=seen.waiting + len(self._loading))

    def totals(self) -> EngineTotals:
        """Return tokens computed."""
        return self._station.totals()

    # ---- what the engine reports

    def first_token(self, attempt: int) -> None:
        """Pass on."""
        self._reports.first_token(attempt)

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """Let go of the adapter, and pass on."""
        self._leave(attempt)
        self._reports.finished(attempt, output_tokens, cached_tokens)

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """Let go of the adapter, and pass on."""
        self._leave(attempt)
        self._reports.failed(attempt, kind, sent, hint_s)

    # ---- adapters

    def _leave(self, attempt: int) -> None:
        """Forget an attempt; others may have waited for the place of its adapter."""
        self._begin_later(self._adapters.leave(attempt, self._loop.now))

    def _begin_later(self, starts: Iterable[AdapterStart]) -> None:
        for start in starts:
            self._loop.at(start.at_s, self._begin, start.key, ENGINES)

    def _begin(self, attempt: int) -> None:
        """Start an attempt whose adapter is loaded, if its client is still there."""
        job = self._loading.pop(attempt, None)
        if job is not None:
            self._station.start(attempt, job)


def populate(world: World, fleet: SimulatedFleet, max_loras: int) -> None:
    """Put every engine of a fleet into the world, each with places for so many adapters."""
    for name, profile in fleet.profiles.items():
        slots = AdapterSlots(max_loras, ADAPTER_LOAD_S)
        world.add_station(AdapterStation(name, world.loop, world, profile, slots))
