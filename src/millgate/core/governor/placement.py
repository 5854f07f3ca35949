"""To which engine? To the cheapest.

The price of an engine changes when work starts there, reads its first token or ends. That is noted, and the engine is priced anew
when the next arrival wants a place. The cheapest is then found by comparing numbers, a microsecond for 64 engines where asking each
took fifty. Prices are those of the usual request, and are all renewed when it has changed. A long prompt, or a request for an adapter, is
priced by itself on every engine with room.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from millgate.core.decisions import Candidate
from millgate.core.events import PrefixMarks
from millgate.core.governor.adapter_turns import AdapterTurns
from millgate.core.governor.leg_costs import apart, has_memory, late_cost, pauses_cost
from millgate.core.governor.prices import Prices, is_long
from millgate.core.governor.turns import lets_pass
from millgate.core.measure import ALIKE, Ewma
from millgate.core.routing.least_work import usual_cost
from millgate.core.routing.prefix_index import Held, PrefixIndex
from millgate.core.routing.working_set import LiveSession, WorkingSets
from millgate.core.sizing import UNKNOWN_RATIO, USUAL_PROMPT_TOKENS
from millgate.core.sizing.output_length import PRIOR_OUTPUT_TOKENS
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine
from millgate.core.state.leg import Legs
from millgate.core.words import Counted, Role

# Prompts that wait inside an engine are beyond any order: no more wait there than are read in this share of a deadline,
# unless they are ordered as the engine would (from a tenth to three tenths serve about as many: docs/policies/short-first.md).
_READING_SHARE: Final = 0.2

_NOTHING: Final[Held] = {}

Kept = Mapping[int, int]
"""The engines, by number, that queued requests wait for, so that no later one takes their room."""

Place = tuple[Engine, float, float, tuple[Candidate, ...], Engine | None]
"""Where a request would go now, its time to first token there, until when a full engine is better, the candidates, this one first, and the engine that reads its prompt, where that is another.

