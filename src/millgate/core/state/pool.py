"""Engines that share work, the routes through them, and what waits for each: pools, routes and queues.

A *route* is the set of engines that serve a model. Work waits by lane and route, so that a full engine stops only what needs it.
A *pool* is a set of engines that share work: routes that overlap are one pool. Permits come free by pool, so expected waits and
appointments are counted by pool too. With one pool, the usual case, every question here is one attribute.
"""

from collections.abc import Iterable, Sequence
from math import floor, inf, log2
from typing import Final

from millgate.core.events import Arrived, OthersLine
from millgate.core.instruments import Flow, Instruments
from millgate.core.lanes import LaneShares
from millgate.core.limits.prefill_pace import Comings
from millgate.core.measure import ENOUGH, OUTLIER_RATIO, Ewma
from millgate.core.queues.base import Order, Queued
from millgate.core.queues.window import BatchWindow
from millgate.core.settings import LaneSettings
from millgate.core.state.capacity_forecast import CapacityForecast
from millgate.core.state.engine import Engine
from millgate.core.state.leg import may_be_two
from millgate.core.tickets import TOLERANCE_S
from millgate.core.tickets.appointments import Appointments

# What one outcome weighs over the permits that end during a hint, and the share of promises that may be broken. Of ten
# nine are to be kept within minutes, and the waits go on growing until of twenty one is broken. `python -m lab run
# hints`, 16 streams, 8 tenants, half of the users staying away, twice the capacity: 92 and 91 % kept, lengths known and
# not, at 0.6 % idle. With 0.6 and 0.03 it would be 97 and 95 %, and four streams before equal answers would idle a
# tenth of the time (`tests/lab/experiments/test_hints.py`).
_GAIN: Final = 0.4
_BROKEN_SHARE: Final = 0.05


class Overtaking:
    """The share by which waits are stretched where newcomers overtake, 0 to 1; `per_s` is how many permits a second end.

    A newcomer whose tenant has no appointment stands before clients that were already told a time, newcomers take the
    streams of clients that stay away, and small ones the memory that is left over. How many will come is not known. So
    waits are stretched until most clients that return on time are admitted, and less as soon as newcomers find a stream
    free while clients that were told to come later are away. An outcome weighs the less the more permits end during its
    hint, as the gain of an integrating controller falls with the delay of its loop (Ziegler and Nichols, 1942).
    """

    def __init__(self) -> None:
        self.share = 0.0

    def was_kept(self, hint_s: float, per_s: float) -> None:
        """Learn that a client that returned on time after this hint was admitted."""
        self._move(-_BROKEN_SHARE, hint_s, per_s)

    def was_broken(self, hint_s: float, per_s: float) -> None:
        """Learn that a client that returned on time after this hint was refused, or waited for too long."""
        self._move(1.0 - _BROKEN_SHARE, hint_s, per_s)

    def was_idle(self, line_s: float, per_s: float) -> None:
        """Learn that a newcomer found a stream free while a line of `line_s` was away."""
        self._move(-1.0, line_s, per_s)

    def _move(self, by: float, hint_s: float, per_s: float) -> None:
        # Shorter hints count as a second, or a few outcomes would move everything.
        share = self.share + _GAIN * by / (per_s * max(TOLERANCE_S, hint_s))
        self.share = min(max(0.0, share), 1.0)  # no wait is more than doubled


# Classes of size, four to a doubling, from a millisecond of an engine's time up to a quarter of an hour.
_CLASSES: Final = 80
_PER_DOUBLING: Final = 4.0
_SHORTEST_S: Final = 0.001
_log2: Final = log2  # compiled, a name from elsewhere is looked up each time it is used
# An estimate that rests on so many answers moves by a thirtieth with the next one, which is worth three seconds of age.
_FIRST_ANSWERS: Final = 32
# Arrivals are summed up over a second, and believed as the mean of so many seconds.
_MEMORY_S: Final = 30.0


