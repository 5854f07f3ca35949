"""All that the governor knows, in one place: `assess` reads it; `commit` and `endings` say what has happened."""

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from millgate.core.governor.allowances import Allowances
from millgate.core.governor.placement import Placement
from millgate.core.instruments import Instruments
from millgate.core.lanes import LaneShares
from millgate.core.limits.prefill_pace import paced_by
from millgate.core.routing.prefix_index import PrefixIndex
from millgate.core.routing.working_set import WorkingSets
from millgate.core.settings import Settings
from millgate.core.sizing.output_length import OutputLength
from millgate.core.sizing.service_demand import PromptSizes
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine, Permit
from millgate.core.state.lane import Classes, Lane, MakeOrder, Totals
from millgate.core.state.lease import Lease
from millgate.core.state.leg import Legs
from millgate.core.state.pool import Pool, Routes
from millgate.core.tickets.appointments import most_notes


class Waiting:
    """How many requests of each tenant are queued, and the age of the youngest; bounded by the queues' own bounds."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, tuple[int, float]] = {}

    def begins(self, tenant: str, as_old_as: float) -> None:
        """Note that a request of this age is queued."""
        count, youngest = self._by_tenant.get(tenant, (0, -inf))
        self._by_tenant[tenant] = count + 1, max(youngest, as_old_as)

    def ends(self, tenant: str) -> None:
        """Note that a queued request has left its queue."""
        count, youngest = self._by_tenant[tenant]
        if count > 1:
            self._by_tenant[tenant] = count - 1, youngest
        else:
            del self._by_tenant[tenant]

    def youngest(self, tenant: str) -> float:
        """Return the age of the tenant's youngest request since one was queued, an absolute core time; -inf where none is."""
        return self._by_tenant.get(tenant, (0, -inf))[1]


