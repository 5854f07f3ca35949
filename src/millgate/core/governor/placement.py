"""Whose turn is it, and to which engine? Between lanes by `LaneShares`, inside a queue by its order, among engines by price.

With one lane and one queue, the usual case, every answer is the queue's own. The price of an engine changes when work starts there,
reads its first token or ends. That is noted, and the engine is priced anew when the next arrival wants a place. The cheapest is
then found by comparing numbers, a microsecond for 64 engines where asking each took fifty. Prices are those of the usual request,
and are all renewed when it has changed.
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import Final

from millgate.core.decisions import Candidate
from millgate.core.events import PrefixMarks
from millgate.core.governor.leg_costs import apart, late_cost, pauses_cost, unread_tokens
from millgate.core.governor.prices import Prices, is_long
from millgate.core.lanes import LaneShares
from millgate.core.measure import ALIKE, Ewma
from millgate.core.queues.base import Queued
from millgate.core.routing.base import Router
from millgate.core.routing.prefix_index import Held, PrefixIndex
from millgate.core.routing.working_set import WorkingSets
from millgate.core.sizing import USUAL_PROMPT_TOKENS
from millgate.core.sizing.output_length import PRIOR_OUTPUT_TOKENS
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine
from millgate.core.state.leg import Legs
from millgate.core.state.pool import LaneQueue, Pool, Route


def ahead_of(request: Request, now: float) -> int:
    """Return how many would be admitted before this newcomer; beyond its own queue this is an estimate.

    Of other lanes: all that wait in a smaller band, and in the same band as many as it takes that lane to run as
    much for its share as this one will by then; none of a lane whose prompts have to wait for their pace or part.
    """
    pool = request.route.pool
    if not pool.queued_count:
        return 0
    own = request.queue.order.ahead_of(request)
    if pool.shares is None:
        return own + pool.queued_count - len(request.queue.order)
    own += _of_other_routes(request)
    lane = request.lane.settings
    reached = (pool.shares.running(lane.name) + own) / lane.share
    return own + sum(
        [_goes_before(pool.shares, queue, lane.band, reached) for queue in _rivals(request, now)], 0
    )


def _of_other_routes(request: Request) -> int:
    return sum(
        [
            len(queue.order)
            for queue in request.route.pool.queues
            if queue.settings.name == request.lane.settings.name and queue is not request.queue
        ]
    )


def _rivals(request: Request, now: float) -> list[LaneQueue]:
    own = request.lane.settings.name
    return [
        queue
        for queue in request.route.pool.queues
        if queue.settings.name != own and len(queue.order) and queue.paced_until(contended=True) <= now
    ]


def _goes_before(shares: LaneShares, queue: LaneQueue, band: int, reached: float) -> int:
    lane, waiting = queue.settings, len(queue.order)
    if lane.band != band:
        return waiting if lane.band < band else 0
    return min(waiting, max(0, ceil(reached * lane.share - shares.running(lane.name))))


def may_go(request: Request, ahead: int, now: float) -> bool:
    """Return whether it is this newcomer's turn, as far as lanes and windows are concerned."""
    pool, window = request.route.pool, request.queue.window
    if (
        window is not None
        and window.newcomer_goes_at(request.route.free(), now, request.latest_start()) > now
    ):
        return False
    shares = pool.shares
    if shares is None or (shares.lends_all and not pool.queued_count):
        return ahead == 0
    if len(request.queue.order) and request.queue.order.ahead_of(request):
        return False
    waiting = [queue for queue in pool.queues if len(queue.order) and queue.paced_until() <= now]
    lanes = {queue.settings.name: None for queue in _within_part([*waiting, request.queue], now)}
    return _chosen(pool, shares, list(lanes)) == request.lane.settings.name


def limit_of(pool: Pool) -> int:
    """Return how many streams may run, over those of its engines that are up."""
    return sum([engine.limit for engine in pool.engines if engine.up])