Until then, an absolute core time, waiting for a full one of the candidates costs less, or the full ones are in time and this one is not; 0.0 where neither is so.
"""

Compared = tuple[Engine, Candidate]
_Engines = tuple[Engine, ...]
_May = Callable[[Engine, Request, Held, float], bool]
_Session = LiveSession | None


class Placement:
    """Finds the cheapest engine with room; it notes changes between two questions, in bounded memory."""

    def __init__(self, prefixes: PrefixIndex, working_sets: WorkingSets, legs: Legs) -> None:
        self._prefixes, self._working_sets, self._legs = prefixes, working_sets, legs
        self.adapter_turns = AdapterTurns()
        self.prices = Prices(working_sets, self.adapter_turns.adapters)
        self._numbered: dict[int, Engine] = {}
        self._engines: _Engines = ()
        self.has_adapters = self.has_overflow = False
        self._costs: list[float] = []
        self._unpriced: list[Engine] = []
        self._prompt = Ewma(float(USUAL_PROMPT_TOKENS), prior_samples=0.0)
        self._output = Ewma(PRIOR_OUTPUT_TOKENS, prior_samples=0.0)
        self._priced_for = (float(USUAL_PROMPT_TOKENS), float(PRIOR_OUTPUT_TOKENS))

    def choose_among(self, engines: _Engines) -> None:
        """From now on these engines take work; they may have other limits than before."""
        self._engines = engines
        self.has_adapters = any(engine.settings.adapters for engine in engines)
        self.has_overflow = any(engine.settings.overflow for engine in engines)
        self._costs = [inf] * len(engines)
        self._numbered = {engine.number: engine for engine in engines}
        enrol = self.adapter_turns.adapters.enrol
        for position, engine in enumerate(engines):
            engine.placed(position)
            settings = engine.settings
            enrol(engine.number, settings.adapters, settings.adapter_slots, settings.adapter_load_s)
        self._forget_prices()

    def changed(self, engine: Engine) -> None:
        """Take note that this engine's load or learned speed has changed."""
        if engine.is_priced:
            engine.priced(known=False)
            self._unpriced.append(engine)

    def started(self, request: Request, engine: Engine, now: float) -> None:
        """Learn from a request that this engine was given: the size of the usual one, and what is loaded there."""
        if engine.settings.role is not Role.UNIFIED:
            self._legs.begins_on(engine)
        if self.has_adapters:
            self.adapter_turns.started(request, engine, now)
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

    def able(self, request: Request, kept: Kept) -> _Engines:
        """Return the engines that are up and may be asked for it: none that has no slot for its adapter, or is `kept` for others."""
        up = request.route.up
        engines = self.adapter_turns.able(request, up) if self.has_adapters else up
        return tuple([each for each in engines if each.number not in kept]) if kept else engines

    def held(self, marks: PrefixMarks, prompt_tokens: int) -> Held:
        """Return the engines that hold most of this prompt."""
        return self._prefixes.deepest(marks, prompt_tokens) if marks else _NOTHING

    def among(self, request: Request, engines: _Engines, held: Held, now: float) -> Place | None:
        """Return where it would go of these engines: the cheapest, or where that is late the cheapest in time, else the soonest; None without room."""
        session = self.prices.session_of(request)
        chosen = self._chosen(request, engines, held, session, now) if engines else None
        if chosen is not None and not self._takes_all(chosen, request, held, session, now):
            engines = self._taking(request, engines, held, now)
            chosen = self._chosen(request, engines, held, session, now) if engines else None
        place = None if chosen is None else self._alone(chosen, request, engines, held, session, now)
        if self.has_adapters and request.arrival.model in self.adapter_turns.adapters.names:
            # What vLLM reads with an adapter is answered where that is loaded; of SGLang's engines none answers alone.
            if place is not None:
                return _when_loaded(self.adapter_turns, place, request)
            engines = tuple([each for each in engines if each.needs_reader])
        may_be_two = request.arrival.hands_over or request.arrival.bootstraps
        if engines and may_be_two and request.route.readers_up:
            return self._or_apart(place, request, engines, held, session, now)
        return place

    def _or_apart(
        self,
        alone: Place | None,
        request: Request,
        engines: _Engines,
        held: Held,
        session: _Session,
        now: float,
    ) -> Place | None:
        """Return two engines where they cost less than one; a first token that is late costs as many seconds as its lane's TTFT has."""
        engines = self._taking(request, engines, held, now)
        two = apart(self._prefixes, self._legs, request, engines, held, now)
        if two is None:
            return alone
        place = two.engine, two.ttft_s, 0.0, (), two.reader
        if alone is None:
            return place
        engine, ttft_s, better_until, candidates, _ = alone
        if better_until > now:
            return alone
        unread = _unread_of(candidates[0]) if candidates else request.prompt_tokens
        cost_s = self.prices.of(engine, request, unread, session, now) + pauses_cost(engine, request, unread)
        cost_s += late_cost(request, ttft_s, now)
        return place if two.cost_s + late_cost(request, two.ttft_s, now) < cost_s else alone

    def _alone(
        self, chosen: Engine, request: Request, engines: _Engines, held: Held, session: _Session, now: float
    ) -> Place | None:
        """Return the engine that would do all of it: the one chosen, or one that holds of its prompt, or the cheapest in time if these are late."""
        compared = self._compared(chosen, request, engines, held, session, now)
        found = _found(_cheapest(chosen, request, compared, held, now), request, compared, held, now)
        if now + found[1] <= request.deadline or len(request.route.up) == 1:
            return found
        other = _least_late(
            self.prices, request, self._taking(request, engines, held, now), held, session, now
        )
        if other is None:
            return None
        return _found(other, request, self._compared(other, request, engines, held, session, now), held, now)

    def _compared(
        self, other: Engine, request: Request, engines: _Engines, held: Held, session: _Session, now: float
    ) -> list[Compared]:
        """Return what this very request costs on each of these engines that hold of its prompt, and on the `other` one last.

        Those that hold of it may be full, and so may one that reads long prompts. Nothing is compared where there is neither.
        """
        asked = [each for each in self._holders(request, engines, held) if each is not other]
        if is_long(request):
            reading = tuple([each for each in engines if each.gate.prefill_tokens and each not in asked])
            most_s = self.prices.of(other, request, request.prompt_tokens, session, now)
            asked += filter(None, self._cheapest_where(_is_busy, request, reading, held, now, most_s)[:1])
        if not held and not asked:
            return []
        return [(each, self.candidate(each, request, held, session, now)) for each in (*asked, other)]

    def candidate(
        self, engine: Engine, request: Request, held: Held, session: _Session, now: float
    ) -> Candidate:
        """Return what this very request costs on this engine, its held prefix counted; `held` are those that hold most of its prompt."""
        tokens = held.get(engine.number, -1)
        if tokens < 0:
            tokens = self._prefixes.held_by(engine.number, request.marks, request.prompt_tokens)
        cost_s = self.prices.of(engine, request, max(1, request.prompt_tokens - tokens), session, now)
        return Candidate(engine.settings.name, tokens, request.prompt_tokens, cost_s)

    def is_kept_out(self, request: Request, held: Held, now: float) -> bool:
        """Return whether it would open a session where every engine is full of live ones."""
        return bool(request.marks) and not self._taking(request, request.route.up, held, now)

    def _taking(self, request: Request, engines: _Engines, held: Held, now: float) -> _Engines:
        """Return those of the engines that may answer it: all for a turn of a session whose context is kept, else those with room for what they do not hold of it."""
        if not request.marks or _goes_on(request, self.prices.session_of(request), held):
            return engines
        taking = [engine for engine in engines if self._takes(engine, request, held, now)]
        return engines if len(taking) == len(engines) else tuple(taking)

    def _takes_all(self, chosen: Engine, request: Request, held: Held, session: _Session, now: float) -> bool:
        """Return whether the engines that will be compared for it may all answer it: then the others, however many, need not be asked."""
        if not request.marks or _goes_on(request, session, held):
            return True
        asked = (chosen, *self._holders(request, request.route.up, held))
        return all(self._takes(each, request, held, now) for each in asked)

    def _takes(self, engine: Engine, request: Request, held: Held, now: float) -> bool:
        """Return whether this engine may open a session with it."""
        unread, tenant = unread_tokens(engine, request, held), request.tenant
        memory, per_token_s = engine.gate.kv_limit, engine.reading.per_token_s
        return self._working_sets.takes(engine.number, memory, tenant, unread, per_token_s, now)

    def _holders(self, request: Request, engines: _Engines, held: Held) -> list[Engine]:
        """Return those of these engines that hold of its prompt and may answer it, with room or without."""
        return [
            each
            for number in held
            if (each := self._numbered.get(number)) is not None
            and (engines is self._engines or each in engines)
            and _fits(each, request)
        ]

    def _chosen(
        self, request: Request, engines: _Engines, held: Held, session: _Session, now: float
    ) -> Engine | None:
        """Return which of these engines with room is cheapest whatever is held of its prompt, the first named among equals, or None."""
        if len(engines) == 1:
            only = engines[0]
            return only if _takes_now(only, request, held, now) else None
        if self._unpriced:
            _price(self._unpriced, self._engines, self._costs, self._priced_for)
        if self.prices.depends(request):
            return self._cheapest_for_it(request, engines, held, session, now)
        return self._usually_cheapest(request, engines, held, now)

    def _cheapest_for_it(
        self, request: Request, engines: _Engines, held: Held, session: _Session, now: float
    ) -> Engine | None:
        """Return the engine with room where this very request costs least.

        All are priced as if none held any of it, which costs no less. Then those that do take the place of what costs more.
        """
        cheapest, least_s = self._cheapest_where(_takes_now, request, engines, held, now)
        for each in self._holders(request, engines, held):
            cost_s = self.prices.of(each, request, unread_tokens(each, request, held), session, now)
            if cost_s > least_s or not has_room(each, request, held, now):
                continue
            if cheapest is None or cost_s < least_s or engines.index(each) < engines.index(cheapest):
                cheapest, least_s = each, cost_s
        return cheapest

    def _cheapest_where(
        self, may: _May, request: Request, engines: _Engines, held: Held, now: float, least_s: float = inf
    ) -> tuple[Engine | None, float]:
        """Return the cheapest engine below `least_s` that `may` take it, as if none held any of it, and its cost; those are priced that may be cheaper, and those asked that are."""
        unread, output_tokens, cheapest = float(request.prompt_tokens), float(request.output_tokens), None
        session = self.prices.session_of(request)
        for each in engines:
            if each.is_priced and each.cost_floor.of(unread, output_tokens) >= least_s:
                continue
            cost_s = self.prices.of(each, request, request.prompt_tokens, session, now)
            if cost_s < least_s and may(each, request, held, now):
                cheapest, least_s = each, cost_s
        return cheapest, least_s

    def _usually_cheapest(self, request: Request, engines: _Engines, held: Held, now: float) -> Engine | None:
        """Return the engine with room where the usual request costs least."""
        costs, cheapest, least = self._costs, None, inf
        for each in engines:  # compiled, less than what `min` takes
            cost = costs[each.position]
            if cost < least:
                cheapest, least = each, cost
        if cheapest is None or _takes_now(cheapest, request, held, now):
            return cheapest
        roomy = [each for each in engines if _takes_now(each, request, held, now)]
        return min(roomy, key=lambda engine: costs[engine.position], default=None)

    def _forget_prices(self) -> None:
        self._unpriced = list(self._engines)
        for engine in self._engines:
            engine.priced(known=False)


