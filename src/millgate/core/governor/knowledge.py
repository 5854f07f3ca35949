"""All that the governor knows, in one place: `assess` reads it; `commit` and `endings` say what has happened."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite

from millgate.core.governor.allowances import Allowances
from millgate.core.governor.classes import Classes
from millgate.core.governor.placement import Placement
from millgate.core.governor.wakes import Wakes
from millgate.core.lanes import LaneShares, LaneShareSettings
from millgate.core.limits.prefill_pace import protection_of, reading_parts
from millgate.core.routing.base import Router
from millgate.core.routing.prefix_index import PrefixIndex
from millgate.core.settings import Settings
from millgate.core.sizing.output_length import OutputLength
from millgate.core.sizing.prompt_sizes import PromptSizes
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane, MakeOrder, Totals
from millgate.core.state.permit import Permit
from millgate.core.state.pool import LaneQueue, Pool, Routes


class Waiting:
    """How many requests of each tenant are queued, and the age of the youngest; bounded by the queues' own bounds."""

    __slots__ = ("_by_tenant",)

    def __init__(self) -> None:
        self._by_tenant: dict[str, tuple[int, float]] = {}

    def begins(self, tenant: str, as_old_as: float) -> None:
        """Note that a request of this age is queued."""
        known = self._by_tenant.get(tenant)
        if known is None:
            self._by_tenant[tenant] = 1, as_old_as
        else:
            self._by_tenant[tenant] = known[0] + 1, max(known[1], as_old_as)

    def ends(self, tenant: str) -> None:
        """Note that a queued request has left its queue."""
        count, youngest = self._by_tenant[tenant]
        if count > 1:
            self._by_tenant[tenant] = count - 1, youngest
        else:
            del self._by_tenant[tenant]

    def youngest(self, tenant: str) -> float:
        """Return the age of the tenant's youngest request since one was queued, an absolute core time; -inf where none is."""
        known = self._by_tenant.get(tenant)
        return -inf if known is None else known[1]


