"""How attempts end, and how their permits end after them.

An attempt ends with one outcome (INV-1). Its permit ends when the engine is done with it: the runtime says so
(`Released`) after a whole answer or a failure. After a hang-up no event says so, and engines differ: vLLM stops
within 0.3 s, others generate to the end. So the governor concludes it:

- with a fresh gauge (the engine's own running + waiting) from what the gauge shows beyond the attempts that are
  certainly alive;
- else after the engine's learned abort lag, or, for an engine that ignores hang-ups, after the tokens that remain.

Releasing too early over-admits the engine at every hang-up; too late wastes a stream. The gauge is younger than
what has just been sent, so attempts admitted shortly before the reading are not counted as certainly in it: the
conclusion errs on the side of holding the permit.
"""

from typing import Final

from millgate.core.decisions import Cancel, Cause, Decision, Ended
from millgate.core.events import EngineProgress, EngineSeen, Failed, Finished
from millgate.core.fast_records import make_ended
from millgate.core.governor import legs
from millgate.core.governor.allowances import Allowances
from millgate.core.governor.commit import dispatch, leave_queue, record_of
from millgate.core.governor.failover import detour_after, try_again
from millgate.core.governor.knowledge import Attempts, Engines, Knowledge
from millgate.core.governor.promises import ELSEWHERE_HINT_S
from millgate.core.governor.ranks import rank_anew
from millgate.core.governor.watch import answered, grew, has_fresh_gauge, output_so_far
from millgate.core.lifecycle import State
from millgate.core.limits.breaker import restart_hint_s
from millgate.core.limits.gate import is_only_read, is_seen_beginning, is_seen_read
from millgate.core.sizing.output_length import OutputLength
from millgate.core.slo import answered_in_time, streamed_in_time
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine, Permit, learn_unseen
from millgate.core.state.lane import Totals
from millgate.core.state.leg import has_taken_over
from millgate.core.tickets.appointment import Appointment
from millgate.core.words import UNREAD, FailureKind, IgnoresHangups, Outcome, Reason, Sent, Stage

# An admission reaches the engine's gauge within this time: connect, parse, schedule one step.
_GAUGE_SETTLE_S: Final = 0.25
# Failures that load can explain; the others say nothing of how many streams an engine can run.
_OVERLOADED: Final[tuple[FailureKind, ...]] = (FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.BROKEN)
# Outcomes that count for the objective of a lane as answers: refused requests and hang-ups had none.
_JUDGED: Final[tuple[Outcome, ...]] = (Outcome.GOOD, Outcome.LATE, Outcome.ENGINE_FAILED)
# A client that hangs up after this share of the deadline was tired of waiting (design section 4, step 3).
_TIRED_SHARE: Final = 0.1
# Of its lane's deadline, for what was only guessed: with all of it an idle engine would be asked no more.
_UNSEEN_SHARE: Final = 0.5


def first_token(engines: Engines, attempt: Attempt, at: float) -> None:
    """The prompt has been read: learn how long it took and give the prefill share back."""
    permit, engine = permit_of(attempt)
    leg = attempt.reading
    at = max(at, permit.admitted_at)
    if leg is None:
        engine.first_token(permit, attempt.unread_tokens, at)
    else:
        has_taken_over(engine, permit, at)
        legs.fetched(engines, attempt, leg, at, is_seen=True)
    engines.note(permit, engine)


def permit_of(attempt: Attempt) -> tuple[Permit, Engine]:
    """Return the permit of an attempt that was admitted, and its engine."""
    permit, engine = attempt.permit, attempt.engine
    assert permit is not None
    assert engine is not None
    return permit, engine


