"""`python -m lab.replicas [SEEDS [FIRST]]`: replicas of one gate in virtual time: real governors, renewers and ledger over one engine, clients that return to any of them.

Only the network and the engine are simulated. The store loses requests and answers; a replica that is killed takes its work with it,
and another starts in its place. Each client brings its ticket wherever it comes.
"""

import sys
from collections.abc import Coroutine
from math import inf
from random import Random
from typing import Any, NamedTuple

from lab.engines.plain import PacedStation
from lab.interpreted import is_compiled, run_interpreted
from lab.knobs import asked_seeds
from millgate.cluster.contract import Granted, Renewal, StoreUnavailableError
from millgate.cluster.leases import Leased, LeaseRenewer, LeaseSettings, Shared
from millgate.cluster.ledger import LeaseLedger
from millgate.core.decisions import Admit, Decision, Yield
from millgate.core.events import Arrived, EngineProgress, Event, LeaseGranted
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings, TenantSettings
from millgate.core.tickets.appointment import kept_within_s
from millgate.core.words import DeadlineFrom
from millgate.gateway.cluster import holdings_of, lease_of, lines_of
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import Honouring
from millgate.sim.driver import VirtualDriver
from millgate.sim.engines.watch import POLL_S, GaugeWatch
from millgate.sim.laws import constant, exponential
from millgate.sim.loop import WATCHES, Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

CAP, REPLICAS, MEAN_S, PACE_S = 16, 4, 2.0, 0.02
HOT_SHARE, HOT_FOR_S, HORIZON_S, SETTLED_S = 0.7, 20.0, 300.0, 30.0
_NAME = "replica-"
_FIRST = f"{_NAME}1"
_LOST, _KILL_EVERY_S, _RETURNS_S = 0.05, 30.0, 150.0
_FEW = 4


class Setup(NamedTuple):
    """What is varied: faults are `kill_every_s`, `lost`, and `away`: from when until when the first replica does not reach the store.

    Where it is `capped` the one tenant may have so many streams, of an engine with many more.
    """

    replicas: int = REPLICAS
    lease: LeaseSettings = LeaseSettings()
    load: float = 1.1
    max_queue: int | None = None
    deadline_s: float = 5.0
    kill_every_s: float = inf
    lost: float = 0.0
    hot_share: float = HOT_SHARE
    horizon_s: float = HORIZON_S
    away: tuple[float, float] = (inf, inf)
    capped: int = 0


class Result(NamedTuple):
    """What a run showed: answers, the engine's peak, hints kept, and the share of pairs that were served in the order of their coming."""

    finished: float
    peak: int
    kept: float
    ordered: float
    wait_s: float


class LossyStore:
    """The ledger behind a network that loses a share of the requests, and of the answers, and all of one replica while that is away."""

    def __init__(self, loop: Loop, setup: Setup, dice: Random) -> None:
        self._loop, self._lost, self._away, self._dice = loop, setup.lost, setup.away, dice
        self._ledger = LeaseLedger(may_have_lost=False)

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew, or be lost on the way."""
        if renewal.replica == _FIRST and self._away[0] <= self._loop.now < self._away[1]:
            raise StoreUnavailableError("cut off")
        self._may_lose()
        granted = self._ledger.renew(renewal, self._loop.now)
        self._may_lose()
        return granted

    async def leave(self, replica: str, epoch: int) -> None:
        """End this replica's lease."""
        self._ledger.leave(replica, epoch)

    async def close(self) -> None:
        """End nothing."""

    def _may_lose(self) -> None:
        if self._dice.random() < self._lost:
            raise StoreUnavailableError("lost")