def roomy_engine(
    placement: Placement, request: Request, held: Held, now: float, kept: Kept = _NOTHING
) -> Place | None:
    """Return where this request, of whose prompt so much is `held`, would go now; engines that are `kept` are left to others.

    One for overflow comes only where the others have no room, or are late and it is not; where they are full it is better to wait
    for them as long as its lane says, and for half of its time at most. None without room.
    """
    engines = placement.able(request, kept)
    if not placement.has_overflow:
        return placement.among(request, engines, held, now)
    owned = tuple([each for each in engines if not each.settings.overflow])
    own = placement.among(request, owned, held, now)
    if own is not None and now + own[1] <= request.deadline:
        return own
    other = placement.among(request, tuple([each for each in engines if each.settings.overflow]), held, now)
    if other is None or own is not None:
        return other if other is not None and now + other[1] <= request.deadline else own
    after_s = request.lane.settings.overflow_after_s if owned and lets_pass(request) else 0.0
    until = request.arrived_at + min(after_s, (request.deadline - other[1] - request.arrived_at) / 2.0)
    return other[0], other[1], max(other[2], until), other[3], other[4]


def _price(unpriced: list[Engine], engines: _Engines, costs: list[float], usual: tuple[float, float]) -> None:
    """Price every engine that has changed, for a request of the usual size; one without any room costs infinity, and one that is to be tried nothing."""
    prompt_tokens, output_tokens = usual
    for engine in unpriced:
        position, gate, service = engine.position, engine.gate, engine.service
        if position >= len(engines) or engines[position] is not engine:
            continue
        engine.priced(known=True)
        streams, unread_s = gate.streams, service.reading_s(gate.unread_tokens)
        tpot_s = service.tpot_s(streams + 1)
        slower_s = tpot_s - service.tpot_s(streams)
        engine.cost_floor.moved(streams, unread_s, service.reading_s(1), tpot_s, slower_s)
        if engine.on_trial and not engine.is_tried:
            costs[position] = 0.0  # else it is not tried while another is a little cheaper
        elif gate.has_room(1, 1):
            ttft_s = service.ttft_s(prompt_tokens + gate.unread_tokens)
            costs[position] = usual_cost(streams, ttft_s, tpot_s, output_tokens)
        else:
            costs[position] = inf
    unpriced.clear()


