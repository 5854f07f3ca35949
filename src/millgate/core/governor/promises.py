"""When would a newcomer be served, and what may it be promised: its forecast, its hint, and the refusal that carries it.

An engine is two service centres: a request needs a stream, and its prompt is read after all those before it. The later of the two
counts. Prompts are a sum of tokens over a speed, and each is counted once: those that wait inside the engine delay the permit
where the meter is full, and the first token after it where it is not.

A hint is the time at which this client would be admitted if it came back then. Its place is counted behind queued requests and
clients that were refused before and are expected back; the time of that place is read off `capacity_forecast` (design section 4).
Hints beyond what can be known are spread evenly (`measure.spread`).
"""

from array import array
from math import ceil, inf, isfinite
from typing import Final

from millgate.core.decisions import Yield
from millgate.core.fast_records import make_yield
from millgate.core.governor.allowances import Shortfall
from millgate.core.governor.quota_lines import Behind
from millgate.core.governor.turns import ahead_of, limit_of
from millgate.core.limits.breaker import restart_hint_s
from millgate.core.measure import ALIKE, UPPER_Z, spread
from millgate.core.routing.working_set import WorkingSets
from millgate.core.settings import LONGEST_HINT_S
from millgate.core.state.attempt import Request
from millgate.core.state.capacity_forecast import LISTED, held_where_memory_binds
from millgate.core.state.engine import LEAST_WORK_S, Engine, usual_kv_tokens
from millgate.core.state.lane import Lane, Totals
from millgate.core.tickets import KEPT_SHARE, SOONEST_RETURN_S, TOLERANCE_S
from millgate.core.tickets.appointment import kept_within_s, shortest_kept_s
from millgate.core.tickets.appointments import LineStanding, as_parts
from millgate.core.words import DeadlineFrom, Reason


def expected_wait_s(request: Request, place: int, now: float) -> float:
    """Return how long an attempt at this place is expected to wait: for permits, and for accounts where those bind."""
    route = request.route
    if route.up[0].provider is None:
        return route.pool.capacity_forecast.wait_s(
            place, now, streams=route.up[0].gate.streams_of(request.arrival)
        )
    accounts = [engine.provider for engine in route.up if engine.provider is not None]
    free = route.free()
    permit_s = 0.0 if place <= free else route.pool.capacity_forecast.wait_s(place - free, now)
    if len(accounts) < len(route.up):
        return permit_s
    sizes = request.sizes()
    waits = [(each.wait_s(sizes, now), each.wait_s(sizes, now, place)) for each in accounts]
    return max(permit_s, _together_s(waits, place))


def _together_s(waits: list[tuple[float, float]], place: int) -> float:
    """Return when the `place`-th of a line goes that several accounts take from.

    Each would take the first of such a line, and the `place`-th, after so long if it were alone, and those between at even steps.
    """
    waits.sort()
    soonest_s, taken, per_s = inf, 0.0, 0.0
    for first_s, last_s in waits:
        if first_s >= soonest_s:
            break
        if last_s <= first_s:
            return first_s
        if last_s < inf:
            each_per_s = (place - 1) / (last_s - first_s)
            taken, per_s = taken + 1.0 - first_s * each_per_s, per_s + each_per_s
            soonest_s = max(first_s, (place - taken) / per_s)
    return soonest_s


def forecast(request: Request, place: int, now: float, slot_s: float = 0.0) -> tuple[float, float, float]:
    """Return the wait for a permit at this place (1 is next), the same nine times in ten, and the time to first token after it.

    The first is what is expected, in seconds from now. The sum of the others is when the first token has come nine times
    in ten. Its adapter has a slot in `slot_s`, and is loaded then.
    """
    engines, capacity_forecast = _of_use(request, request.route.up), request.route.pool.capacity_forecast
    reading = _reading_engines(request, engines)
    ttft_s = min([engine.expected_ttft_s(request.unread_tokens, now) for engine in reading])
    if slot_s > 0.0 and place <= _free_streams(request, engines):
        return slot_s, slot_s, ttft_s + engines[0].settings.adapter_load_s
    paced_s = paced_wait_s(request, request.queue.order.ahead_of(request), now)
    if waits_for_pace_alone(request, place):
        return paced_s, paced_s, ttft_s
    if not _is_metered(reading):
        wait_s = max(paced_s, expected_wait_s(request, place, now))
        return wait_s, wait_s + capacity_forecast.upper_s(place), ttft_s
    permit_s = late_s = 0.0
    beyond = _departures(request, place, engines)
    if beyond > 0:
        permit_s = capacity_forecast.wait_s(beyond, now, prompts=False)
        late_s = capacity_forecast.upper_s(beyond, prompts=False)
    reading_s, first_s = _reading(request, _tokens_of(request, place - 1, reading[0]), reading, now)
    surely = _surely(reading)
    ttft_s *= surely
    upper_s = max(permit_s + late_s, reading_s + first_s * surely - ttft_s, paced_s)
    return max(permit_s, reading_s, paced_s), upper_s, ttft_s