def _chosen(pool: Pool, shares: LaneShares, lanes: Sequence[str]) -> str | None:
    limit = limit_of(pool)
    free = limit - sum([engine.gate.streams for engine in pool.engines if engine.up], 0)
    return shares.choose(lanes, free, limit)


def next_queued(
    pools: Sequence[Pool], blocked: list[Route], now: float, passed_over: dict[int, None]
) -> int | None:
    """Return the attempt that is next over all queues whose route is not blocked, None when none may go.

    Those that were `passed_over` are left out. Routes whose lanes may not borrow a stream now are added to `blocked`.
    """
    for pool in pools:
        if not pool.queued_count:
            continue
        queues = [queue for queue in pool.queues if _is_ready(queue, blocked, now)]
        if queues and pool.shares is not None:
            queues = _within_part(queues, now)
            lane = _chosen(pool, pool.shares, list({each.settings.name: None for each in queues}))
            if lane is None:
                blocked += [queue.route for queue in queues]
                continue
            queues = [queue for queue in queues if queue.settings.name == lane]
        if queues and (head := _oldest_head(queues, passed_over)) is not None:
            return head
    return None


def _within_part(queues: list[LaneQueue], now: float) -> list[LaneQueue]:
    """Return those whose lanes have not read more than their part; all where no lane would be left."""
    return [queue for queue in queues if queue.paced_until(contended=True) <= now] or queues


def _is_ready(queue: LaneQueue, blocked: Sequence[Route], now: float) -> bool:
    if not len(queue.order) or queue.route in blocked or queue.paced_until() > now:
        return False
    return queue.window is None or queue.window.is_open(queue.route.free(), now)


def _oldest_head(queues: Sequence[LaneQueue], passed_over: dict[int, None]) -> int | None:
    heads = [head for queue in queues if (head := _head(queue, passed_over)) is not None]
    if not heads:
        return None
    chosen = heads[0]
    if len(heads) > 1:
        chosen = min(heads, key=lambda head: (head.first_seen, head.arrival_number))
    return chosen.attempt


def _head(queue: LaneQueue, passed_over: dict[int, None]) -> Queued | None:
    """Return the first of this queue that is not passed over, None without one."""
    if not passed_over:
        return queue.order.head()
    for queued in queue.order:
        if queued.attempt not in passed_over:
            return queued
    return None


# An idle engine is tried with a prompt this many times as long as any that it has read, whatever is predicted:
# no other way teaches it, and no other request waits for an idle engine.
_UNKNOWN_RATIO: Final = 2
# Prompts that wait inside an engine are beyond any order: no more wait there than are read in this share of a deadline,
# unless they are ordered as the engine would (from a tenth to three tenths serve about as many: docs/policies/short-first.md).
_READING_SHARE: Final = 0.2


_NOTHING: Final[Held] = {}

Place = tuple[Engine, float, float, tuple[Candidate, ...], Engine | None]
"""Where a request would go now, its time to first token there, until when a full engine is better, the candidates, this one first,
and the engine that reads its prompt, where that is another.

Until then, an absolute core time, waiting for an engine that holds more of it costs less; 0.0 where none does.
"""