def _when_loaded(turns: AdapterTurns, place: Place, request: Request) -> Place:
    """Return the place with the time that its adapter takes to be loaded."""
    engine, ttft_s, better_until, candidates, reader = place
    ttft_s += turns.adapters.load_s(engine.number, request.arrival.model)
    return engine, ttft_s, better_until, candidates, reader


def waits_for(placement: Placement, request: Request, now: float) -> dict[int, int]:
    """Return the engines, by number, that this request without room waits for: those that could ever run it, and whose pace lets it."""
    able = [each for each in placement.able(request, _NOTHING) if may_run(each, request)]
    lane, unread = request.lane.settings.name, request.unread_tokens
    return {each.number: each.number for each in able if each.opens_at(lane, unread) <= now}


def _least_late(
    prices: Prices, request: Request, engines: _Engines, held: Held, session: _Session, now: float
) -> Engine | None:
    """Return the cheapest engine with room whose first token is in time, the soonest where none is; None without room."""

    def lateness(each: Engine) -> tuple[float, float]:
        unread = unread_tokens(each, request, held)
        late_s = now + each.expected_ttft_s(unread, now) - request.deadline
        return max(0.0, late_s), prices.of(each, request, unread, session, now)

    return min([each for each in engines if _takes_now(each, request, held, now)], key=lateness, default=None)


