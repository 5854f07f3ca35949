"""A queue to be held against a formula: exponential arrivals, servers behind the real governor, tallies by batch.

Every number is kept by batches of arrivals in their order. So a standard error can be had from one long run
in spite of neighbours being alike (batch means). The governor is the one that the gateway runs, with deadlines
and predicted waits set wide open: what is tested is the machinery of cap, queue and order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lab.books import unread_books
from lab.closed_loop import ClosedLoop
from lab.engines.plain import DelayStation, SharedStation
from lab.engines.refusing import Refusing
from millgate.core.decisions import Admit
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import DeadlineFrom, Outcome
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import NEVER, RetryBehaviour
from millgate.sim.engines.contract import Station
from millgate.sim.jobs import Job
from millgate.sim.laws import Law, exponential
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import steady
from millgate.sim.visit import Visit
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

BATCHES = 30
# The first batch is longer and thrown away: it begins with an empty system.
_WARM_UP_BATCHES = 2
_FOREVER_S = 1e9

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TruthQueue:
    """One queue: arrivals per second, the law of service, servers in all over `engines` equal engines.

    `max_queue` bounds how many wait (0: none). `shared` lets one server be shared by all instead. `mark_s` is the
    time beyond which waits and sojourns are counted. The share `failure` of what engines are sent is refused by
    them. With `users`, a fixed number of them thinks and asks in turn instead of arriving from outside.
    """

    rate: float
    service: Law = field(default_factory=lambda: exponential(1.0))
    servers: int = 1
    engines: int = 1
    max_queue: int | None = None
    patience: Law | None = None
    retry_behaviour: RetryBehaviour = NEVER
    shared: bool = False
    mark_s: float = 1.0
    failure: float = 0.0
    users: int = 0
    think: Law | None = None


class Tally:
    """Sums by batch of arrivals; the warm-up is not in it."""

    def __init__(self, arrivals: int) -> None:
        self.size = ceil(arrivals / BATCHES)
        self._sums: dict[str, list[float]] = {}

    def add(self, name: str, number: int, value: float = 1.0) -> None:
        """Add to the batch that visit `number` (from 1) belongs to."""
        batch = (number - 1) // self.size - _WARM_UP_BATCHES
        if 0 <= batch < BATCHES:
            sums = self._sums.get(name)
            if sums is None:
                sums = self._sums[name] = [0.0] * BATCHES
            sums[batch] += value

    def column(self, name: str) -> Column:
        """Return the sums of one name by batch, zeros where nothing was added."""
        return np.array(self._sums.get(name, [0.0] * BATCHES))


class _Watcher:
    """Listens to one run and fills its tally."""

    def __init__(self, queue: TruthQueue, tally: Tally) -> None:
        self._queue = queue
        self._tally = tally
        self._loop: Loop | None = None
        self._last_at = 0.0
        self._needs: dict[int, float] = {}
        self._then: Callable[[Visit, Outcome | None], None] | None = None

    def watch(self, world: World, crowd: Crowd) -> None:
        """Hook into a world."""
        self._loop = world.loop
        world.on_admit = self._admitted
        self._then = crowd.on_over
        crowd.on_over = self._over

    def came(self, number: int, at_s: float) -> None:
        """An arrival, in order."""
        self._tally.add("arrivals", number)
        self._tally.add("gap", number, at_s - self._last_at)
        self._last_at = at_s

    def need(self, attempt: int, service_s: float) -> None:
        """A service time was drawn (attempts are visits where no client returns)."""
        self._tally.add("service", attempt, service_s)
        self._tally.add("service2", attempt, service_s * service_s)
        self._tally.add("served", attempt)
        if self._queue.shared:
            self._needs[attempt] = service_s

    def _admitted(self, visit: Visit, decision: Admit) -> None:
        add, number = self._tally.add, visit.number
        waited_s = decision.waited_s if visit.attempts == 1 else self._now - visit.first_at
        add("wait", number, waited_s)
        if waited_s > 0.0:
            add("waited", number)
        if waited_s > self._queue.mark_s:
            add("waited beyond", number)
        if visit.attempts > 1:
            add("returned", number)

    def _over(self, visit: Visit, outcome: Outcome | None) -> None:
        self._count_end(visit, outcome)
        if self._then is not None:
            self._then(visit, outcome)

    def _count_end(self, visit: Visit, outcome: Outcome | None) -> None:
        add, number = self._tally.add, visit.number
        add("attempts", number, visit.attempts)
        if outcome is not None:
            add(outcome.value, number)
            return
        sojourn_s = self._now - visit.first_at
        add("answered", number)
        add("sojourn", number, sojourn_s)
        if sojourn_s > self._queue.mark_s:
            add("stayed beyond", number)
        if self._queue.shared:
            add("slowdown", number, sojourn_s / self._needs.pop(number))

    @property
    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.now


def observe(queue: TruthQueue, seed: int, arrivals: int) -> Tally:
    """Run this queue for as many counted arrivals, until every customer has left."""
    streams = Streams(seed)
    loop = Loop()
    tally = Tally(arrivals)
    watcher = _Watcher(queue, tally)
    world = World(build_governor(_wide_open(queue), 0.0), loop, unread_books(), remembers=False)
    for number in range(queue.engines):
        world.add_station(_station(queue, number, world, streams, watcher))
    crowd = Crowd(world, Manners(queue.patience, queue.retry_behaviour), streams)
    jobs = _jobs(queue, streams, tally.size * (BATCHES + _WARM_UP_BATCHES), watcher)
    if queue.think is None:
        OpenLoop(world, crowd, jobs)
    else:
        ClosedLoop(world, crowd, jobs, queue.users, streams.draws("think", queue.think.sample), _FOREVER_S)
    watcher.watch(world, crowd)
    loop.run()
    return tally


def _station(queue: TruthQueue, number: int, world: World, streams: Streams, watcher: "_Watcher") -> Station:
    name = f"server-{number}"
    service = streams.draws("service", queue.service.sample, number)
    if queue.shared:
        return SharedStation(name, world.loop, world, service, watcher.need)
    plain = DelayStation(name, world.loop, world, service, watcher.need, announces=queue.patience is not None)
    if not queue.failure:
        return plain
    dice = streams.draws("refusals", lambda dice, count: dice.random(count), number)
    return Refusing(plain, world, dice, queue.failure)


def _jobs(queue: TruthQueue, streams: Streams, total: int, watcher: _Watcher) -> Iterator[Job]:
    times = repeat(0.0) if queue.users else steady(queue.rate, streams)
    for number, at_s in zip(range(1, total + 1), times, strict=False):
        watcher.came(number, at_s)
        yield Job(at_s, 1, 1)


def _wide_open(queue: TruthQueue) -> Settings:
    lane = LaneSettings(
        "truth",
        ttft_slo_s=_FOREVER_S,
        deadline_s=_FOREVER_S,
        deadline_from=DeadlineFrom.ATTEMPT,
        max_queue=queue.max_queue,
    )
    each = queue.servers // queue.engines
    engines = tuple(EngineSettings(f"server-{number}", each) for number in range(queue.engines))
    return Settings((lane,), engines)