class Placement:
    """Finds the cheapest engine with room; it notes changes between two questions, in bounded memory."""

    __slots__ = (
        "_costs",
        "_engines",
        "_legs",
        "_numbered",
        "_output",
        "_prefixes",
        "_priced_for",
        "_prompt",
        "_router",
        "_unpriced",
        "_working_sets",
        "prices",
    )

    def __init__(self, router: Router, prefixes: PrefixIndex, working_sets: WorkingSets, legs: Legs) -> None:
        self._router, self._prefixes, self._working_sets = router, prefixes, working_sets
        self._legs = legs
        self.prices = Prices(router, working_sets)
        self._numbered: dict[int, Engine] = {}
        self._engines: tuple[Engine, ...] = ()
        self._costs: list[float] = []
        self._unpriced: list[Engine] = []
        self._prompt = Ewma(float(USUAL_PROMPT_TOKENS), prior_samples=0.0)
        self._output = Ewma(PRIOR_OUTPUT_TOKENS, prior_samples=0.0)
        self._priced_for = (float(USUAL_PROMPT_TOKENS), float(PRIOR_OUTPUT_TOKENS))

    def choose_among(self, engines: tuple[Engine, ...]) -> None:
        """From now on these engines take work; they may have other limits than before."""
        self._engines = engines
        self._costs = [inf] * len(engines)
        self._numbered = {engine.number: engine for engine in engines}
        for position, engine in enumerate(engines):
            engine.placed(position)
        self._forget_prices()

    def changed(self, engine: Engine) -> None:
        """Take note that this engine's load or learned speed has changed."""
        if engine.is_priced:
            engine.priced(known=False)
            self._unpriced.append(engine)

    def started(self, request: Request) -> None:
        """Learn the size of the usual request from one that was admitted."""
        if len(self._engines) < 2:
            return
        self._prompt.add(request.unread_tokens)
        self._output.add(request.output_tokens)
        prompt_tokens, output_tokens = self._priced_for
        if (
            abs(self._prompt.mean - prompt_tokens) > ALIKE * prompt_tokens
            or abs(self._output.mean - output_tokens) > ALIKE * output_tokens
        ):
            self._priced_for = (self._prompt.mean, self._output.mean)
            self._forget_prices()

    def held(self, marks: PrefixMarks) -> Held:
        """Return the engines that hold most of this prompt."""
        return self._prefixes.deepest(marks) if marks else _NOTHING

    def roomy_engine(self, request: Request, held: Held, now: float) -> Place | None:
        """Return where this request, of whose prompt so much is `held`, would go now.

        That is the engine that the router prices lowest, or the soonest where the deadline leaves no choice; None without room.
        """
        engines = self._taking(request, held, now) if request.marks else request.route.up
        if not engines:
            return None
        place = self._alone(request, engines, held, now)
        if request.route.readers_up and request.arrival.hands_over:
            return self._or_apart(place, request, engines, held, now)
        return place

    def _or_apart(
        self, alone: Place | None, request: Request, engines: tuple[Engine, ...], held: Held, now: float
    ) -> Place | None:
        """Return two engines where they cost less than one; a first token that is late costs as many seconds as its lane's TTFT has."""
        two = apart(self._router, self._prefixes, self._legs, request, engines, held, now)
        if two is None:
            return alone
        place = two.engine, two.ttft_s, 0.0, (), two.reader
        if alone is None:
            return place
        engine, ttft_s, better_until = alone[:3]
        if better_until > now:
            return alone
        known = (
            {**held, engine.number: self._prefixes.held_by(engine.number, request.marks)} if held else held
        )
        pauses = pauses_cost(engine, request, unread_tokens(engine, request, known))
        cost_s = self.prices.of(engine, request, known, now) + pauses + late_cost(request, ttft_s, now)
        return place if two.cost_s + late_cost(request, two.ttft_s, now) < cost_s else alone

    def _alone(self, request: Request, engines: tuple[Engine, ...], held: Held, now: float) -> Place | None:
        """Return the engine that would do all of it."""
        if len(engines) == 1:
            engine = engines[0]
            return (
                self._found(engine, request, engines, held, now)
                if has_room(engine, request, held, now)
                else None
            )
        cheapest = self.cheapest(request, engines, held, now)
        if cheapest is None:
            return None
        found = self._found(cheapest, request, engines, held, now)
        if now + found[1] <= request.deadline:
            return found
        soonest = self.soonest(request, engines, held, now)
        return None if soonest is None else self._found(soonest, request, engines, held, now)

    def _found(
        self, engine: Engine, request: Request, taking: tuple[Engine, ...], held: Held, now: float
    ) -> Place:
        if not held:
            return engine, engine.expected_ttft_s(request.prompt_tokens, now), 0.0, (), None
        tokens = held.get(engine.number, -1)
        if tokens < 0:
            tokens = self._prefixes.held_by(engine.number, request.marks)
        ttft_s = engine.expected_ttft_s(max(1, request.prompt_tokens - tokens), now)
        known = {**held, engine.number: tokens}
        others = [each for each in self._holders(request, taking, held) if each is not engine]
        candidates = tuple(
            [
                Candidate(each.settings.name, known[each.number], self.prices.of(each, request, known, now))
                for each in [engine, *others]
            ]
        )
        return engine, ttft_s, _better_until(request, candidates, ttft_s), candidates, None

    def is_kept_out(self, request: Request, held: Held, now: float) -> bool:
        """Return whether it would open a session where every engine is full of live ones."""
        return bool(request.marks) and not self._taking(request, held, now)

    def _taking(self, request: Request, held: Held, now: float) -> tuple[Engine, ...]:
        """Return the engines that may answer it: all for a turn of a session whose context is kept, else those with room for what they do not hold of it."""
        engines = request.route.up
        session = self.prices.session_of(request)
        if session is not None and (not session.is_over or _is_kept(request, held)):
            return engines
        taking = [
            engine
            for engine in engines
            if self._working_sets.takes(
                engine.number, engine.gate.kv_limit, request.tenant, unread_tokens(engine, request, held), now
            )
        ]
        return engines if len(taking) == len(engines) else tuple(taking)

    def _holders(self, request: Request, engines: tuple[Engine, ...], held: Held) -> list[Engine]:
        """Return those of these engines that hold of its prompt and may answer it, with room or without."""
        return [
            each
            for number in held
            if (each := self._numbered.get(number)) is not None and each in engines and _fits(each, request)
        ]

    def cheapest(
        self, request: Request, engines: tuple[Engine, ...], held: Held, now: float
    ) -> Engine | None:
        """Return the cheapest of these engines with room for this attempt, the first named among equals, or None.

        `engines` are all that take work, or those of them that answer for its model; `held` are those that hold most of its prompt.
        They and the cheapest of all are compared by what this very request costs there.
        """
        if is_long(request):
            return self._cheapest_for_long(request, engines, held, now)
        engine = self._usually_cheapest(request, engines, held, now)
        if not held or engine is None:
            return engine
        holders = [
            each
            for each in self._holders(request, engines, held)
            if each is not engine and has_room(each, request, held, now)
        ]
        if not holders:
            return engine
        known = {**held, engine.number: self._prefixes.held_by(engine.number, request.marks)}
        return min([*holders, engine], key=lambda each: self.prices.of(each, request, known, now))

    def _cheapest_for_long(
        self, request: Request, engines: tuple[Engine, ...], held: Held, now: float
    ) -> Engine | None:
        """Return the cheapest with room for a prompt that is read for long, whoever holds of it: each is asked what it costs there."""
        roomy = _with_room(request, engines, held, now)
        known = held
        if held:
            known = {each.number: self._prefixes.held_by(each.number, request.marks) for each in roomy}
        return min(roomy, key=lambda each: self.prices.of(each, request, known, now), default=None)

    def _usually_cheapest(
        self, request: Request, engines: tuple[Engine, ...], held: Held, now: float
    ) -> Engine | None:
        """Return the engine with room where the usual request costs least."""
        if self._unpriced:
            self._price()
        costs = self._costs
        if engines is self._engines:
            least = min(costs)
            if least == inf:
                return None
            engine = engines[costs.index(least)]
            if _fits(engine, request) and has_room(engine, request, held, now):
                return engine
        roomy = _with_room(request, engines, held, now)
        return min(roomy, key=lambda engine: costs[engine.position], default=None)

    def soonest(self, request: Request, engines: tuple[Engine, ...], held: Held, now: float) -> Engine | None:
        """Return the engine with room where this attempt's first token comes first; None without room."""
        roomy = _with_room(request, engines, held, now)
        return min(
            roomy,
            key=lambda engine: engine.expected_ttft_s(unread_tokens(engine, request, held), now),
            default=None,
        )

    def _forget_prices(self) -> None:
        self._unpriced = list(self._engines)
        for engine in self._engines:
            engine.priced(known=False)

    def _price(self) -> None:
        """Price every engine that has changed; one without any room costs infinity."""
        costs, engines, cost = self._costs, self._engines, self._router.cost
        prompt_tokens, output_tokens = self._priced_for
        for engine in self._unpriced:
            position, gate, service = engine.position, engine.gate, engine.service
            if position >= len(engines) or engines[position] is not engine:
                continue
            engine.priced(known=True)
            if gate.has_room(1, 1):
                streams = gate.streams
                ttft_s = service.ttft_s(prompt_tokens + gate.prefill_tokens)
                costs[position] = cost(streams, ttft_s, service.tpot_s(streams + 1), output_tokens)
            else:
                costs[position] = inf
        self._unpriced.clear()