class Wakes:
    """Times, in ascending order, and the attempts that they concern; of equal times the one that was asked for first comes first.

    Most come last: an order costs half of what a heap does.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many are kept, those of attempts that are over included."""
        return len(self._due)

    def add(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Look at this attempt at this time, unless that never comes.

        Those of attempts that are no longer alive are dropped: from the front, so that none is the next to fall due, and all
        of them where far too many are kept.
        """
        if at == inf:
            return
        due, over = self._due, 0
        while over < len(due) and due[over][2] not in alive:
            over += 1
        if over:
            del due[:over]  # together: each moves all that stand behind
        if len(due) > most_notes(len(alive)):
            self._due = due = [each for each in due if each[2] in alive]
        self._count += 1
        if due and at < due[-1][0]:
            insort(due, (at, self._count, attempt))
        else:
            due.append((at, self._count, attempt))

    def first(self) -> float | None:
        """Return the earliest time, None when nothing will fall due."""
        return self._due[0][0] if self._due else None

    def pop(self, now: float) -> int | None:
        """Take out the first that is due by now and return its attempt; None when none is."""
        due = self._due
        return due.pop(0)[2] if due and due[0][0] <= now else None

    def forget(self, attempt: int) -> None:
        """Drop everything that concerns this attempt."""
        self._due = [each for each in self._due if each[2] != attempt]


class Engines:
    """The engines, `by_name`, the routes to them, and what is known of what they hold; `up` are those that take work now.

    One that the configuration no longer names is among them until it is empty.
    """

    def __init__(self, settings: Settings, instruments: Instruments, now: float) -> None:
        self._instruments, self._max_appointments = instruments, settings.max_appointments
        self.prefixes = PrefixIndex()
        self.working_sets = WorkingSets()
        self.legs = Legs()
        self.placement = Placement(self.prefixes, self.working_sets, self.legs)
        self.by_name = {engine.name: Engine(engine, now) for engine in settings.engines}
        self.has_retired = False
        self._number()
        self.up: tuple[Engine, ...] = ()
        self.routes = Routes(list(self.by_name.values()), self._max_appointments, instruments, now)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Put new settings on the engines; permits that are out stay out, and the routes are still those of before."""
        engines, self._max_appointments = self.by_name, settings.max_appointments
        named = {new.name for new in settings.engines}
        for name, engine in engines.items():
            engine.named(retired=name not in named)
        self.forget_empty()
        for each in settings.engines:
            fresh = Engine(each, now)
            engine = engines.pop(each.name, fresh)
            engine.reconfigured(fresh)
            engines[each.name] = engine
        self._number()

    def _number(self) -> None:
        for name, engine in self.by_name.items():
            engine.numbered(self.prefixes.enrol(name, engine.gate.kv_limit))

    def rerouted(self, now: float) -> None:
        """Build the routes anew: engines came or left, or serve other models."""
        serving = [engine for engine in self.by_name.values() if not engine.retired]
        self.routes = Routes(serving, self._max_appointments, self._instruments, now, self.routes)

    def expire_legs(self, now: float) -> None:
        """End the leases of prompts that were read for other engines, and forget engines that had nothing else to do."""
        if now >= self.legs.due_at:
            self.legs.expire(now)
            self.forget_empty()

    def forget_empty(self) -> None:
        """Forget the engines that are not configured any more and have nothing to do; `has_retired` says whether others are left."""
        retired = [engine for engine in self.by_name.values() if engine.retired]
        for engine in retired:
            if not engine.gate.streams:
                self.working_sets.forget(engine.number)
                self.placement.adapter_turns.adapters.retire(engine.number)
                self.prefixes.retire(engine.settings.name)
                del self.by_name[engine.settings.name]
        self.has_retired = any(engine.gate.streams for engine in retired)

    def turned(self) -> None:
        """Read anew which engines take work: one went up or down, or has other limits."""
        self.routes.turned()
        every = self.routes.every
        up = [each for each in self.by_name.values() if each.up and not each.retired and not each.only_reads]
        # The same object where one route has them all: `placement` knows its engines by identity.
        self.up = every[0].up if len(every) == 1 else tuple(up)
        self.placement.choose_among(self.up)

    def note(self, permit: Permit, engine: Engine) -> None:
        """Take note that this permit has begun on this engine, has had its first token, or has ended."""
        engine.changed()
        if not engine.only_reads:  # since a reload perhaps, with answers of its own under way
            self.routes.pool_of(engine).capacity_forecast.note(permit, engine)
        self.placement.changed(engine)

    def learned_of(self, engine: Engine) -> None:
        """Take note that something else was learned of this engine, or that its limit has moved."""
        engine.changed()
        self.routes.pool_of(engine).capacity_forecast.rate_changed()
        self.placement.changed(engine)

    def has_not_read(self, engine: Engine, attempt: Attempt) -> None:
        """This engine has refused the attempt, or found it at fault, and so holds no more of its prompt than before."""
        if not (attempt.output_seen or attempt.is_apart):
            request = attempt.request
            self.prefixes.refused(engine.number, request.marks, request.prompt_tokens, attempt.cached_tokens)

    def running(self) -> int:
        """Return how many streams are out, over all engines that answer."""
        return sum([each.gate.streams for each in self.by_name.values() if not each.only_reads], 0)

    def stream_limit(self) -> int:
        """Return how many streams may run, over all engines that are up."""
        return sum([engine.limit for engine in self.up], 0)


class Attempts:
    """The attempts that were taken in, `by_number`: where each stands, and when it is looked at again.

    `queued_count` of them wait in the queues of `lanes`, and `has_left_room` says whether any of those lets others go first.
    """

    def __init__(self, engines: Engines, lanes: dict[str, Lane]) -> None:
        self.engines, self._lanes = engines, lanes
        self.by_number: dict[int, Attempt] = {}
        self.wakes = Wakes()
        self.waiting = Waiting()
        self.queued_count = self._taken_in = 0
        self.has_left_room = False
        self.kept: Mapping[int, int] = {}

    def take_in(self, request: Request, now: float) -> Attempt:
        """Register an attempt that is queued or admitted: a turn of the live session that it continues, if it does."""
        self._taken_in += 1
        attempt = self.by_number[request.attempt] = Attempt(request, self._taken_in)
        session = self.engines.placement.prices.session_of(request) if request.marks else None
        if session is not None and not session.is_over:
            self.engines.working_sets.awaits(session, now)
            attempt.is_turn_of(session)
        return attempt

    def take_back(self, attempt: Attempt, request: Request) -> None:
        """Register an attempt anew, with its request as it is now: its engine has turned it back unsent."""
        self._taken_in += 1
        attempt.turned_back(request, self._taken_in)
        self.by_number[request.attempt] = attempt

    def let_go(self, attempt: Attempt, now: float) -> None:
        """Forget an attempt that is over, and its engines if that was the last of those that are not configured any more."""
        del self.by_number[attempt.request.attempt]
        if attempt.session is not None:
            self.engines.working_sets.turn_over(attempt.session, now)
            attempt.is_turn_of(None)
        if self.engines.has_retired:
            self.engines.forget_empty()

    def leaves_room(self, kept: Mapping[int, int], *, to_others: bool) -> None:
        """Take note of whether queued requests have left room to others, and which engines they have `kept` for themselves."""
        self.kept, self.has_left_room = kept, to_others

    def enqueue(self, attempt: Attempt, now: float) -> None:
        """Put an attempt into its queue."""
        request = attempt.request
        self.line_up(attempt, now)
        request.lane.waits(request.prompt_tokens + request.output_tokens, request.body_bytes, now)
        self.queued_count += 1
        self.engines.placement.adapter_turns.waits(request.arrival.model)
        self.waiting.begins(request.tenant, request.as_old_as)

    def line_up(self, attempt: Attempt, now: float) -> None:
        """Put an attempt that counts as queued into the queue of its route, and look at it when the batch goes that it waits for."""
        request = attempt.request
        request.lane.opens(request.queue)
        # Its own window ends whatever is free by then: while nothing was, a batch of one was full.
        self.wake_at(request.queue.add(request, attempt.give_up_at, now), request.attempt)
        request.route.pool.waits(request.unread_tokens, request.kv_tokens, request.service_s)
        if (opens_at := request.queue.opens_at()) is not None:
            attempt.waits_for_batch(max(now, opens_at))
            self.wake_at(attempt.window_until, request.attempt)

    def dequeue(self, attempt: Attempt, now: float, *, admitted: bool = False) -> None:
        """Take an attempt out of its queue."""
        request = attempt.request
        tokens = request.prompt_tokens + request.output_tokens
        request.queue.remove(request, admitted=admitted)
        request.lane.waits_no_more(tokens, request.body_bytes, attempt.queued_at, now)
        request.route.pool.waits_no_more(request.unread_tokens, request.kv_tokens, request.service_s)
        self.queued_count -= 1
        self.engines.placement.adapter_turns.waits_no_more(request.arrival.model)
        self.waiting.ends(request.tenant)

    def wake_for_paces(self, now: float) -> None:
        """Look at the next of each queue when an engine may be given its prompt, where its lane is paced."""
        for pool in self.engines.routes.pools:
            for queue in pool.queues:
                head = queue.order.head()
                if head is not None and now < (opens_at := queue.paced_until()) < inf:
                    self.look_again(self.by_number[head.attempt], opens_at, now)

    def look_again(self, attempt: Attempt, at: float, now: float) -> None:
        """Look at a queued attempt again then, unless it is before that anyway: then it is known anew when it has to be."""
        if not now < attempt.look_at <= at:
            attempt.is_looked_at(at)
            self.wake_at(at, attempt.request.attempt)

    def wake_at(self, at: float, attempt: int) -> None:
        """Look at this attempt again at this time."""
        self.wakes.add(at, attempt, self.by_number)

    def queued(self) -> Iterator[Attempt]:
        """Yield every attempt that waits, queue by queue, next first."""
        for lane in self._lanes.values():
            for queue in lane.queues.values():
                for queued in queue.order:
                    yield self.by_number[queued.attempt]


class Knowledge:
    """All that is remembered, by owner; a judgement reads it, and what is done is handed the owners that it changes.

    `lanes` also hold what a new configuration no longer names, with the counts; `open_lanes` are those that take new work.
    """

    def __init__(
        self, settings: Settings, make_order: MakeOrder, instruments: Instruments, now: float
    ) -> None:
        self.make_order, self.instruments = make_order, instruments
        self.lanes = {lane.name: Lane(lane, make_order, instruments, now) for lane in settings.lanes}
        self.open_lanes = dict(self.lanes)
        self.classes = Classes(list(self.open_lanes.values()))
        self.engines = Engines(settings, instruments, now)
        self.attempts = Attempts(self.engines, self.lanes)
        self.allowances = Allowances(settings, now)
        self.lease = Lease()
        self.observe, self.hard_cap = settings.observe, settings.hard_cap
        self.max_queued = settings.max_queued
        self.prompt_sizes = PromptSizes()
        self.output_length = OutputLength()
        self.draining = False
        self.drain_by: float | None = None
        self.totals = Totals()
        self._share_out(())
        self._pace_prompts(now)
        self.engines.turned()

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Take new settings; what runs goes on, and what waits moves into the queues that they ask for."""
        self.observe, self.hard_cap = settings.observe, settings.hard_cap
        self.max_queued = settings.max_queued
        for new in settings.lanes:
            made = Lane(new, self.make_order, self.instruments, now)
            self.lanes.setdefault(new.name, made).reconfigured(new, now)
        self.open_lanes = {lane.name: self.lanes[lane.name] for lane in settings.lanes}
        self.classes = Classes(list(self.open_lanes.values()))
        self.engines.reconfigure(settings, now)
        before = self.engines.routes.pools
        self.engines.rerouted(now)
        self._pace_prompts(now)
        for lane in self.lanes.values():
            self._requeue(lane, now)
        self._share_out(before)
        self.engines.turned()

    def lanes_in_use(self) -> list[Lane]:
        """Return the lanes that the settings name, and those of before in which something still waits or runs."""
        named = self.open_lanes
        return [each for name, each in self.lanes.items() if name in named or each.queued or each.running]

    def _pace_prompts(self, now: float) -> None:
        paced = paced_by([lane.settings for lane in self.open_lanes.values()])
        for engine in self.engines.by_name.values():
            if not engine.retired:
                engine.paces_prompts(paced, self.engines.routes.pool_of(engine).comings, now)
        for name, lane in self.lanes.items():
            lane.protected(yes=paced.protection is not None and name not in dict(paced.protection.paced))

    def _requeue(self, lane: Lane, now: float) -> None:
        queued = [self.attempts.by_number[each.attempt] for each in lane.closed()]
        # Later ones may overtake, so all enter again in the order in which they came.
        for attempt in sorted(queued, key=lambda each: (each.request.arrived_at, each.request.attempt)):
            attempt.moved(self.engines.routes.of_arrival(attempt.request.arrival, lane.settings))
            self.attempts.line_up(attempt, now)

    def _share_out(self, before: Sequence[Pool]) -> None:
        """Divide each pool's streams among the lanes, as far as there are several; what they run goes on.

        A lane that is no longer configured, and may still run something, keeps no streams from the others.
        """
        gone = [
            replace(lane.settings, headroom=0)
            for name, lane in self.lanes.items()
            if name not in self.open_lanes
        ]
        lanes = [lane.settings for lane in self.open_lanes.values()] + gone
        if len(lanes) == 1:
            return
        known = before[0].shares if len(before) == len(self.engines.routes.pools) == 1 else None
        if known is not None:
            known.reconfigure(lanes)
            self.engines.routes.pools[0].shared_out(known)
            return
        for pool in self.engines.routes.pools:
            shares = LaneShares(lanes)
            for attempt in self.attempts.by_number.values():
                engine, permit = attempt.engine, attempt.permit
                if engine is not None and permit is not None and self.engines.routes.pool_of(engine) is pool:
                    shares.entered(attempt.request.lane.settings.name, permit.streams)
            pool.shared_out(shares)

    def drains(self, by: float | None) -> None:
        """Take nothing more, and end by then what still runs; None gives it all the time that it takes."""
        self.draining, self.drain_by = True, by

    def grace_over(self) -> None:
        """What still runs has been ended: its time is over."""
        self.drain_by = None


def first_due(knowledge: Knowledge) -> float | None:
    """Return when something falls due next: for an attempt, for a prompt that was read for another engine, or for the end of a drain."""
    first, drain_by = knowledge.attempts.wakes.first(), knowledge.drain_by
    leg_at = knowledge.engines.legs.due_at
    if drain_by is None and leg_at == inf:
        return first
    least = min(leg_at, inf if first is None else first, inf if drain_by is None else drain_by)
    return least if least < inf else None