def finished(knowledge: Knowledge, attempt: Attempt, event: Finished, now: float) -> Ended:
    """A whole answer: judge it, and learn its sizes and its speed."""
    permit, engine = permit_of(attempt)
    request = attempt.request
    engines, totals = knowledge.engines, knowledge.totals
    measured = event.output_tokens if event.output_tokens is not None else permit.output_seen
    output_tokens = request.output_tokens if event.output_tokens is None and not measured else measured
    prompt_tokens, cached_tokens = event.prompt_tokens or request.prompt_tokens, event.cached_tokens or 0
    good = _in_time(attempt, engine, output_tokens, now)
    if attempt.reading is not None:
        legs.fetched(engines, attempt, attempt.reading, now, is_seen=False)
    if event.prompt_tokens:
        attempt.is_told(event.prompt_tokens, event.cached_tokens)
        asked = request.arrival
        knowledge.prompt_sizes.erred(request.prompt_tokens, event.prompt_tokens)
        knowledge.prompt_sizes.learn(
            asked.model, asked.prompt_bytes, event.prompt_tokens, asked.fixed_tokens, asked.prompt_shape
        )
    if is_only_read(request.arrival):
        _learn_reading(engines, totals, attempt, now)
    elif measured > 0:
        totals.answered()
        engine.service.answered()
        is_learned = _learn_unseen(engines, attempt, prompt_tokens - cached_tokens, output_tokens, now)
        engine.gate.ended(permit.sent_at, now, whole=is_learned)
        _learn_length(knowledge.output_length, request, output_tokens)
        answered(permit, engine, output_tokens, now)
        _learn_tpot(permit, engine, output_tokens, streamed=request.arrival.stream or is_learned, now=now)
        engines.routes.pool_of(engine).capacity_forecast.answered(engines.running())
    elif event.output_tokens is None and not request.arrival.stream:
        _learn_unseen(engines, attempt, prompt_tokens - cached_tokens, output_tokens, now)
    permit.answered(output_tokens)
    request.queue.order.settle(request, prompt_tokens, output_tokens)
    if engine.provider is not None:
        engine.provider.answered(permit.attempt, event.prompt_tokens, cached_tokens, permit.output_seen, now)
    if request.marks and not attempt.is_apart:
        held, number = attempt.cached_tokens, engine.number
        found = engines.prefixes.answered(
            number, request.marks, held, prompt_tokens, output_tokens, event.cached_tokens
        )
        if found is not None:
            engines.working_sets.found(found)
    engine.has_read(max(1, prompt_tokens - max(cached_tokens, attempt.cached_tokens)), now)
    rank_anew(knowledge, request.queue)
    return _end(engines, totals, attempt, Outcome.GOOD if good else Outcome.LATE, now, None)


def _learn_reading(engines: Engines, totals: Totals, attempt: Attempt, now: float) -> None:
    """Nothing was to be written: the answer is the first token, and the whole of its time was reading."""
    permit, engine = permit_of(attempt)
    totals.answered()
    engine.service.answered()
    if permit.state is State.PREFILL:
        first_token(engines, attempt, now)
    engines.routes.pool_of(engine).capacity_forecast.answered(engines.running())


def _learn_unseen(engines: Engines, attempt: Attempt, unread: int, output_tokens: int, now: float) -> bool:
    """Learn from an answer whose first token was not seen; return whether its pace is learned as well, as of a whole one."""
    permit, engine = permit_of(attempt)
    is_whole = not attempt.request.arrival.stream
    if permit.first_token_at is not None or attempt.is_apart:
        return False
    if is_whole and is_seen_read(attempt.request.arrival):
        first_token(engines, attempt, now)
        return False
    if permit.is_timed:
        most_s = _UNSEEN_SHARE * attempt.request.lane.settings.deadline_s if is_whole else 0.0
        learn_unseen(engine, permit, unread, output_tokens, now, most_s)
    return is_whole