class Knowledge:
    """Lanes, engines and their routes, attempts, learned sizes, and the times at which something falls due.

    `lanes` and `engines` also hold what a new configuration no longer names, until it is empty; `open_lanes` and
    `up_engines` are those that take new work.
    """

    def __init__(self, settings: Settings, make_order: MakeOrder, router: Router, now: float) -> None:
        self.make_order = make_order
        self.prefixes = PrefixIndex()
        self.placement = Placement(router, self.prefixes)
        self.lanes = {lane.name: Lane(lane, make_order, now) for lane in settings.lanes}
        self.open_lanes = dict(self.lanes)
        self.classes = Classes(list(self.open_lanes.values()))
        self.engines = {engine.name: Engine(engine, now) for engine in settings.engines}
        self._number_engines()
        self.allowances = Allowances(settings)
        self.observe, self.hard_cap = settings.observe, settings.hard_cap
        self.max_appointments, self.max_queued = settings.max_appointments, settings.max_queued
        self.prompt_sizes = PromptSizes()
        self.output_length = OutputLength()
        self.attempts: dict[int, Attempt] = {}
        self.wakes = Wakes()
        self.waiting = Waiting()
        self.draining = False
        self.drain_by: float | None = None
        self.queued_count = self.taken_in = 0
        self.totals = Totals()
        self.up_engines: tuple[Engine, ...] = ()
        self.routes = Routes(list(self.engines.values()), self.max_appointments, now)
        self._share_out(())
        self._pace_prompts(now)
        self.engines_turned()

    @property
    def pools(self) -> list[Pool]:
        """The sets of engines that share work."""
        return self.routes.pools

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Take new settings; what runs goes on, and what waits moves into the queues that they ask for."""
        self.observe, self.hard_cap = settings.observe, settings.hard_cap
        self.max_queued = settings.max_queued
        lanes = self.lanes
        for new in settings.lanes:
            lanes.setdefault(new.name, Lane(new, self.make_order, now)).reconfigured(new, now)
        self.open_lanes = {lane.name: lanes[lane.name] for lane in settings.lanes}
        self.classes = Classes(list(self.open_lanes.values()))
        self._re_engine_all(settings, now)
        self._pace_prompts(now)
        self._engines_changed(now)

    def _re_engine_all(self, settings: Settings, now: float) -> None:
        """Put new settings on the engines; permits that are out stay out."""
        engines = self.engines
        named = {new.name for new in settings.engines}
        for name, engine in list(engines.items()):
            if engine.named(retired=name not in named):
                self._forget_engine(engine)
        for each in settings.engines:
            fresh = Engine(each, now)
            engine = engines.pop(each.name, fresh)
            engine.reconfigured(fresh)
            engines[each.name] = engine
        self._number_engines()

    def _number_engines(self) -> None:
        for name, engine in self.engines.items():
            engine.numbered(self.prefixes.enrol(name, engine.gate.kv_limit))

    def _forget_engine(self, engine: Engine) -> None:
        """Forget an engine that is not configured any more and has nothing to do."""
        self.prefixes.retire(engine.settings.name)
        del self.engines[engine.settings.name]

    def engines_turned(self) -> None:
        """Read anew which engines take work: one went up or down, or has other limits."""
        self.routes.turned()
        every = self.routes.every
        up = [engine for engine in self.engines.values() if engine.up and not engine.retired]
        # The same object where one route has them all: `placement` knows its engines by identity.
        self.up_engines = every[0].up if len(every) == 1 else tuple(up)
        self.placement.choose_among(self.up_engines)

    def _pace_prompts(self, now: float) -> None:
        lanes = [lane.settings for lane in self.open_lanes.values()]
        protection = protection_of(lanes)
        parts = reading_parts(lanes)
        caps = {lane.name: lane.prefill_per_s for lane in lanes if lane.prefill_per_s is not None}
        for engine in self.engines.values():
            engine.paces_prompts(protection, caps, parts, now)

    def _engines_changed(self, now: float) -> None:
        """Build the routes anew, and let what waits find its own: engines came or left, or serve other models."""
        serving = [engine for engine in self.engines.values() if not engine.retired]
        before = self.pools
        self.routes = Routes(serving, self.max_appointments, now, self.routes)
        for lane in self.lanes.values():
            self._requeue(lane, now)
        self._share_out(before)
        self.engines_turned()

    def _requeue(self, lane: Lane, now: float) -> None:
        queued = [self.attempts[each.attempt] for each in lane.closed()]
        # Later ones may overtake, so all enter again in the order in which they came.
        for attempt in sorted(queued, key=lambda each: (each.request.arrived_at, each.request.attempt)):
            attempt.moved(self.routes.of_arrival(attempt.request.arrival))
            self._line_up(attempt, now)

    def _share_out(self, before: Sequence[Pool]) -> None:
        """Divide each pool's streams among the lanes, as far as there are several; what they run goes on."""
        lanes = [
            LaneShareSettings(
                each.settings.name, each.settings.share, each.settings.headroom, each.settings.band
            )
            for each in self.lanes.values()
        ]
        if len(lanes) == 1:
            return
        known = before[0].shares if len(before) == len(self.pools) == 1 else None
        if known is not None:
            known.reconfigure(lanes)
            self.pools[0].shared_out(known)
            return
        for pool in self.pools:
            shares = LaneShares(lanes)
            self._count_running(pool, shares)
            pool.shared_out(shares)

    def _count_running(self, pool: Pool, shares: LaneShares) -> None:
        for attempt in self.attempts.values():
            engine, permit = attempt.engine, attempt.permit
            if engine is not None and permit is not None and self.routes.pool_of(engine) is pool:
                shares.entered(attempt.request.lane.settings.name, permit.streams)

    def note(self, permit: Permit, engine: Engine) -> None:
        """Take note that this permit has begun on this engine, has had its first token, or has ended."""
        engine.changed()
        self.routes.pool_of(engine).capacity_forecast.note(permit, engine)
        self.placement.changed(engine)

    def learned_of(self, engine: Engine) -> None:
        """Take note that something else was learned of this engine, or that its limit has moved."""
        engine.changed()
        self.routes.pool_of(engine).capacity_forecast.rate_changed()
        self.placement.changed(engine)

    def take_in(self, request: Request) -> Attempt:
        """Register an attempt that is queued or admitted."""
        self.taken_in += 1
        attempt = self.attempts[request.attempt] = Attempt(request, self.taken_in)
        return attempt

    def take_back(self, attempt: Attempt, request: Request) -> None:
        """Register an attempt anew, with its request as it is now: its engine has turned it back unsent."""
        self.taken_in += 1
        attempt.turned_back(request, self.taken_in)
        self.attempts[request.attempt] = attempt

    def let_go(self, attempt: Attempt) -> None:
        """Forget an attempt that is over, and its engine if that was the last of one that is not configured any more."""
        del self.attempts[attempt.request.attempt]
        engine = attempt.engine
        if engine is not None and engine.retired and not engine.gate.streams:
            self._forget_engine(engine)

    def drains(self, by: float | None) -> None:
        """Take nothing more, and end by then what still runs; None gives it all the time that it takes."""
        self.draining, self.drain_by = True, by

    def grace_over(self) -> None:
        """What still runs has been ended: its time is over."""
        self.drain_by = None

    def enqueue(self, attempt: Attempt, now: float) -> None:
        """Put an attempt into its queue."""
        request = attempt.request
        self._line_up(attempt, now)
        request.lane.waits(request.prompt_tokens + request.output_tokens, request.body_bytes, now)
        self.queued_count += 1
        self.waiting.begins(request.tenant, request.as_old_as)

    def _line_up(self, attempt: Attempt, now: float) -> None:
        request = attempt.request
        request.lane.opens(request.queue)
        request.queue.add(request, attempt.give_up_at, now)
        request.route.pool.waits(request.unread_tokens, request.service_s)

    def dequeue(self, attempt: Attempt, now: float, *, admitted: bool = False) -> None:
        """Take an attempt out of its queue."""
        request = attempt.request
        tokens = request.prompt_tokens + request.output_tokens
        request.queue.remove(request, admitted=admitted)
        request.lane.waits_no_more(tokens, request.body_bytes, attempt.queued_at, now)
        request.route.pool.waits_no_more(request.unread_tokens, request.service_s)
        self.queued_count -= 1
        self.waiting.ends(request.tenant)
        opens_at, head = request.queue.opens_at(), request.queue.order.head()
        if opens_at is not None and head is not None and isfinite(opens_at):
            self.wake_at(opens_at, head.attempt)
        if not admitted:
            self.wake_for_pace(request.queue)

    def wake_for_pace(self, queue: LaneQueue) -> None:
        """Look at the next of this queue when an engine may be given its prompt, where its lane is paced."""
        opens_at, head = queue.paced_until(), queue.order.head()
        if head is not None and isfinite(opens_at):
            self.wake_at(opens_at, head.attempt)

    def running(self) -> int:
        """Return how many streams are out, over all engines."""
        streams = 0
        for engine in self.engines.values():
            streams += engine.gate.streams
        return streams

    def stream_limit(self) -> int:
        """Return how many streams may run, over all engines that are up."""
        streams = 0
        for engine in self.up_engines:
            streams += engine.gate.limit.current()
        return streams

    def wake_at(self, at: float, attempt: int) -> None:
        """Look at this attempt again at this time."""
        self.wakes.add(at, attempt, self.attempts)

    def queued(self) -> Iterator[Attempt]:
        """Yield every attempt that waits, queue by queue, next first."""
        for lane in self.lanes.values():
            for queue in lane.queues.values():
                for queued in queue.order:
                    yield self.attempts[queued.attempt]