class OfferedWork:
    """The engine time that arrives a second in one queue, by size of the request; seconds of an engine's own time.

    Where the shortest goes first, shorter work that arrives during a wait goes before it too: behind W seconds of work it waits
    W / (1 - load), load being the part of the engine's time that shorter work asks for (the mean-value law of non-preemptive
    priorities: Cobham 1954; for shortest job first Phipps 1956). Where that asks for all of it, there is no such time.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._second = [0.0] * _CLASSES
        self._rates = [0.0] * _CLASSES
        self._below = [0.0] * _CLASSES
        self._served = Ewma(0.0, prior_samples=0.0)

    def is_over(self, now: float) -> bool:
        """Return whether it is time to `learn` what has arrived."""
        return now - self._since >= 1.0

    def arrived(self, work_s: float) -> None:
        """Count a new request of this size."""
        self._second[_class_of(work_s)] += work_s

    def started(self, work_s: float) -> None:
        """Learn how large a request is that is served."""
        self._served.add(work_s)

    def load_below(self, work_s: float, now: float, per_s: float) -> float:
        """Return which part of the engines' time shorter work asks for, 0 while that is not known."""
        if self._served.samples < ENOUGH or per_s <= 0.0:
            return 0.0
        faded = (1.0 - 1.0 / _MEMORY_S) ** floor(max(0.0, now - self._since - 1.0))
        return self._below[_class_of(work_s)] * faded / (per_s * self._served.mean)

    def learn(self, now: float, per_s: float) -> None:
        """Learn from what has arrived since the last time, a second ago or more; `per_s` can be served a second."""
        seconds = floor(now - self._since)
        keep = 1.0 - 1.0 / _MEMORY_S
        offered = sum(self._second, 0.0)
        # What arrives at once is a line, not a load.
        most = OUTLIER_RATIO * per_s * self._served.mean
        weight = (1.0 - keep) * (most / offered if offered > most > 0.0 else 1.0)
        below = 0.0
        for each in range(_CLASSES):
            rate = (self._rates[each] * keep + self._second[each] * weight) * keep ** (seconds - 1)
            self._rates[each] = rate
            self._below[each] = below
            below += rate
            self._second[each] = 0.0
        self._since += seconds


def _class_of(work_s: float) -> int:
    if work_s <= _SHORTEST_S:
        return 0
    return min(_CLASSES - 1, floor(_PER_DOUBLING * _log2(work_s / _SHORTEST_S)))