def _in_time_until(request: Request, held: Held, now: float) -> float:
    """Return until when a permit of any engine, with room or without, is in time, where it is late on those with room."""
    if not lets_pass(request):
        return 0.0
    able = [each for each in request.route.up if _fits(each, request)]
    ttfts = [each.expected_ttft_s(unread_tokens(each, request, held), now) for each in able]
    return request.deadline - min(ttfts, default=inf)


def _cheapest(usual: Engine, request: Request, compared: list[Compared], held: Held, now: float) -> Engine:
    """Return the cheapest of those compared that have room; `usual`, which has, where there is nothing to compare."""
    cheapest, least_s = usual, inf
    for engine, own in compared:
        if own.cost_s < least_s and (engine is usual or has_room(engine, request, held, now)):
            cheapest, least_s = engine, own.cost_s
    return cheapest


def _found(engine: Engine, request: Request, compared: list[Compared], held: Held, now: float) -> Place:
    """Return this engine as the place to go."""
    candidates = tuple([own for each, own in compared if each is engine])
    candidates += tuple([own for each, own in compared if each is not engine])
    unread = _unread_of(candidates[0]) if candidates else request.prompt_tokens
    ttft_s = engine.expected_ttft_s(unread, now)
    better_until = _better_until(request, candidates, ttft_s)
    if not is_in_time(engine, request, ttft_s, now):
        better_until = max(better_until, _in_time_until(request, held, now))
    return engine, ttft_s, better_until, candidates, None


def _unread_of(candidate: Candidate) -> int:
    """Return how many tokens of the prompt it would read, one at least."""
    return max(1, candidate.prompt_tokens - candidate.cached_tokens)


def _better_until(request: Request, candidates: tuple[Candidate, ...], ttft_s: float) -> float:
    """Return until when waiting for another candidate, a full engine, costs less than the first one; 0.0 where none does.

    Waiting for as long as it would save costs at most twice what the better choice would have (ski rental: Karlin et al.
    1988, *Competitive snoopy caching*), and half of its time is left for the other way. A lane that bounds overtakes lets none be passed over.
    """
    if len(candidates) < 2 or request.lane.settings.max_overtakes is not None:
        return 0.0
    saved_s = candidates[0].cost_s - min([each.cost_s for each in candidates[1:]])
    half_s = (request.deadline - ttft_s - request.arrived_at) / 2.0
    return request.arrived_at + min(saved_s, half_s)


def _goes_on(request: Request, session: _Session, held: Held) -> bool:
    """Return whether it is a turn of a session whose context is kept: it is live, or an engine holds most of this prompt."""
    if session is None or not session.is_over:
        return session is not None
    return bool(held) and 2 * max(held.values()) >= request.prompt_tokens


def unread_tokens(engine: Engine, request: Request, held: Held) -> int:
    """Return how many tokens of its prompt this engine has to read, one at least."""
    return max(1, request.prompt_tokens - held.get(engine.number, 0)) if held else request.prompt_tokens


