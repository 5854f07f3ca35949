"""All that the governor knows, in one place: `assess` reads it, `commit` and `endings` write it."""

from collections.abc import Iterator, Sequence
from math import isfinite

from millgate.core.governor.allowances import Allowances
from millgate.core.governor.forecast import upper_ttft_s
from millgate.core.governor.placement import Placement
from millgate.core.governor.pools import Routes
from millgate.core.governor.provider import Provider
from millgate.core.governor.records import Attempt, Engine, Lane, MakeOrder, Pool
from millgate.core.governor.waiting import Waiting
from millgate.core.governor.wakes import Wakes
from millgate.core.lanes import LaneShares, LaneShareSettings
from millgate.core.routing.base import Router
from millgate.core.settings import EngineSettings, Settings
from millgate.core.sizing.output_length import OutputLength
from millgate.core.sizing.prompt_bytes import PromptBytes


class Knowledge:
    """Lanes, engines and their routes, attempts, learned sizes, and the times at which something falls due.

    `lanes` and `engines` also hold what a new configuration no longer names, until it is empty; `open_lanes` and
    `up_engines` are those that take new work.
    """

    __slots__ = (
        "allowances",
        "answers",
        "arrivals",
        "attempts",
        "drain_by",
        "draining",
        "early",
        "engines",
        "first_lane",
        "good_output_tokens",
        "hard_cap",
        "hints_given",
        "labelled",
        "lanes",
        "make_order",
        "max_places",
        "max_queued",
        "observe",
        "open_lanes",
        "output_length",
        "placement",
        "prompt_bytes",
        "queued_count",
        "recognised",
        "routes",
        "up_engines",
        "waiting",
        "wakes",
        "wasted_output_tokens",
        "wasted_prompt_tokens",
    )

    def __init__(self, settings: Settings, make_order: MakeOrder, router: Router, now: float) -> None:
        self.make_order = make_order
        self.placement = Placement(router)
        self.lanes = {lane.name: Lane(lane, make_order, now) for lane in settings.lanes}
        self.open_lanes = dict(self.lanes)
        self.first_lane = self.lanes[settings.lanes[0].name]
        self.engines = {engine.name: new_engine(engine, now) for engine in settings.engines}
        self.allowances = Allowances(settings)
        self.observe, self.hard_cap = settings.observe, settings.hard_cap
        self.max_places, self.max_queued = settings.max_places, settings.max_queued
        self.prompt_bytes = PromptBytes()
        self.output_length = OutputLength()
        self.attempts: dict[int, Attempt] = {}
        self.wakes = Wakes()
        self.waiting = Waiting()
        self.draining = False
        self.drain_by: float | None = None
        self.queued_count = 0
        self.answers = self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0
        self.up_engines: tuple[Engine, ...] = ()
        self.routes = Routes(list(self.engines.values()), self.attempts, self.max_places, (), now)
        self._share_out(())
        self.engines_turned()

    @property
    def pools(self) -> list[Pool]:
        """The sets of engines that share work."""
        return self.routes.pools

    def engines_turned(self) -> None:
        """Read anew which engines take work: one went up or down, or has other limits."""
        self.routes.turned()
        every = self.routes.every
        up = [engine for engine in self.engines.values() if engine.up and not engine.retired]
        # The same object where one route has them all: `placement` knows its engines by identity.
        self.up_engines = every[0].up if len(every) == 1 else tuple(up)
        self.placement.choose_among(self.up_engines)

    def engines_changed(self, now: float) -> None:
        """Build the routes anew, and let what waits find its own: engines came or left, or serve other models."""
        serving = [engine for engine in self.engines.values() if not engine.retired]
        before = self.pools
        self.routes = Routes(serving, self.attempts, self.max_places, [pool.places for pool in before], now)
        for lane in self.lanes.values():
            self._requeue(lane, now)
        self._share_out(before)
        self.engines_turned()

    def _requeue(self, lane: Lane, now: float) -> None:
        queued = [self.attempts[each.attempt] for queue in lane.queues.values() for each in queue.order]
        lane.queues.clear()
        # Who entered later may overtake: they enter again as they came.
        for attempt in sorted(queued, key=lambda each: (each.arrived_at, each.attempt)):
            attempt.route = route = self.routes.of(attempt.arrival.model)
            attempt.queue = lane.queue_for(route)
            attempt.queue.add(attempt, now)
            _count_queued(route.pool, attempt, 1)

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
            self.pools[0].shares = known
            return
        for pool in self.pools:
            pool.shares = LaneShares(lanes)
            self._count_running(pool, pool.shares)

    def _count_running(self, pool: Pool, shares: LaneShares) -> None:
        for attempt in self.attempts.values():
            if attempt.engine is not None and attempt.engine.pool is pool:
                shares.entered(attempt.lane.settings.name, attempt.streams)

    def roomy_engine(
        self, draft: Attempt, engines: tuple[Engine, ...], now: float
    ) -> tuple[Engine, float] | None:
        """Return where this attempt would go now, with its time to first token there; None without room.

        That is the engine that the router prices lowest, or the soonest where the deadline leaves no choice.
        """
        prompt_tokens = draft.prompt_tokens
        if len(engines) == 1:
            engine = engines[0]
            if not engine.has_room(draft, now):
                return None
            return engine, engine.expected_ttft_s(prompt_tokens, now)
        cheapest = self.placement.cheapest(draft, engines, now)
        if cheapest is None:
            return None
        ttft_s = cheapest.expected_ttft_s(prompt_tokens, now)
        if now + upper_ttft_s(cheapest, ttft_s, prompt_tokens) <= draft.deadline:
            return cheapest, ttft_s
        return self.placement.soonest(draft, engines, now)

    def note(self, attempt: Attempt, engine: Engine) -> None:
        """Take note that this attempt has started on this engine, read its first token, or ended."""
        engine.drain_read = None
        engine.capacity_forecast.note(attempt)
        self.placement.changed(engine)

    def enqueue(self, attempt: Attempt, now: float) -> None:
        """Put an attempt into its queue."""
        attempt.lane.enqueue(attempt, now)
        _count_queued(attempt.route.pool, attempt, 1)
        self.queued_count += 1
        self.waiting.begins(attempt.tenant, attempt.as_old_as)

    def dequeue(self, attempt: Attempt, *, admitted: bool = False) -> None:
        """Take an attempt out of its queue."""
        attempt.lane.dequeue(attempt, admitted=admitted)
        _count_queued(attempt.route.pool, attempt, -1)
        self.queued_count -= 1
        self.waiting.ends(attempt.tenant)
        opens_at, head = attempt.queue.opens_at(), attempt.queue.order.head()
        if opens_at is not None and head is not None and isfinite(opens_at):
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


def new_engine(settings: EngineSettings, now: float) -> Engine:
    """Return an engine that has done nothing yet."""
    engine = Engine(settings, now)
    if settings.account is not None:
        engine.provider = Provider(settings.account, now)
    return engine


def _count_queued(pool: Pool, attempt: Attempt, more: int) -> None:
    """Count somebody who begins to wait (1) or no longer does (-1)."""
    pool.queued_count += more
    pool.queued_prompt_tokens += more * attempt.prompt_tokens
    # Of nobody nothing remains, however the sums were rounded.
    pool.queued_work_s = pool.queued_work_s + more * attempt.service_s if pool.queued_count else 0.0