class Pool:
    """Engines that share work; `queued_count` attempts of `queued_work_s` and `queued_prompt_tokens` wait for them in `queues`, and clients with `appointments` are expected back.

    `shares` divides their streams among lanes; None while there is one lane. `arrived`, `arrived_work_s` and
    `done_work_s` are what `warning` is fed with.
    """

    def __init__(
        self, engines: Sequence[Engine], appointments: Appointments, instruments: Instruments, now: float
    ) -> None:
        self._instruments = instruments
        self.warning = instruments.of_pool(now)
        self.arrived = 0
        self.arrived_work_s = self.done_work_s = 0.0
        self.engines = engines
        self.capacity_forecast = CapacityForecast(engines)
        self.appointments = appointments
        self.queues: list[LaneQueue] = []
        self.shares: LaneShares | None = None
        self.queued_count = self.queued_prompt_tokens = self.queued_kv_tokens = 0
        self.queued_work_s = 0.0
        self.overtaking = Overtaking()
        self.comings = Comings(one_engine=len(engines) == 1)
        self.others_work_s = 0.0

    @property
    def name(self) -> str:
        """The pool as replicas call it: the names of its engines."""
        return "+".join(sorted(engine.settings.name for engine in self.engines))

    def shared_with(self, others: OthersLine | None, streams: int, now: float) -> None:
        """Count with what waits before the same engines at other replicas, which have so many of their streams."""
        _, _, self.others_work_s, came, told = others or OthersLine("", 0, 0.0)
        self.appointments.attendance.shared_with({None: (came, told)}, now)
        self.capacity_forecast.shared_with(streams)

    def left_to(self, engine: Engine, now: float) -> "Pool":
        """Return a pool of this engine alone, whose permits count among the same shares."""
        alone = Pool((engine,), self.appointments, self._instruments, now)
        alone.shares = self.shares
        return alone

    def shared_out(self, shares: LaneShares | None) -> None:
        """Divide the streams among the lanes by these shares from now on."""
        self.shares = shares

    def opened(self, queue: "LaneQueue") -> None:
        """Take in a queue of work that waits for these engines."""
        self.queues.append(queue)

    def work_arrived(self, queue: "LaneQueue", work_s: float, service_s: float, now: float) -> None:
        """Count the work of a request that comes for the first time, to this queue."""
        self.arrived += 1
        self.arrived_work_s += service_s
        offered = queue.offered
        if offered is not None and work_s > 0.0:
            if offered.is_over(now):
                offered.learn(now, self.capacity_forecast.per_s())
            offered.arrived(work_s)

    def work_done(self, work_s: float) -> None:
        """Count the work of an attempt that is over."""
        self.done_work_s += work_s

    def look(self, now: float) -> None:
        """Feed the early warning, if its time has come."""
        if now < self.warning.next_at:
            return
        up = [engine for engine in self.engines if engine.up]
        flow = Flow(
            self.arrived,
            self.arrived_work_s,
            self.done_work_s,
            sum([engine.gate.streams for engine in up]),
            self.queued_count,
            sum([engine.limit for engine in up]),
            max([queue.settings.deadline_s for queue in self.queues], default=0.0),
        )
        self.warning.feed(now, flow)

    def waits(self, prompt_tokens: int, kv_tokens: int, work_s: float) -> None:
        """Count an attempt that begins to wait."""
        self.queued_count += 1
        self.queued_kv_tokens += kv_tokens
        self.queued_prompt_tokens += prompt_tokens
        self.queued_work_s += work_s

    def waits_no_more(self, prompt_tokens: int, kv_tokens: int, work_s: float) -> None:
        """Count an attempt that no longer waits."""
        self.queued_count -= 1
        self.queued_kv_tokens -= kv_tokens
        self.queued_prompt_tokens -= prompt_tokens
        # An empty queue has no work, however the sums were rounded.
        self.queued_work_s = self.queued_work_s - work_s if self.queued_count else 0.0


class Route:
    """The engines that serve a model, in configured order; `up` are those of them that take work now.

    Of its `readers`, which read prompts for those that decode, `readers_up` take work.
    """

    def __init__(self, engines: tuple[Engine, ...], pool: Pool, readers: tuple[Engine, ...] = ()) -> None:
        self.engines = engines
        self.own = self
        """The route without engines for overflow, this one where there are no others."""
        self.pool = pool
        self.up = engines
        self.readers = self.readers_up = readers

    def turned(self) -> None:
        """Read anew which of its engines are up, and have one that reads for them where they need that."""
        self.readers_up = tuple([engine for engine in self.readers if engine.up])
        up = [engine for engine in self.engines if engine.up]
        self.up = tuple([engine for engine in up if not engine.needs_reader or self.readers_of(engine)])

    def readers_of(self, engine: Engine) -> tuple[Engine, ...]:
        """Return those that take work and can read for this engine."""
        return tuple([each for each in self.readers_up if may_be_two(each, engine)])

    def ways(self) -> list[tuple[Engine, ...]]:
        """Return the engines that a whole request can run on: each alone, or with each that reads for one that cannot itself."""
        alone = [(engine,) for engine in self.up if not engine.needs_reader]
        return [
            *alone,
            *((each, reader) for each in self.up if each.needs_reader for reader in self.readers_of(each)),
        ]

    def free(self) -> int:
        """Return how many streams are free; one engine that runs more than its limit takes none of another's."""
        return sum([max(0, engine.limit - engine.gate.streams) for engine in self.up], 0)