def _better_until(request: Request, candidates: tuple[Candidate, ...], ttft_s: float) -> float:
    """Return until when waiting for another candidate, a full engine, costs less than the first one; 0.0 where none does.

    Waiting for as long as it would save costs at most twice what the better choice would have (ski rental: Karlin et al.
    1988, *Competitive snoopy caching*), and half of its time is left for the other way. A lane that bounds overtakes lets none be passed over.
    """
    if len(candidates) == 1 or request.lane.settings.max_overtakes is not None:
        return 0.0
    saved_s = candidates[0].cost_s - min([each.cost_s for each in candidates[1:]])
    half_s = (request.deadline - ttft_s - request.arrived_at) / 2.0
    return request.arrived_at + min(saved_s, half_s)


def _is_kept(request: Request, held: Held) -> bool:
    """Return whether an engine holds most of this prompt."""
    return bool(held) and 2 * max(held.values()) >= request.prompt_tokens


def has_room(engine: Engine, request: Request, held: Held, now: float) -> bool:
    """Return whether this attempt could start on this engine now: gate, and account where there is one."""
    gate, streams = engine.gate, engine.gate.streams_of(request.arrival)
    unread = unread_tokens(engine, request, held)
    if engine.is_tried or not gate.has_room(request.kv_tokens, unread, streams):
        return False
    if engine.prompts.is_on and engine.prompts.opens_at(request.lane.settings.name) > now:
        return False
    if not _reads_soon(engine, request, unread):
        return False
    return engine.provider is None or engine.provider.wait_s(request.sizes(), now) <= 0.0


def _reads_soon(engine: Engine, request: Request, unread: int) -> bool:
    """Return whether unread prompts, with this one, are read in a small part of its time; alone it always may."""
    gate, lane = engine.gate, request.lane.settings
    if gate.prefill_limit is None or not gate.prefill_tokens or lane.order == "arrival":
        return True
    reading_s = engine.service.reading_s(gate.prefill_tokens + unread)
    return reading_s <= _READING_SHARE * lane.deadline_s


def is_in_time(engine: Engine, request: Request, ttft_s: float, now: float) -> bool:
    """Return whether this attempt should be tried on this engine, given its predicted time to first token."""
    if now + ttft_s <= request.deadline:
        return True
    unknown = request.unread_tokens > _UNKNOWN_RATIO * engine.longest_read and not engine.gate.streams
    return unknown and now <= request.deadline


def _fits(engine: Engine, request: Request) -> bool:
    return engine.gate.fits(request.prompt_tokens, engine.gate.streams_of(request.arrival))


def _with_room(request: Request, engines: tuple[Engine, ...], held: Held, now: float) -> list[Engine]:
    """Return those of these engines that have room for this attempt now."""
    return [engine for engine in engines if _fits(engine, request) and has_room(engine, request, held, now)]