def session_room_s(working_sets: WorkingSets, request: Request, ahead: int, now: float) -> float:
    """Return when there is room for its session where live ones take it: as a lease ends, or the first of the turns that keep it out alone."""
    room_s, tokens = working_sets.next_room_s(now), request.unread_tokens
    for engine in request.route.up:
        kv_tokens, per_token_s = engine.gate.kv_limit or 0, engine.reading.per_token_s
        if working_sets.takes_after_turns(engine.number, kv_tokens, tokens, per_token_s):
            ended = max(1, _departures(request, ahead + 1, request.route.up))
            return min(room_s, request.route.pool.capacity_forecast.wait_s(ended, now, prompts=False))
    return room_s


def waits_for_pace_alone(request: Request, place: int) -> bool:
    """Return whether its lane is paced while streams are free for it at this place (1 is next)."""
    return request.queue.paced_until() > -inf and place <= _free_streams(request, request.route.up)


def paced_wait_s(request: Request, ahead: float, now: float) -> float:
    """Return how long its prompt waits for those that its lane has ahead of it; 0 where its lane is not paced.

    Those are taken to be as long as its own, and to be spread over its engines.
    """
    lane, engines = request.lane.settings.name, request.route.up
    if not engines or not engines[0].prompts.is_on:
        return 0.0
    contended, each_s, least_s = request.queue.is_contended(), ahead / len(engines), inf
    for engine in engines:
        reads = engine.reads_within(request.unread_tokens)
        apart_s = engine.prompts.spacing_s(lane, request.unread_tokens, reads, now, contended=contended)
        opens_at = engine.opens_at(lane, request.unread_tokens, contended=contended, quiet_by=now)
        least_s = min(least_s, max(0.0, opens_at - now) + each_s * apart_s)
    return least_s


def wait_behind_s(
    request: Request, queued: int, away_s: float, first: "array[int]", share: float, work_s: float, now: float
) -> tuple[float, float]:
    """Return how long it is expected to wait behind the queued and the away, and how much longer reading may take.

    So many are queued; the work of the clients that are away is `away_s`, that of all `work_s`, in seconds of permits,
    and `first` and `share` are as in `capacity_forecast`. Prompts of the away are taken to be as large a part of it as
    of usual work. The second is nine times in ten.
    """
    engines, capacity_forecast = _of_use(request, request.route.up), request.route.pool.capacity_forecast
    reading, kv_tokens = _reading_engines(request, engines), _kv_tokens(request, engines)
    if not _is_metered(reading):
        return capacity_forecast.wait_behind_s(first, share, work_s, 0, kv_tokens, now), 0.0
    free = _free_streams(request, engines)
    permit_s = capacity_forecast.wait_behind_s(first, share, work_s, free, kv_tokens, now)
    usual, prompt_tokens = engines[0], reading[0].work_prompt.mean
    away = away_s / max(LEAST_WORK_S, usual.permit_s(prompt_tokens, usual.work_output.mean))
    tokens = _tokens_of(request, queued, reading[0]) + away * prompt_tokens
    reading_s, _ = _reading(request, tokens, reading, now)
    if reading_s <= permit_s:
        return permit_s, 0.0
    return reading_s, reading_s * (_surely(reading) - 1.0)