class LaneQueue:
    """What waits in one lane for one route, in the lane's order; `window` where the lane forms batches.

    `offered` is the work that arrives by size, where the shortest goes first. One that is not `is_open` belongs to a
    draft alone.
    """

    def __init__(self, settings: LaneSettings, route: Route, order: Order) -> None:
        self._answers = 0
        self.offered = OfferedWork() if settings.order == "short_first" else None
        self.settings = settings
        self.route = route
        self.order = order
        self.is_open = False
        self.window: BatchWindow | None = None
        if settings.window_s > 0.0:
            self.window = BatchWindow(settings.window_s)

    def opened(self) -> None:
        """From now on the pool and the lane know it."""
        self.is_open = True
        self.route.pool.opened(self)

    def answered(self) -> bool:
        """Count an answer to what came through it; return whether it may have taught much: one of the first, or as many again as ever before."""
        self._answers = count = self._answers + 1
        return count <= _FIRST_ANSWERS or count & (count - 1) == 0

    def paced_until(self, *, contended: bool = False) -> float:
        """Return from when on an engine may be given its next prompt; -inf where none is paced.

        `contended` asks for the time from when on its lane has read no more than its part, which counts while others wait.
        """
        engines, lane = self.route.up, self.settings.name
        if not engines or not engines[0].prompts.is_on:  # all engines are paced alike
            return -inf
        opens_at = inf
        for engine in engines:
            opens_at = min(opens_at, engine.prompts.opens_at(lane, contended=contended))
        return opens_at

    def waits_for_others(self, now: float) -> bool:
        """Return whether its next waits for its pace before all engines, also for the sake of first tokens: others go before it."""
        head = self.order.head()
        return head is not None and self.is_paced(head.prompt_tokens, now)

    def is_paced(self, prompt_tokens: int, now: float) -> bool:
        """Return whether such a prompt of its lane waits for its pace before all engines."""
        return all(each.opens_at(self.settings.name, prompt_tokens) > now for each in self.route.up)

    def is_contended(self) -> bool:
        """Return whether work of another lane waits beside it."""
        for queue in self.route.pool.queues:
            if queue.settings.name != self.settings.name and len(queue.order):
                return True
        return False

    def opens_at(self) -> float | None:
        """Return when its batch goes, if it waits for one."""
        return None if self.window is None else self.window.look_again_at(self.route.free())

    def add(self, queued: Queued, give_up_at: float, now: float) -> float:
        """Put an attempt in its place; return until when it may be kept waiting for company, infinite where no batches form."""
        self.order.add(queued)
        return inf if self.window is None else self.window.entered(queued.attempt, now, give_up_at)

    def remove(self, queued: Queued, *, admitted: bool) -> None:
        """Take an attempt out, wherever it stands."""
        self.order.remove(queued)
        if self.window is not None:
            self.window.left(queued.attempt, admitted=admitted)