def has_room(engine: Engine, request: Request, held: Held, now: float) -> bool:
    """Return whether this attempt could start on this engine now: gate, and account where there is one."""
    gate, streams = engine.gate, engine.gate.streams_of(request.arrival)
    unread = unread_tokens(engine, request, held)
    if engine.is_tried or (engine.silence.lasts_s > 0.0 and (gate.unread_tokens or _is_spared(request))):
        return False
    if not gate.has_room(request.kv_tokens, unread, streams) or not _reads_soon(engine, request, unread):
        return False
    if engine.prompts.is_on and engine.opens_at(request.lane.settings.name, unread) > now:
        return False
    return engine.provider is None or engine.provider.wait_s(request.sizes(), now) <= 0.0


def _is_spared(request: Request) -> bool:
    """Return whether a silent engine is not tried with it: it may have failed there before, and another one speaks."""
    up = request.route.up
    return request.is_retry and any(not each.silence.lasts_s and may_run(each, request) for each in up)


def _takes_now(engine: Engine, request: Request, held: Held, now: float) -> bool:
    return _fits(engine, request) and has_room(engine, request, held, now)


def _is_busy(engine: Engine, request: Request, held: Held, now: float) -> bool:
    """Return whether only the prompts that this engine reads keep it out."""
    may_run = engine.provider is None and _fits(engine, request) and has_memory(engine, request)
    return may_run and not has_room(engine, request, held, now)


def kept_out_by(request: Request, now: float) -> tuple[Counted, float, float] | None:
    """Return what keeps it out of an engine that has streams for it, with what it needs and what there is; None where streams do."""
    for engine in request.route.up:
        gate = engine.gate
        if gate.streams + gate.streams_of(request.arrival) > engine.limit:
            continue
        kv_tokens, _ = gate.clip(request.kv_tokens, 0)
        if kv_tokens > gate.kv_left():
            return Counted.MEMORY, kv_tokens, gate.kv_left()
        if engine.provider is not None:
            return Counted.ACCOUNT, engine.provider.wait_s(request.sizes(), now), 0.0
        if gate.prefill_tokens:
            return Counted.PROMPTS, request.unread_tokens, gate.prefill_tokens
    return None


def _reads_soon(engine: Engine, request: Request, unread: int) -> bool:
    """Return whether unread prompts, with this one, are read in a small part of its time; alone it always may.

    In a lane with more time than another it waits while they take more than such a part of the other's, unless nothing is to be written. A whole answer goes where readings are only guessed: a gate that lets one in at a time never learns that its guess is too slow.
    """
    gate, lane, soonest = engine.gate, request.lane.settings, engine.prompts.first_tokens
    if gate.prefill_limit is None or not gate.prefill_tokens:
        return True
    if soonest is not None and request.output_tokens and lane.ttft_slo_s > soonest.ttft_slo_s:
        return engine.service.reading_s(gate.unread_tokens) <= _READING_SHARE * soonest.ttft_slo_s
    if lane.order == "arrival" or (engine.reading.is_guessed and not request.arrival.stream):
        return True
    return engine.service.reading_s(gate.prefill_tokens + unread) <= _READING_SHARE * lane.deadline_s


def is_in_time(engine: Engine, request: Request, ttft_s: float, now: float) -> bool:
    """Return whether this attempt should be tried on this engine, given its predicted time to first token."""
    unknown = request.unread_tokens > UNKNOWN_RATIO * engine.longest_read and not engine.gate.streams
    return now + (0.0 if unknown else ttft_s) <= request.deadline


def may_run(engine: Engine, request: Request) -> bool:
    """Return whether it can ever run this request, with one that reads for it where it cannot itself."""
    readers = request.route.readers_of(engine) if engine.needs_reader else (engine,)
    return request.fits_on(engine) and any(request.fits_on(each) for each in readers)


def _fits(engine: Engine, request: Request) -> bool:
    """Return whether it can ever do all of this request."""
    return not engine.needs_reader and request.fits_on(engine)