def _reading_engines(request: Request, engines: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """Return the engines that may read its prompt: where none of these, which answer, does (SGLang), those that read for others."""
    readers = request.route.readers_up
    return _of_use(request, readers) if readers and all(each.needs_reader for each in engines) else engines


def _of_use(request: Request, engines: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """Return those of these engines that, idle, read its prompt in the time of its lane; all where none does.

    The others may have room that this request has no use of.
    """
    if len(engines) == 1:
        return engines
    tokens, deadline_s = request.unread_tokens, request.lane.settings.deadline_s
    fast = tuple([each for each in engines if each.service.ttft_s(tokens) <= deadline_s])
    return fast if fast and len(fast) < len(engines) else engines


def _surely(engines: tuple[Engine, ...]) -> float:
    """Return how many times as long as predicted reading takes nine times in ten at most."""
    return 1.0 + sum([engine.reading.upper_share for engine in engines], 0.0) / len(engines)


def _is_metered(engines: tuple[Engine, ...]) -> bool:
    """Return whether prompts may be what these engines' permits wait for."""
    return all(engine.gate.prefill_limit is not None and engine.provider is None for engine in engines)


def _free_streams(request: Request, engines: tuple[Engine, ...]) -> int:
    """Return how many streams are free for usual requests of its lane that have memory, too."""
    free = 0
    for engine in engines:
        streams, kv_left = max(0, engine.limit - engine.gate.streams), engine.gate.kv_left()
        free += streams if kv_left == inf else min(streams, int(kv_left / usual_kv_tokens(engine)))
    return max(0, free - _left_to_others(request))


def _left_to_others(request: Request) -> int:
    """Return how many free streams its lane may not have: the headroom of others."""
    pool = request.route.pool
    if pool.shares is None or pool.shares.lends_all:
        return 0
    return pool.shares.reserved_for_others(request.lane.settings.name, limit_of(pool))


def _kv_tokens(request: Request, engines: tuple[Engine, ...]) -> float:
    """Return how much memory it takes: all that an engine has at most, for one that reserves more runs alone."""
    return float(max([engine.gate.clip(request.kv_tokens, 0)[0] for engine in engines]))


def _departures(request: Request, place: int, engines: tuple[Engine, ...]) -> int:
    """Return how many permits end before there are a stream and memory for it at this place; 0 or less where there are.

    It needs the tokens of all before it, but for those that are free, and each permit that ends gives what a running one has.
    """
    pool = request.route.pool
    lacking = _kv_tokens(request, engines)
    if pool.queued_count:
        lacking += pool.queued_kv_tokens / pool.queued_count * (place - 1)
    free = held = running = 0
    for engine in engines:
        gate = engine.gate
        free += max(0, engine.limit - gate.streams)
        lacking -= gate.kv_left()
        held += gate.kv_tokens
        running += gate.streams
    beyond = place - max(0, free - _left_to_others(request))
    if lacking > 0.0 and held:
        return max(beyond, ceil(lacking * running / held))
    return beyond


def _reading(request: Request, tokens: float, engines: tuple[Engine, ...], now: float) -> tuple[float, float]:
    """Return how long so many tokens of others keep it from a permit, and how long its first token takes then.

    What the engines have not read yet is ahead as well; the first token comes behind what the meter lets in.
    """
    own, first = request.unread_tokens, engines[0]
    unread = own + tokens
    room = 0
    tokens_per_s = 0.0
    for engine in engines:
        unread += engine.unread_tokens(now)
        room += engine.gate.prefill_limit or 0
        per_token_s = engine.reading.per_token_s
        tokens_per_s += 1.0 / per_token_s if per_token_s > 0.0 else inf
    inside = min(unread, max(room, own))
    outside_s = (unread - inside) / tokens_per_s
    if unread > inside:
        # The meter has room again when another request's first token is out, which takes more than the reading.
        outside_s += first.service.ttft_s(0)
    return outside_s, first.service.ttft_s(max(own, inside / len(engines)))


def _tokens_of(request: Request, ahead: int, reader: Engine) -> float:
    """Return how many prompt tokens the first so many in the line have.

    The tokens of all queued requests are known; a part of the line has its part of them. Where the shortest goes first,
    those ahead are as long as what this engine reads.
    """
    pool = request.route.pool
    if not ahead or not pool.queued_count:
        return 0.0
    if request.queue.offered is not None:
        return ahead * reader.work_prompt.mean
    return pool.queued_prompt_tokens * ahead / pool.queued_count


# A place beyond the longest hint is a guess; those clients are spread evenly from here up to it.
FAR_HINT_S: Final = 45.0
# A client is asked to be back a little before its permit is expected: coming early costs a short hold, coming late
# costs an idle stream. A little is the share that a client cannot tell (`KEPT_SHARE`) of what it may be queued, so that
# it is queued when permits come sooner. Where newcomers are queued they keep the streams busy while the promised are
# away: a later hint idles none, and is aimed for 39 in 40 instead of nine in ten (one-sided points of the normal law).
# Only a newcomer is told so, for only its coming shows that they come: after a burst no request fills the time.
_SURER: Final = 1.96 / UPPER_Z
# So much of the load of shorter work lengthens a wait. Short ones that are refused come by appointments of their own and
# pass none. And where all come by appointments, so much of it shortens the line that a longer one may join. Measured over
# 1.3 to 3 times the capacity (docs/policies/appointments-and-tickets.md): 1 promises less, and costs 1 % more good answers;
# 0.6 breaks 4 % of the promises.
_PASSING_SHARE: Final = 0.8
_LINE_SHARE: Final = 1.0 / 3.0
ELSEWHERE_HINT_S: Final = 1.0


def promise(totals: Totals, request: Request, now: float) -> tuple[float, float]:
    """Return when this client, refused now, would be admitted if it came back then, in [0.1, 60] s, and by when for sure.

    That is the time in seconds from now by which nine in ten clients that come then are admitted: infinite where it cannot
    be known, and 0 while nothing is measured, as an unmeasured spread refuses no request.
    """
    arrival, pool = request.arrival, request.route.pool
    appointments, capacity_forecast = pool.appointments, pool.capacity_forecast
    queued = ahead_of(request, now)
    stand = appointments.stand(arrival.tenant, request.age.lined_up_at, request.arrival_number, now, LISTED)
    share, elsewhere_s = stand.share, _ahead_elsewhere_s(request, queued + stand.place - 1)
    place = 1 + queued + int(share * (stand.place - 1) + 0.5)  # `round` is called as an object is
    work_s, first = stand.work_s + elsewhere_s, stand.first
    if queued:
        queued_s = pool.queued_work_s / pool.queued_count
        work_s += queued * queued_s
        # Queued requests are there: what counts by `share` is divided by it first.
        first = (array("I", (as_parts(queued_s / share),)) * min(queued, LISTED) + first)[:LISTED]
    # An unmeasured spread never lengthens a hint.
    measured = all(each.provider is None and each.drain.spread_is_measured for each in request.route.up)
    late_s = capacity_forecast.upper_everywhere_s(place, elsewhere_s) if measured else 0.0
    if not request.recognised and queues_newcomers(request.lane):
        late_s *= _SURER
    wait_s, reading_late_s = 0.0, 0.0
    if not waits_for_pace_alone(request, place):
        wait_s, reading_late_s = _wait_behind_s(request, queued, stand, first, work_s, now)
    wait_s = max(wait_s, paced_wait_s(request, place - 1, now))
    if measured:
        late_s = max(late_s, reading_late_s)
    expected_s, late_s, by_s = _behind_shorter(request, wait_s, late_s, now)
    is_overtaken = share < 1.0 - ALIKE or appointments.has_several(now)
    if is_overtaken or held_where_memory_binds(request.route.up) > 0.0:
        # No further than is of use, and not `by_s`: a request that might still be in time is not refused for it.
        latest_s = _latest_permit_s(request, now)
        stretched_s = min(expected_s * (1.0 + pool.overtaking.share), latest_s - late_s)
        expected_s = max(expected_s, min(stretched_s, shortest_kept_s(latest_s)))
    if not measured:
        by_s = 0.0
    if expected_s > LONGEST_HINT_S or not appointments.has_room_for(arrival.tenant, now):
        return far_hint_s(totals), by_s
    return min(max(SOONEST_RETURN_S, _aim_s(expected_s, late_s)), LONGEST_HINT_S), by_s


def _ahead_elsewhere_s(request: Request, ahead: int) -> float:
    """Return how much work stands before it at other replicas, where so many do here.

    Lines of all replicas are taken to be of one age: it has as large a part of theirs before it as of its own line.
    """
    pool = request.route.pool
    here = pool.queued_count + pool.appointments.open
    if here:
        return pool.others_work_s * min(1.0, ahead / here)
    return 0.0 if request.recognised else pool.others_work_s


def _wait_behind_s(
    request: Request, queued: int, stand: LineStanding, first: "array[int]", work_s: float, now: float
) -> tuple[float, float]:
    """Return the expected wait behind so much work, and how much longer nine in ten may wait for prompts."""
    if request.route.up[0].provider is not None:
        return expected_wait_s(request, 1 + queued + round(stand.share * (stand.place - 1)), now), 0.0
    if request.queue.offered is not None and queues_newcomers(request.lane):
        # Shorter prompts go first whenever they come: by those that wait the long would be promised what they never get.
        kv_tokens = _kv_tokens(request, request.route.up)
        capacity_forecast = request.route.pool.capacity_forecast
        return capacity_forecast.wait_behind_s(first, stand.share, work_s, 0, kv_tokens, now), 0.0
    return wait_behind_s(request, queued, stand.work_s, first, stand.share, work_s, now)


def _behind_shorter(request: Request, wait_s: float, late_s: float, now: float) -> tuple[float, float, float]:
    """Return a wait, its upper part and the time by which it is over, with what shorter work takes of them.

    Where newcomers are queued, shorter ones go first, and the wait itself is longer. Where none is, all come by
    appointments: there the wait is that of the line, and only its end is moved, so that the
    longer the line, the shorter a request must be to join it.
    """
    offered = request.queue.offered
    if offered is None:
        return wait_s, late_s, _kept_until_s(wait_s, late_s)
    load = offered.load_below(request.work_s, now, request.route.pool.capacity_forecast.per_s())
    if not queues_newcomers(request.lane):
        room = 1.0 - _LINE_SHARE * load
        return wait_s, late_s, _kept_until_s(wait_s, late_s) / room if room > 0.0 else inf
    room = 1.0 - _PASSING_SHARE * load
    if room <= 0.0:
        return inf, late_s, inf
    return wait_s / room, late_s / room, _kept_until_s(wait_s, late_s) / room


def _kept_until_s(wait_s: float, late_s: float) -> float:
    return wait_s + max(late_s, kept_within_s(wait_s))


def queues_newcomers(lane: Lane) -> bool:
    """Return whether a request that was promised nothing may wait in this lane."""
    settings = lane.settings
    return settings.max_queue != 0 and settings.max_wait_s != 0.0


def _aim_s(expected_s: float, late_s: float) -> float:
    """Return when to come back for a permit expected then, which nine times in ten comes at most `late_s` later.

    A little early; but where little is sure (few streams, answers of very different length) not before the time from
    which nine in ten are let in while their promise is still kept.
    """
    early_s = min(expected_s - KEPT_SHARE * TOLERANCE_S, expected_s / (1.0 + KEPT_SHARE * KEPT_SHARE))
    return max(early_s, shortest_kept_s(expected_s + late_s))


def far_hint_s(totals: Totals) -> float:
    """Return 45 to 60 s, spread: of a place beyond the longest hint."""
    return FAR_HINT_S + spread(totals.hints_given) * (LONGEST_HINT_S - FAR_HINT_S)


# These lie with one tenant or this replica: the hint is its own, and it gets no appointment in the line of engines.
OUT_OF_LINE: Final = frozenset((Reason.QUOTA, Reason.TENANT_LIMIT, Reason.RETRY_BUDGET, Reason.NO_LEASE))
UNPROMISED: Final = OUT_OF_LINE | {Reason.TOO_LARGE, Reason.DRAINING, Reason.NO_ENGINE}


def refusal(
    totals: Totals,
    request: Request,
    reason: Reason,
    now: float,
    value: float,
    bound: float,
    wait_s: float = 0.0,
    not_before_s: float = 0.0,
) -> Yield:
    """Return the decision to refuse this attempt, with a hint that is true.

    `wait_s` is until its tenant may have it, for reasons that lie with the tenant alone; there is no room `not_before_s`.
    """
    if reason in UNPROMISED:
        hint_s, retry, value, bound = _without_promise(request, reason, value, bound, wait_s)
    else:
        hint_s, by_s = promise(totals, request, now)
        hint_s = max(hint_s, min(not_before_s, LONGEST_HINT_S))
        retry = _is_in_time(request, hint_s, by_s, now) or _begins_anew_at(request, hint_s, now)
        # Its prompt alone may take longer to read than it may wait in all, whenever it comes. What its answer takes is off that time.
        is_lanes = request.deadline == request.lane_deadline
        waits_s = request.lane.settings.deadline_s if is_lanes else request.deadline - request.arrived_at
        if reason is Reason.TOO_LATE and request.reading_s() > waits_s:
            retry = False
    return make_yield(
        request.attempt,
        reason,
        hint_s,
        retry=retry,
        value=value,
        bound=bound,
        first_seen=request.first_seen,
        classed=request.classed,
    )


def short_refusal(totals: Totals, request: Request, short: Shortfall, now: float) -> Yield:
    """Return the decision to refuse this attempt for what its tenant lacks; a return for streams is of use in time alone."""
    decision = refusal(totals, request, short.reason, now, short.value, short.bound, short.wait_s)
    decision = _in_line(totals, decision, short.behind)
    if short.reason is not Reason.TENANT_LIMIT or not decision.retry:
        return decision
    hint_s, latest_s = decision.retry_after_s, shortest_kept_s(_latest_permit_s(request, now))
    aimed_s = min(LONGEST_HINT_S, latest_s, shortest_kept_s(short.surely_s))
    return decision._replace(retry=hint_s <= latest_s, retry_after_s=max(hint_s, aimed_s))


def _in_line(totals: Totals, decision: Yield, behind: Behind | None) -> Yield:
    """Return the refusal with the time at which there is enough for all that were told before, too.

    Beyond the longest hint that time is a guess, and clients are spread evenly up to it.
    """
    if behind is None or not decision.retry:
        return decision
    hint_s = max(decision.retry_after_s, behind.wait_s)
    if hint_s > LONGEST_HINT_S:
        hint_s = far_hint_s(totals)
    return decision._replace(retry_after_s=hint_s, promised=behind.promised)


def _without_promise(
    request: Request, reason: Reason, value: float, bound: float, wait_s: float
) -> tuple[float, bool, float, float]:
    """Return hint, retry, value and bound of a refusal that no appointment in the line of engines would help."""
    if reason is Reason.TOO_LARGE:
        return 0.0, False, value, bound
    if reason in {Reason.DRAINING, Reason.NO_LEASE}:
        return ELSEWHERE_HINT_S, True, 0.0, 0.0
    if reason is Reason.NO_ENGINE:
        return restart_hint_s(request.attempt, request.arrival.retry_count), True, value, bound
    # It lies with its tenant, and is the time to the next token.
    return min(max(SOONEST_RETURN_S, wait_s), LONGEST_HINT_S), wait_s <= LONGEST_HINT_S, value, bound


def _is_in_time(request: Request, hint_s: float, by_s: float, now: float) -> bool:
    """Return whether a return is of use: let in nine times in ten, and while its promise counts as kept, for its first token to be in time."""
    latest_s = _latest_permit_s(request, now)
    return isfinite(by_s) and by_s <= latest_s and hint_s <= shortest_kept_s(latest_s)


def _latest_permit_s(request: Request, now: float) -> float:
    """Return how late a permit is of use to a return: its prompt is read before a deadline that began with the first attempt."""
    if request.lane.settings.deadline_from is DeadlineFrom.ATTEMPT:
        return inf
    return request.lane_deadline - now - request.reading_s()


def _begins_anew_at(request: Request, hint_s: float, now: float) -> bool:
    """Return whether any account opens too late to keep a promise before its deadline: a return then is a new request.

    A provider's long `retry-after` shuts an account for every client alike; no age helps, and none is held against it.
    """
    left_s = shortest_kept_s(request.lane_deadline - now)
    if hint_s <= left_s or not request.route.up:
        return False
    accounts = [engine.provider for engine in request.route.up]
    return all(each is not None and left_s < each.wait_s(request.sizes(), now) < inf for each in accounts)