class Routes:
    """Finds the route of a model; built when engines come or leave, and told when one goes up or down."""

    def __init__(
        self,
        engines: Sequence[Engine],
        max_appointments: int,
        instruments: Instruments,
        now: float,
        before: "Routes | None" = None,
    ) -> None:
        readers = [engine for engine in engines if engine.only_reads]
        whole = [engine for engine in engines if not engine.only_reads] if readers else engines
        serving = _serving(whole)
        groups = _overlapping(serving.values())
        known = _remembered(groups, [] if before is None else before.pools)
        for appointments in known:
            appointments.keep_at_most(max_appointments // len(groups))
        self.pools: list[Pool] = [
            Pool(group, appointments, instruments, now)
            for group, appointments in zip(groups, known, strict=True)
        ]
        self._pool_of: dict[Engine, Pool] = {engine: pool for pool in self.pools for engine in pool.engines}
        if before is not None:
            self._pool_of.update(before.of_retired(now))
        by_engines: dict[tuple[tuple[Engine, ...], tuple[Engine, ...]], Route] = {}
        by_model: dict[str | None, Route] = {}
        for model, members in serving.items():
            pool = self._pool_of[members[0]] if members else self.pools[0]
            helpers = tuple([each for each in readers if _reads_for(each, model, members)])
            for each in helpers:
                self._pool_of.setdefault(each, pool)
            by_model[model] = by_engines.setdefault((members, helpers), Route(members, pool, helpers))
        for each in readers:
            self._pool_of.setdefault(each, self.pools[0])
        self.every = list(by_engines.values())
        for route in self.every:
            own = tuple([each for each in route.engines if not each.settings.overflow]) or route.engines
            route.own = by_engines.setdefault((own, route.readers), Route(own, route.pool, route.readers))
        pools = set(self._pool_of.values())
        self._only_pool = self.pools[0] if pools <= {self.pools[0]} else None
        self._by_model, self._unlisted = by_model, by_model[None]
        self._pinned = {engine.settings.name: Route((engine,), self._pool_of[engine]) for engine in whole}

    def pool_of(self, engine: Engine) -> Pool:
        """Return the pool of this engine."""
        return self._only_pool or self._pool_of[engine]

    def of_retired(self, now: float) -> dict[Engine, Pool]:
        """Return a pool for each engine that is no longer configured and has permits out: it is there alone."""
        retired = [engine for engine in self._pool_of if engine.retired and engine.gate.streams]
        return {engine: self._pool_of[engine].left_to(engine, now) for engine in retired}

    def of_arrival(self, arrival: Arrived, lane: LaneSettings) -> Route:
        """Return the route of its model in this lane, or that of the engine that alone can answer it, where that is ours."""
        pinned = None if arrival.engine is None else self._pinned.get(arrival.engine)
        route = pinned or self._by_model.get(arrival.model, self._unlisted)
        return route if lane.overflow_after_s < inf else route.own

    def turned(self) -> None:
        """Read anew which engines are up."""
        for route in (*self.every, *[each.own for each in self.every], *self._pinned.values()):
            route.turned()
        for pool in self.pools:
            pool.capacity_forecast.unsettle()


def _remembered(groups: list[list[Engine]], pools: list[Pool]) -> list[Appointments]:
    """Return what is remembered before each of these groups: by the pool that had one of its engines, else by one whose engines are gone.

    A request that returns to another group is a new one there.
    """
    left, found = [*pools], list[Pool | None]()
    for group in groups:
        same = [pool for pool in left if any(engine in pool.engines for engine in group)]
        left = [pool for pool in left if pool not in same[:1]]
        found.append(same[0] if same else None)
    spare = iter(left)
    of_groups = [pool or next(spare, None) for pool in found]
    return [Appointments(0) if pool is None else pool.appointments for pool in of_groups]


def _serving(engines: Sequence[Engine]) -> dict[str | None, tuple[Engine, ...]]:
    """Return the engines of each listed model; None stands for every model that no engine lists."""
    listed = {
        model: None for engine in engines for model in (*engine.settings.models, *engine.settings.adapters)
    }
    serving: dict[str | None, tuple[Engine, ...]] = {
        model: tuple(engine for engine in engines if _serves(engine, model)) for model in listed
    }
    unlisted = tuple(engine for engine in engines if not engine.settings.models)
    # Aliases and adapters: a model that no engine lists goes to the only set of engines there is (design section 10).
    alike = list(dict.fromkeys(serving.values()))
    serving[None] = alike[0] if not unlisted and len(alike) == 1 else unlisted
    return serving


def _serves(engine: Engine, model: str) -> bool:
    settings = engine.settings
    if model in settings.models or model in settings.adapters:
        return True
    return not settings.models and model not in settings.lacks


def _reads_for(reader: Engine, model: str | None, members: tuple[Engine, ...]) -> bool:
    """Return whether it reads prompts for engines that answer this model; None stands for every model that none of them lists."""
    if model is not None:
        return _serves(reader, model)
    return not reader.settings.models or all(each.settings.models for each in members)


def _overlapping(sets: Iterable[tuple[Engine, ...]]) -> list[list[Engine]]:
    """Join the sets that share an engine; there is always at least one group, if an empty one."""
    groups: list[list[Engine]] = []
    for members in sets:
        joined = list(members)
        apart = []
        for group in groups:
            if any(engine in members for engine in group):
                joined += [engine for engine in group if engine not in joined]
            else:
                apart.append(group)
        groups = [*apart, joined] if joined else apart
    return groups or [[]]