class Core:
    """A governor that decides until it is killed."""

    def __init__(self, settings: Settings, now: float) -> None:
        self.governor = build_governor(settings, now)
        self.is_alive = True

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Decide; the dead decide nothing."""
        return self.governor.handle(event, now) if self.is_alive else ()

    def next_wake(self) -> float | None:
        """Return when a Tick is due."""
        return self.governor.next_wake() if self.is_alive else None


class Replica:
    """One run of one gate: its core, and its renewer where it shares."""

    def __init__(self, world: "ClusterWorld", name: str, settings: Settings, offset_s: float) -> None:
        self._world, self._loop = world, world.loop
        self.core = Core(settings, self._loop.now)
        self.driver = VirtualDriver(self.core, self._loop, world)
        self._renewer: LeaseRenewer | None = None
        self._gauges: GaugeWatch | None = None
        self._replicas = 0
        if world.setup.replicas > 1:
            self._renewer = LeaseRenewer(
                world.store, name, self._collect, self._apply, lambda _: None, self._time, world.setup.lease
            )
            self.driver.post(LeaseGranted(inf))
            self._loop.at(self._loop.now + offset_s * world.setup.lease.renewal_s, self._renew, None)
        self._loop.at(self._loop.now + offset_s * POLL_S, self._watch, None, WATCHES)

    def _time(self) -> float:
        return self._loop.now

    def _watch(self, _nothing: None) -> None:
        stations = list(self._world.stations.values())
        self._gauges = GaugeWatch(self._loop, stations, self.driver.post, lambda: not self.core.is_alive)

    def _collect(self) -> Shared:
        use = self.core.governor.shared_use(self._loop.now)
        return Shared(holdings_of(use), lines_of(use))

    def _apply(self, leased: Leased) -> None:
        if leased.replicas < self._replicas and self._gauges is not None:
            for station in self._world.stations.values():
                self._gauges.hung_up(station)
        self._replicas = leased.replicas
        self.driver.post(lease_of(leased.shares, leased.replicas, leased.ends_at, leased.lines))

    def _renew(self, _nothing: None) -> None:
        if self.core.is_alive and self._renewer is not None:
            _run(self._renewer.renew())
            self._loop.at(self._loop.now + self._renewer.pause_s, self._renew, None)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the store of a simulation answers at once")


class ClusterWorld(World):
    """One engine behind several gates; every event goes to the gate that has its attempt."""

    def __init__(self, setup: Setup, seed: int, recorder: Recorder, settings: Settings) -> None:
        loop = Loop()
        self.setup, self.settings, self.recorder = setup, settings, recorder
        self.dice = Random(seed + 1)
        self.store = LossyStore(loop, setup, self.dice)
        self._at: dict[int, Replica] = {}
        self._told: dict[int, tuple[float, float]] = {}
        self._hints: dict[int, float] = {}
        self._started = 0
        super().__init__(build_governor(settings, 0.0), loop, recorder)
        self.driver = self  # type: ignore[assignment]
        self.add_station(PacedStation("engine", loop, self, 0.0, PACE_S))
        self.replicas = [self._start() for _ in range(setup.replicas)]
        self.peak = self.finished_count = self.returns = self.kept = 0
        self.admissions: list[tuple[float, float]] = []
        if setup.kill_every_s < inf:
            loop.at(setup.kill_every_s, self._kill, None)

    def _start(self) -> Replica:
        self._started += 1
        return Replica(self, f"{_NAME}{self._started}", self.settings, self.dice.random())

    def post(self, *events: Event) -> None:
        """Hand each event to the gate that it belongs to."""
        for event in events:
            if isinstance(event, Arrived):
                replica = self._at[event.attempt] = self._choose()
                replica.driver.post(self._with_ticket(event))
            elif isinstance(event, EngineProgress):
                self._at[event.streams[0].attempt].driver.post(event)
            else:
                replica = self._at[event.attempt]  # type: ignore[union-attr]
                if replica.core.is_alive:
                    replica.driver.post(event)

    def _choose(self) -> Replica:
        hot = int(self.loop.now / HOT_FOR_S) % len(self.replicas)
        is_hot = self.dice.random() < self.setup.hot_share
        return self.replicas[hot if is_hot else self.dice.randrange(len(self.replicas))]

    def _with_ticket(self, event: Arrived) -> Arrived:
        visit = self._visits[event.attempt]
        told = self._told.pop(visit.number, None)
        if told is None or self.setup.replicas == 1:
            return event
        return event._replace(first_seen=visit.first_at, due_at=told[0], hint_s=told[1])

    def yielded(self, decision: Yield) -> None:
        """Its client has a ticket from now on."""
        visit = self._visits[decision.attempt]
        if visit.hinted:
            visit.hinted = False
            self.returns += 1
        self._hints[visit.number] = decision.retry_after_s
        self._told[visit.number] = (self.loop.now + decision.retry_after_s, decision.retry_after_s)
        super().yielded(decision)

    def admitted(self, decision: Admit) -> None:
        """Note the order, and whether its promise was kept."""
        visit = self._visits[decision.attempt]
        if visit.hinted:
            visit.hinted = False
            self.returns += 1
            self.kept += decision.waited_s <= kept_within_s(self._hints[visit.number])
        self.admissions.append((visit.first_at, self.loop.now))
        super().admitted(decision)
        running = sum(station.read().running for station in self.stations.values())
        self.peak = max(self.peak, running)

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """Count it."""
        self.finished_count += attempt in self._visits
        super().finished(attempt, output_tokens, cached_tokens)
        self._at.pop(attempt, None)

    def _kill(self, _nothing: None) -> None:
        counts = [sum(at is each for at in self._at.values()) for each in self.replicas]
        dead = self.replicas[counts.index(max(counts))]
        dead.core.is_alive = False
        self.replicas[self.replicas.index(dead)] = self._start()
        for attempt in [each for each, at in self._at.items() if at is dead]:
            self._at.pop(attempt)
            visit = self._visits.get(attempt)
            if visit is not None:
                if visit.station is not None:
                    visit.station.hang_up(attempt)
                self._forget(visit)
                visit.user.failed(visit)
        self.loop.at(self.loop.now + self.setup.kill_every_s, self._kill, None)


def play(setup: Setup, seed: int) -> Result:
    """Play one seed; with one replica there is no store, and faults leave it alone."""
    lane = LaneSettings(
        "lane",
        ttft_slo_s=setup.deadline_s,
        deadline_s=setup.deadline_s,
        deadline_from=DeadlineFrom.FIRST_ATTEMPT,
        max_queue=setup.max_queue,
    )
    prior = ServicePrior(0.01, 0.0, PACE_S, 0.0)
    engine = EngineSettings("engine", 16 * CAP if setup.capped else CAP, prior=prior)
    tenants = (TenantSettings("", max_inflight=setup.capped),) if setup.capped else ()
    settings = Settings((lane,), (engine,), tenants=tenants)
    if setup.replicas == 1:
        setup = setup._replace(kill_every_s=inf, lost=0.0)
    streams = Streams(seed)
    recorder = Recorder((lane,), from_s=SETTLED_S)
    world = ClusterWorld(setup, seed, recorder, settings)
    lengths = Lengths(constant(100.0), exponential(MEAN_S / PACE_S))
    arrivals = steady(setup.load * (setup.capped or CAP) / MEAN_S, streams)
    crowd = Crowd(world, Manners(retry_behaviour=Honouring()), streams)
    OpenLoop(world, crowd, jobs(arrivals, lengths, streams, until_s=setup.horizon_s))
    world.loop.run(setup.horizon_s)
    return Result(
        world.finished_count,
        world.peak,
        world.kept / world.returns if world.returns else 1.0,
        _ordered(world.admissions),
        sum(at - first for first, at in world.admissions) / max(1, len(world.admissions)),
    )


def _ordered(admissions: list[tuple[float, float]], apart_s: float = 5.0) -> float:
    """Return which share of the pairs that came within `apart_s` of each other, and more than half a second apart, went in that order."""
    came = sorted(admissions)
    right = pairs = 0
    for index, (first, at) in enumerate(came):
        for later_first, later_at in came[index + 1 :]:
            if later_first - first > apart_s:
                break
            if later_first - first > 0.5:
                pairs += 1
                right += at < later_at
    return right / pairs if pairs else 1.0


def leases(seeds: range) -> str:
    """Return goodput and order against one gate, over lease lengths and faults, as a table of Markdown."""
    rows = ["| lease | renewal | faults | goodput / one gate | peak of 16 |", "|---|---|---|---|---|"]
    alone = _mean(Setup(1), seeds).finished
    for lease_s, renewal_s in ((1.0, 0.25), (2.0, 0.25), (2.0, 0.5), (4.0, 0.5)):
        shared = Setup(lease=LeaseSettings(lease_s, renewal_s))
        for faults, setup in (
            ("none", shared),
            ("a twentieth lost", shared._replace(lost=_LOST)),
            ("and a replica killed every 30 s", shared._replace(lost=_LOST, kill_every_s=_KILL_EVERY_S)),
        ):
            run = _mean(setup, seeds)
            goodput = f"{run.finished / alone:.3f} | {run.peak:.0f}"
            rows.append(f"| {lease_s:g} s | {renewal_s * 1000:.0f} ms | {faults} | {goodput} |")
    return "\n".join(rows)


def returns(seeds: range, capped: int = 0) -> str:
    """Return how clients fare that are told to come back, for the engine or for their tenant's cap, and come to any replica, as a table of Markdown."""
    rows = [
        "| gates | goodput / one gate | promises kept | pairs in order | mean wait |",
        "|---|---|---|---|---|",
    ]
    one = Setup(1, max_queue=0, deadline_s=60.0, load=1.3, horizon_s=_RETURNS_S, capped=capped)
    alone = _mean(one, seeds).finished
    for name, setup in (
        ("one", one),
        ("four, clients come to any", one._replace(replicas=REPLICAS, hot_share=0.0)),
        ("four, seven in ten at one, which changes", one._replace(replicas=REPLICAS)),
        ("and a twentieth of renewals and answers lost", one._replace(replicas=REPLICAS, lost=_LOST)),
    ):
        run = _mean(setup, seeds)
        told = f"{run.kept:.3f} | {run.ordered:.3f} | {run.wait_s:.1f} s"
        rows.append(f"| {name} | {run.finished / alone:.3f} | {told} |")
    return "\n".join(rows)


def _mean(setup: Setup, seeds: range) -> Result:
    runs, count = [play(setup, seed) for seed in seeds], len(seeds)
    return Result(
        sum(run.finished for run in runs) / count,
        max(run.peak for run in runs),
        sum(run.kept for run in runs) / count,
        sum(run.ordered for run in runs) / count,
        sum(run.wait_s for run in runs) / count,
    )


if __name__ == "__main__":
    tried = asked_seeds(sys.argv[1:], "python -m lab.replicas", __doc__, seeds=3, first=0)
    if is_compiled():
        sys.exit(run_interpreted(sys.argv[1:], "lab.replicas"))
    print(f"{returns(tried)}\n\n{returns(tried, CAP)}\n\n{returns(tried, _FEW)}\n\n{leases(tried)}")