def _learn_length(output_length: OutputLength, request: Request, output_tokens: int) -> None:
    arrival = request.arrival
    each_tokens = -(-output_tokens // arrival.answers)
    output_length.erred(request.output_tokens / arrival.answers, each_tokens)
    lane, prompt_tokens = request.lane.settings.name, request.prompt_tokens
    output_length.learn(arrival.model, arrival.tenant, lane, arrival.max_tokens, prompt_tokens, each_tokens)


def _in_time(attempt: Attempt, engine: Engine, output_tokens: int, now: float) -> bool:
    lane, origin = attempt.request.lane.settings, attempt.request.origin
    if not attempt.request.arrival.stream:
        tpot_s = engine.service.tpot_s(engine.gate.streams)
        return answered_in_time(lane, now - origin, output_tokens, tpot_s)
    first_at = now if attempt.first_token_at is None else attempt.first_token_at
    decode_s = 0.0 if permit_of(attempt)[0].is_held_back else now - first_at
    return streamed_in_time(lane, first_at - origin, decode_s, output_tokens)


def _learn_tpot(permit: Permit, engine: Engine, output_tokens: int, *, streamed: bool, now: float) -> None:
    if not permit.is_timed:
        return
    per_stream = output_tokens / permit.answers
    began_at = permit.first_token_at
    if began_at is not None and per_stream >= 2:
        decode_s = now - began_at
        engine.service.learn_tpot(engine.gate.streams, decode_s / (per_stream - 1))
        engine.service.learn_own_share(decode_s, permit.read_before)
    elif began_at is None and not streamed:
        decode_s = now - permit.admitted_at - permit.expected_ttft_s
        engine.service.learn_tpot(engine.gate.streams, decode_s / per_stream)


def failed(knowledge: Knowledge, attempt: Attempt, event: Failed, now: float) -> list[Decision]:
    """The engine has failed it: another is tried once if this one has nothing of it, else that is its end."""
    permit, engine = permit_of(attempt)
    if event.kind in UNREAD:
        permit.unwatched()  # how soon it was refused is not how long such work takes
    if event.kind in UNREAD or event.blames_request or event.blames_key or event.blames_name:
        knowledge.engines.has_not_read(engine, attempt)
    again = detour_after(knowledge, attempt, event, now)
    if engine.provider is not None:
        if event.blames_name or (event.blames_key and not engine.settings.own_key):
            event = event._replace(blames_request=True)  # one client's: the provider is there for all others
        engine.provider.failed(event, permit.sent_at, permit.output_seen, now)
    if event.blames_request and again is None:
        return _declined(knowledge, attempt, now)
    if event.kind is FailureKind.TIMEOUT and event.sent is not Sent.NONE and _is_unread(attempt):
        engine.silence.let_run_out(permit.sent_at, now)
    excused = attempt.lost_reader is not None or permit.is_held_back
    if engine.signal is not None and event.kind in _OVERLOADED and not excused:
        engine.signal.failed()
    if again is None:
        if event.kind in UNREAD and not attempt.output_seen:
            attempt.settles(0, now)
            asked, is_away = attempt.request.arrival, event.kind is FailureKind.CONNECT
            hint_s = restart_hint_s(asked.attempt, asked.retry_count) if is_away else event.hint_s
            _ask_back(attempt.request, hint_s, now)
        return [_end(knowledge.engines, knowledge.totals, attempt, Outcome.ENGINE_FAILED, now, event.kind)]
    release(knowledge.attempts, knowledge.allowances, attempt, now, for_good=False)
    return try_again(knowledge, attempt, again, now)


def _ask_back(request: Request, hint_s: float | None, now: float) -> None:
    """Leave a record of a client that is told to come back after an engine had nothing of its request: it pays for no retry then."""
    if hint_s is not None and request.arrival.fingerprint is not None:
        told = Appointment(now, hint_s)
        until = told.known_until(request.lane_deadline)
        request.route.pool.appointments.leave(record_of(request, told.known_from, until, told_at=told.due_at))


def _is_unread(attempt: Attempt) -> bool:
    """Return whether its first token would have been seen, its own engine is to read its prompt, and has not."""
    seen = is_seen_beginning(attempt.request.arrival)
    return seen and attempt.state is State.PREFILL and not attempt.is_apart


def _declined(knowledge: Knowledge, attempt: Attempt, now: float) -> list[Decision]:
    """The engine has answered that the request is at fault: its permit is free at once, and its time teaches nothing."""
    ended = _end(knowledge.engines, knowledge.totals, attempt, Outcome.BAD_REQUEST, now, None)
    release(knowledge.attempts, knowledge.allowances, attempt, now, teaches=False)
    return [ended, *dispatch(knowledge, now)]


def client_gone(
    attempts: Attempts, allowances: Allowances, totals: Totals, attempt: Attempt, now: float
) -> Ended:
    """The client has left: out of the queue at once, or off the engine when the engine has let go."""
    stage = Stage(attempt.state)
    if attempt.state is not State.DECODE:
        _remember_tired(totals, attempt.request, now)
    if attempt.state is State.QUEUED:
        leave_queue(attempts, allowances, attempt, now)
        return _account(attempt, Outcome.CLIENT_GONE, now, stage)
    _foresee_unseen(attempt, now)
    _learn_overdue(attempts.engines, attempt, now)
    ended = _end(attempts.engines, totals, attempt, Outcome.CLIENT_GONE, now, stage)
    _begin_departure(attempts, attempt, now)
    if attempt.reading is not None:
        legs.part_with(attempts.engines, attempt, now)
        attempt.was_read()
    return ended


def _learn_overdue(engines: Engines, attempt: Attempt, now: float) -> None:
    """Learn of a whole answer that took longer than foreseen, until its client left: where all leave none else would teach."""
    (permit, engine), arrival = permit_of(attempt), attempt.request.arrival
    if not (arrival.stream or is_seen_read(arrival)) and now - permit.sent_at > engine.foreseen_s(permit):
        engine.gate.ended(permit.sent_at, now, whole=True, left=True)
        _learn_unseen(engines, attempt, attempt.unread_tokens, attempt.request.output_tokens, now)


def _foresee_unseen(attempt: Attempt, now: float) -> None:
    """Count what an engine is believed to have written of a whole answer: clients that always leave before its end would have it for nothing.

    It is no more than is reserved, which grows while the engine shows gauges: one that hangs writes nothing.
    """
    if _is_written_unseen(attempt):
        permit, engine = permit_of(attempt)
        most = max(0, engine.gate.kv_held(permit.attempt) - attempt.request.prompt_tokens)
        permit.answered(min(most, _unseen_tokens(attempt, now)))


def _grow_unseen(attempts: Attempts, engine: Engine, now: float) -> None:
    """Reserve what whole answers are believed to take by now: those that outgrow their estimate say nothing of it."""
    if engine.gate.kv_limit is None:
        return
    before_tokens = engine.gate.kv_tokens
    for number in engine.permits:
        attempt = attempts.by_number.get(number)
        if attempt is None or attempt.engine is not engine:
            continue  # what it reads, or has read, for another engine
        if attempt.state is not State.DEPARTING and _is_written_unseen(attempt):
            engine.gate.grow(number, attempt.request.prompt_tokens + _unseen_tokens(attempt, now))
    if engine.gate.kv_tokens > before_tokens:
        attempts.engines.placement.changed(engine)


def _is_written_unseen(attempt: Attempt) -> bool:
    """Return whether its engine writes an answer of which nothing shows before it is whole."""
    permit, arrival = permit_of(attempt)[0], attempt.request.arrival
    is_seen = arrival.stream or permit.first_token_at is not None
    return not (is_seen or permit.is_elsewhere or is_only_read(arrival))


def _unseen_tokens(attempt: Attempt, now: float) -> int:
    """Return what an engine is believed to have written of a whole answer by now, no more than was asked for."""
    arrival, tokens = attempt.request.arrival, output_so_far(attempt, now)
    return arrival.answers * (tokens if arrival.max_tokens is None else min(tokens, arrival.max_tokens))


def cancel_running(attempts: Attempts, totals: Totals, now: float) -> list[Decision]:
    """End everything that still runs: the grace of a drain is over."""
    decisions: list[Decision] = []
    for attempt in list(attempts.by_number.values()):
        if attempt.state in {State.PREFILL, State.DECODE}:
            decisions.append(Cancel(attempt.request.attempt, Reason.DRAINING, ELSEWHERE_HINT_S))
            decisions.append(_end(attempts.engines, totals, attempt, Outcome.YIELDED, now, Reason.DRAINING))
    return decisions


def _remember_tired(totals: Totals, request: Request, now: float) -> None:
    """Leave a record of a client that waited for a while and left before the first token: it may be pressing refresh."""
    tired = now - request.arrived_at > _TIRED_SHARE * request.lane.settings.deadline_s
    if tired and request.arrival.fingerprint is not None and request.lane_deadline > now:
        totals.waited(request.arrived_at, now)
        request.route.pool.appointments.leave(record_of(request, now, request.lane_deadline))


def _end(
    engines: Engines, totals: Totals, attempt: Attempt, outcome: Outcome, now: float, cause: Cause
) -> Ended:
    """Close an admitted attempt with its outcome; its permit lives on until `release`."""
    permit, engine = permit_of(attempt)
    permit.ended(now)
    attempt.settles(None, now)
    if engine.provider is not None:
        engine.provider.left(permit.attempt, permit.output_seen, now)
    engines.note(permit, engine)
    ended = _account(attempt, outcome, now, cause)
    totals.ended(ended)
    return ended


def _account(attempt: Attempt, outcome: Outcome, now: float, cause: Cause) -> Ended:
    request, engine, permit = attempt.request, attempt.failed_by, attempt.permit
    lane = request.lane
    lane.count(outcome, cause)
    if outcome in _JUDGED:
        _note_slo(attempt, outcome, now)
    elif outcome is Outcome.YIELDED and not request.is_retry:
        lane.slo.refuse(now)
    first_token_at, arrived_at = attempt.first_token_at, request.arrived_at
    return make_ended(
        request.attempt,
        outcome,
        lane=lane.settings.name,
        engine=None if engine is None else engine.settings.name,
        waited_s=(now if permit is None else permit.admitted_at) - arrived_at,
        total_s=now - arrived_at,
        ttft_s=None if first_token_at is None else first_token_at - arrived_at,
        prompt_tokens=attempt.prompt_told or request.prompt_tokens,
        cached_tokens=attempt.cached_told,
        output_tokens=attempt.output_seen,
        cause=cause,
    )


def _note_slo(attempt: Attempt, outcome: Outcome, now: float) -> None:
    request, began_at = attempt.request, attempt.first_token_at
    ttft_s = tpot_s = None
    if began_at is not None:
        ttft_s = began_at - request.origin
        if attempt.output_seen > 1 and not permit_of(attempt)[0].is_held_back:
            tpot_s = (now - began_at) / (attempt.output_seen - 1)
    request.lane.slo.add(now, ttft_s, tpot_s, good=outcome is Outcome.GOOD, first=not request.is_retry)


def _begin_departure(attempts: Attempts, attempt: Attempt, now: float) -> None:
    """Predict when the engine will be done with a request whose client has left, and look again then."""
    permit, engine = permit_of(attempt)
    engine.left_by_client(permit, now + _departure_s(attempt, permit, engine, now), now)
    attempts.wake_at(permit.due_at, permit.attempt)


def _departure_s(attempt: Attempt, permit: Permit, engine: Engine, now: float) -> float:
    """Return how long the engine may still work for this attempt at most, as far as is known."""
    if permit.is_elsewhere:
        is_paired = attempt.reading is not None and attempt.reading.is_paired
        return engine.hangups.lag.mean if is_paired else 0.0  # the engine has not heard of it
    said, streamed = engine.settings.ignores_hangups, attempt.request.arrival.stream
    if said is IgnoresHangups.NO or (said is IgnoresHangups.WHOLE and streamed):
        return engine.hangups.lag.mean
    if not engine.hangups.ignored and not has_fresh_gauge(engine, now):
        return engine.hangups.lag.mean
    seen = permit.output_seen if streamed else 0
    remaining = max(1, attempt.request.kv_tokens - attempt.request.prompt_tokens - seen)
    remaining = -(-remaining // permit.answers)
    prefill_s = permit.expected_ttft_s if permit.first_token_at is None else 0.0
    rest_s = prefill_s + remaining * engine.service.tpot_s(engine.gate.stream_limit)
    # How far it is with an answer that is not streamed is never seen: it has been at it since it was sent.
    return rest_s if streamed else max(engine.hangups.lag.mean, permit.sent_at + rest_s - now)


def release(
    attempts: Attempts,
    allowances: Allowances,
    attempt: Attempt,
    now: float,
    *,
    for_good: bool = True,
    teaches: bool = True,
) -> None:
    """End the permit; the caller dispatches. Not `for_good` if the attempt goes on elsewhere.

    Where it `teaches`, the time that it was out tells how long such work takes.
    """
    permit, engine = permit_of(attempt)
    request = attempt.request
    pool, lane = attempts.engines.routes.pool_of(engine), request.lane
    if attempt.reading is not None:
        legs.part_with(attempts.engines, attempt, now, tries_again=not for_good)
    if for_good:
        allowances.over(request)
        pool.work_done(request.service_s)
        lane.lets_go(request.arrived_at, now)
    kv_tokens = engine.releases(permit, now)
    if kv_tokens is not None:
        lane.gets_back(now)
        if (shares := pool.shares) is not None:
            shares.left(lane.settings.name, permit.streams)
        if teaches and permit.is_timed:
            engine.learns_permit(permit, attempt.unread_tokens, request.output_tokens, kv_tokens, now)
        else:
            engine.drain.left(now)
    lane.served(permit.admitted_at, now)
    attempts.engines.placement.adapter_turns.ended(request, engine, now)
    attempts.engines.note(permit, engine)
    attempts.let_go(attempt, now)


def progressed(attempts: Attempts, engine: Engine, event: EngineProgress, now: float) -> None:
    """Streams have come this far; what has outgrown its estimate reserves more."""
    for number, output_tokens, prompt_tokens, cached_tokens in event.streams:
        attempt, permit = attempts.by_number.get(number), engine.permits.get(number)
        if attempt is not None and permit is not None:
            grew(permit, engine, output_tokens, now)
            if prompt_tokens:
                attempt.is_told(prompt_tokens, cached_tokens)
            if prompt_tokens and engine.provider is not None:
                engine.provider.read(number, prompt_tokens, cached_tokens or 0)
            if attempt.reservation is not None:
                attempt.reservation.progress(output_tokens, now)
            if engine.provider is not None:
                engine.provider.grew(number, permit.output_seen, now)
            engine.gate.grow(number, attempt.request.prompt_tokens + output_tokens)
    # Its memory is fuller.
    attempts.engines.placement.changed(engine)


def seen(knowledge: Knowledge, event: EngineSeen, now: float) -> tuple[Decision, ...]:
    """Read the gauge: end the permits whose clients have left and whose streams are no longer in it."""
    attempts, engine = knowledge.attempts, knowledge.engines.by_name.get(event.engine)
    if engine is None:
        return ()
    if event.seen_at > now:
        event = event._replace(seen_at=now)
    engine.looked(event)
    knowledge.engines.routes.pool_of(engine).look(now)  # of an idle engine there is no other news
    _grow_unseen(attempts, engine, now)
    if event.adapters is not None:
        engine_adapters = knowledge.engines.placement.adapter_turns.adapters.of(engine.number)
        if engine_adapters is not None:
            engine_adapters.seen(event.adapters.slots, event.adapters.running, event.seen_at)
    if event.running is None or event.waiting is None or not engine.departing:
        return ()
    left_before = [
        each
        for each in engine.departing.values()
        if each.gone_at is not None and each.gone_at < event.seen_at
    ]
    still_there = max(0, event.running + event.waiting - _certainly_alive(engine, event.seen_at))
    confirmed = _gone_by(left_before, still_there)
    for permit in confirmed:
        engine.hangups.learn(permit, event.seen_at, ignoring=False)
    if len(confirmed) < len(left_before):
        engine.hangups.learn(left_before[-1], event.seen_at, ignoring=True)
    if left_before:
        knowledge.engines.routes.pool_of(engine).capacity_forecast.unsettle()
    for permit in confirmed:
        release(attempts, knowledge.allowances, attempts.by_number[permit.attempt], now)
    return tuple(dispatch(knowledge, now)) if confirmed else ()


def _gone_by(left_before: list[Permit], still_there: int) -> list[Permit]:
    """Return those of them, first gone first, that are surely over where so many streams of theirs are still there."""
    over = sum([each.streams for each in left_before]) - still_there
    confirmed: list[Permit] = []
    for permit in left_before:
        over -= permit.streams
        if over < 0:
            break
        confirmed.append(permit)
    return confirmed


def _certainly_alive(engine: Engine, seen_at: float) -> int:
    """Count the streams that were running on this engine when its gauge was read, beyond doubt."""
    settled = seen_at - _GAUGE_SETTLE_S
    return sum(
        [
            permit.streams
            for permit in engine.permits.values()
            if permit.state is not State.DEPARTING and permit.sent_at <= settled and not permit.is_elsewhere
        ]
    )
