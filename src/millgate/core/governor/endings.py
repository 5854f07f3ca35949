"""How attempts end, and how their permits end after them.

An attempt ends with one outcome (INV-1). Its permit ends when the engine is done with it: the runtime says so
(`Released`) after a whole answer or a failure. After a hang-up nobody says so, and engines differ: vLLM stops
within 0.3 s, others generate to the end for nobody. So the governor concludes it:

- with a fresh gauge (the engine's own running + waiting) from what the gauge shows beyond the attempts that are
  certainly alive;
- else after the engine's learned abort lag, or, for an engine that ignores hang-ups, after the tokens that remain.

Releasing too early over-admits the engine at every hang-up; too late wastes a stream. The gauge is younger than
what has just been sent, so attempts admitted shortly before the reading are not counted as certainly in it: the
conclusion errs on the side of holding the permit.
"""

from typing import Final

from millgate.core.decisions import Cancel, Cause, Decision, Ended
from millgate.core.events import ClientGone, EngineProgress, EngineSeen, Failed, Finished
from millgate.core.governor.allowances import give_back, settle
from millgate.core.governor.capacity_forecast import foreseen_s
from millgate.core.governor.commit import dispatch, entry_of
from millgate.core.governor.failover import detour_after, try_again
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.promises import DRAINING_HINT_S
from millgate.core.governor.records import Attempt, Engine
from millgate.core.governor.streams import is_only_read
from millgate.core.governor.watch import answered, began, grew, has_fresh_gauge
from millgate.core.lifecycle import State
from millgate.core.slo import answered_in_time, streamed_in_time
from millgate.core.words import DeadlineFrom, FailureKind, IgnoresHangups, Outcome, Reason, Stage

# An admission reaches the engine's gauge within this time: connect, parse, schedule one step.
_GAUGE_SETTLE_S: Final = 0.25
# Failures that load can explain; the others say nothing of how many streams an engine can run.
_OVERLOADED: Final[tuple[FailureKind, ...]] = (FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.BROKEN)
# What the objective of a lane is judged by: who was refused or left was not answered at all.
_JUDGED: Final[tuple[Outcome, ...]] = (Outcome.GOOD, Outcome.LATE, Outcome.ENGINE_FAILED)
# An engine that has not let go after this many abort lags ignores hang-ups.
_IGNORING_LAGS: Final = 3.0
# Only a hang-up after this share of the deadline is somebody who got tired of waiting (design section 4, step 3).
_TIRED_SHARE: Final = 0.1
# Every attempt passes here, and the constructor of a named tuple is an interpreted function that takes twice as long.
_new: Final = tuple.__new__


def first_token(knowledge: Knowledge, attempt: Attempt, now: float) -> None:
    """The prompt has been read: learn how long it took and give the prefill share back."""
    engine = attempt.engine
    assert engine is not None
    attempt.state = State.DECODE
    attempt.first_token_at = now
    began(attempt, engine, now)
    service, took_s = engine.service, now - attempt.admitted_at
    engine.reading.erred(attempt.expected_ttft_s, took_s)
    service.learn_ttft(attempt.prompt_tokens + attempt.prefill_ahead, took_s)
    engine.longest_read = max(engine.longest_read, attempt.prompt_tokens + int(attempt.prefill_ahead))
    engine.gate.prefilled(attempt.attempt)
    engine.reading.read(attempt.prompt_tokens, service.ttft_s(0), now)
    attempt.read_before = service.has_read(attempt.prompt_tokens)
    knowledge.note(attempt, engine)


def finished(knowledge: Knowledge, attempt: Attempt, event: Finished, now: float) -> Ended:
    """A whole answer: judge it, and learn its sizes and its speed."""
    engine = attempt.engine
    assert engine is not None
    measured = event.output_tokens if event.output_tokens is not None else attempt.output_seen
    output_tokens = attempt.output_tokens if event.output_tokens is None and not measured else measured
    prompt_tokens, cached_tokens = event.prompt_tokens or attempt.prompt_tokens, event.cached_tokens or 0
    good = _in_time(attempt, engine, output_tokens, now)
    if event.prompt_tokens:
        _learn_prompt(knowledge, attempt, event.prompt_tokens)
    if is_only_read(attempt.arrival):
        _learn_reading(knowledge, attempt, now)
    elif measured > 0:
        knowledge.answers += 1
        engine.service.answers += 1
        _learn_length(knowledge, attempt, output_tokens)
        answered(attempt, engine, max(0, prompt_tokens - cached_tokens), output_tokens, now)
        _learn_tpot(attempt, engine, output_tokens, now)
        engine.capacity_forecast.answered(knowledge.running())
    attempt.output_seen = output_tokens
    attempt.queue.order.settle(attempt, prompt_tokens, output_tokens)
    settle(attempt, event.prompt_tokens, cached_tokens, now)
    if engine.provider is not None:
        engine.provider.answered(attempt, event.prompt_tokens, cached_tokens, now)
    engine.longest_read = max(engine.longest_read, prompt_tokens)
    outcome = Outcome.GOOD if good else Outcome.LATE
    ended = _end(knowledge, attempt, outcome, now, None, prompt_tokens)
    if event.cached_tokens is None or event.prompt_tokens is None:
        return ended
    return ended._replace(cached_tokens=min(event.cached_tokens, event.prompt_tokens))


def _learn_reading(knowledge: Knowledge, attempt: Attempt, now: float) -> None:
    """Nothing was to be written: the answer is the first token, and the whole of its time was reading."""
    assert attempt.engine is not None
    knowledge.answers += 1
    attempt.engine.service.answers += 1
    if attempt.state is State.PREFILL:
        first_token(knowledge, attempt, now)
    attempt.engine.capacity_forecast.answered(knowledge.running())


def _learn_prompt(knowledge: Knowledge, attempt: Attempt, prompt_tokens: int) -> None:
    arrival = attempt.arrival
    knowledge.prompt_bytes.learn(arrival.model, arrival.prompt_bytes, prompt_tokens, arrival.fixed_tokens)


def _learn_length(knowledge: Knowledge, attempt: Attempt, output_tokens: int) -> None:
    arrival = attempt.arrival
    each_tokens = -(-output_tokens // arrival.answers)
    lane = attempt.lane.settings.name
    knowledge.output_length.learn(
        arrival.model, arrival.tenant, lane, arrival.max_tokens, attempt.prompt_tokens, each_tokens
    )


def _in_time(attempt: Attempt, engine: Engine, output_tokens: int, now: float) -> bool:
    lane = attempt.lane.settings
    origin = attempt.first_seen if lane.deadline_from is DeadlineFrom.FIRST_ATTEMPT else attempt.arrived_at
    if not attempt.arrival.stream:
        tpot_s = engine.service.tpot_s(engine.gate.streams)
        return answered_in_time(lane, now - origin, output_tokens, tpot_s)
    first_at = now if attempt.first_token_at is None else attempt.first_token_at
    return streamed_in_time(lane, first_at - origin, now - first_at, output_tokens)


def _learn_tpot(attempt: Attempt, engine: Engine, output_tokens: int, now: float) -> None:
    per_stream = output_tokens / attempt.arrival.answers
    if attempt.first_token_at is not None and per_stream >= 2:
        decode_s = now - attempt.first_token_at
        engine.service.learn_tpot(engine.gate.streams, decode_s / (per_stream - 1))
        engine.service.learn_own_share(decode_s, attempt.read_before)
    elif attempt.first_token_at is None and not attempt.arrival.stream:
        decode_s = now - attempt.admitted_at - attempt.expected_ttft_s
        engine.service.learn_tpot(engine.gate.streams, decode_s / per_stream)


def failed(knowledge: Knowledge, attempt: Attempt, event: Failed, now: float) -> list[Decision]:
    """The engine has failed it: another is tried once if this one has nothing of it, else that is its end."""
    engine = attempt.engine
    assert engine is not None
    detour = detour_after(knowledge, attempt, event, now)
    if engine.provider is not None:
        engine.provider.failed(attempt, event, now)
    if event.blames_request:
        return _declined(knowledge, attempt, now)
    if engine.signal is not None and event.kind in _OVERLOADED:
        engine.signal.failed()
    if detour is None:
        return [_end(knowledge, attempt, Outcome.ENGINE_FAILED, now, event.kind)]
    release(knowledge, attempt, now, for_good=False)
    return try_again(knowledge, attempt, detour, now)


def _declined(knowledge: Knowledge, attempt: Attempt, now: float) -> list[Decision]:
    """The engine has answered that the request is at fault: its permit is free at once, and its time teaches nothing."""
    ended = _end(knowledge, attempt, Outcome.BAD_REQUEST, now, None)
    release(knowledge, attempt, now, teaches=False)
    return [ended, *dispatch(knowledge, now)]


def client_gone(knowledge: Knowledge, attempt: Attempt, _event: ClientGone, now: float) -> Ended:
    """The client has left: out of the queue at once, or off the engine when the engine has let go."""
    stage = Stage(attempt.state)
    if attempt.state is not State.DECODE:
        _remember_tired(attempt, now)
    if attempt.state is State.QUEUED:
        knowledge.dequeue(attempt)
        del knowledge.attempts[attempt.attempt]
        give_back(attempt, now)
        knowledge.allowances.over(attempt)
        return _account(attempt, Outcome.CLIENT_GONE, now, stage)
    ended = _end(knowledge, attempt, Outcome.CLIENT_GONE, now, stage)
    _begin_departure(knowledge, attempt, now)
    return ended


def cancel_running(knowledge: Knowledge, now: float) -> list[Decision]:
    """End everything that still runs: the grace of a drain is over."""
    decisions: list[Decision] = []
    for attempt in list(knowledge.attempts.values()):
        if attempt.state in {State.PREFILL, State.DECODE}:
            decisions.append(Cancel(attempt.attempt, Reason.DRAINING, DRAINING_HINT_S))
            decisions.append(_end(knowledge, attempt, Outcome.YIELDED, now, Reason.DRAINING))
    return decisions


def _remember_tired(attempt: Attempt, now: float) -> None:
    """Somebody who waited for a while and left before the first token may be pressing refresh."""
    lane = attempt.lane.settings
    tired = now - attempt.arrived_at > _TIRED_SHARE * lane.deadline_s
    if tired and attempt.arrival.fingerprint is not None and attempt.lane_deadline > now:
        attempt.route.pool.places.leave(entry_of(attempt, now, attempt.lane_deadline))


def _end(
    knowledge: Knowledge,
    attempt: Attempt,
    outcome: Outcome,
    now: float,
    cause: Cause,
    prompt_tokens: int | None = None,
) -> Ended:
    """Close an admitted attempt with its outcome; its permit lives on until `release`."""
    attempt.state = State.DEPARTING
    attempt.give_up_at = now
    engine = attempt.engine
    assert engine is not None
    settle(attempt, None, 0, now)
    if engine.provider is not None:
        engine.provider.left(attempt, now)
    knowledge.note(attempt, engine)
    ended = _account(attempt, outcome, now, cause, prompt_tokens)
    if outcome is Outcome.GOOD:
        knowledge.good_output_tokens += ended.output_tokens
    elif outcome is not Outcome.BAD_REQUEST:
        knowledge.wasted_output_tokens += ended.output_tokens
        knowledge.wasted_prompt_tokens += ended.prompt_tokens
    return ended


def _account(
    attempt: Attempt, outcome: Outcome, now: float, cause: Cause, prompt_tokens: int | None = None
) -> Ended:
    lane, engine = attempt.lane, attempt.engine
    lane.count(outcome, cause)
    if outcome in _JUDGED:
        _note_slo(attempt, outcome, now)
    first_token_at, arrived_at = attempt.first_token_at, attempt.arrived_at
    ended = (
        attempt.attempt,
        outcome,
        lane.settings.name,
        None if engine is None else engine.settings.name,
        (now if engine is None else attempt.admitted_at) - arrived_at,
        now - arrived_at,
        None if first_token_at is None else first_token_at - arrived_at,
        attempt.prompt_tokens if prompt_tokens is None else prompt_tokens,
        attempt.output_seen,
        cause,
        None,
    )
    return _new(Ended, ended)


def _note_slo(attempt: Attempt, outcome: Outcome, now: float) -> None:
    lane, began_at = attempt.lane, attempt.first_token_at
    ttft_s = tpot_s = None
    if began_at is not None:
        from_first = lane.settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
        ttft_s = began_at - (attempt.first_seen if from_first else attempt.arrived_at)
        if attempt.output_seen > 1:
            tpot_s = (now - began_at) / (attempt.output_seen - 1)
    lane.slo.add(now, ttft_s, tpot_s, good=outcome is Outcome.GOOD)


def _begin_departure(knowledge: Knowledge, attempt: Attempt, now: float) -> None:
    """Guess when the engine will be done with somebody who left, and look again then."""
    engine = attempt.engine
    assert engine is not None
    attempt.gone_at = now
    engine.departing[attempt.attempt] = attempt
    attempt.give_up_at = now + _departure_s(engine, attempt, now)
    knowledge.wake_at(attempt.give_up_at, attempt.attempt)


def _departure_s(engine: Engine, attempt: Attempt, now: float) -> float:
    """Return how long the engine may still work for this attempt at most, as far as is known."""
    if engine.settings.ignores_hangups is IgnoresHangups.NO:
        return engine.abort_lag.mean
    if not engine.ignores and not has_fresh_gauge(engine, now):
        return engine.abort_lag.mean
    remaining = max(1, attempt.kv_tokens - attempt.prompt_tokens - attempt.output_seen)
    remaining = -(-remaining // attempt.arrival.answers)
    prefill_s = attempt.expected_ttft_s if attempt.first_token_at is None else 0.0
    return prefill_s + remaining * engine.service.tpot_s(engine.limit)


def departure_due(attempt: Attempt, now: float) -> bool:
    """Return whether this departing attempt's permit ends now by time alone."""
    return attempt.state is State.DEPARTING and attempt.gone_at is not None and now >= attempt.give_up_at


def release(
    knowledge: Knowledge, attempt: Attempt, now: float, *, for_good: bool = True, teaches: bool = True
) -> None:
    """End the permit; the caller dispatches. Not `for_good` if the attempt goes on elsewhere.

    Where it `teaches`, the time that it was out tells how long such work takes.
    """
    engine = attempt.engine
    assert engine is not None
    del knowledge.attempts[attempt.attempt]
    engine.departing.pop(attempt.attempt, None)
    attempt.state = State.OVER
    if for_good:
        knowledge.allowances.over(attempt)
        engine.pool.done_work_s += attempt.service_s
    if engine.signal is not None:
        engine.signal.inflight(engine.gate.streams - attempt.streams)
    given_tokens = engine.gate.prefill_tokens
    if engine.gate.release(attempt.attempt):
        if engine.gate.prefill_tokens < given_tokens:
            engine.reading.interrupted(now)
        attempt.lane.little.leave(now)
        if (shares := engine.pool.shares) is not None:
            shares.left(attempt.lane.settings.name, attempt.streams)
        if teaches:
            _learn_permit(attempt, engine, now)
        else:
            engine.drain.left(now)
    attempt.lane.little.stayed(now, attempt.admitted_at)
    knowledge.note(attempt, engine)
    if engine.retired and not engine.gate.streams:
        del knowledge.engines[engine.settings.name]


def _learn_permit(attempt: Attempt, engine: Engine, now: float) -> None:
    """Learn how long a permit was out, and how fast a full engine gives them back."""
    work_s = engine.permit_s(attempt.prompt_tokens, attempt.output_seen)
    expected_s = engine.permit_s(attempt.prompt_tokens, attempt.output_tokens)
    stayed_s = now - attempt.admitted_at
    engine.permit_times.lasted(stayed_s, foreseen_s(attempt, engine))
    # Its work is that of all its streams, and so is the time that they were out.
    engine.drain.departed(now, work_s, expected_s, stayed_s * attempt.streams)


def progressed(knowledge: Knowledge, engine: Engine, event: EngineProgress, now: float) -> None:
    """Streams have come this far; what has outgrown its estimate reserves more."""
    for number, output_tokens in event.streams:
        attempt = knowledge.attempts.get(number)
        if attempt is not None and attempt.engine is engine:
            grew(attempt, engine, output_tokens, now)
            attempt.output_seen = output_tokens
            if attempt.reservation is not None:
                attempt.reservation.progress(output_tokens, now)
            if engine.provider is not None:
                engine.provider.grew(attempt, now)
            engine.gate.grow(number, attempt.prompt_tokens + output_tokens)


def seen(knowledge: Knowledge, event: EngineSeen, now: float) -> list[Decision]:
    """Read the gauge: end the permits of those who have left and are no longer in it."""
    engine = knowledge.engines.get(event.engine)
    if engine is None:
        return []
    if event.seen_at > now:
        event = event._replace(seen_at=now)
    engine.seen = event
    if event.running is None or event.waiting is None or not engine.departing:
        return []
    left_before = [
        each
        for each in engine.departing.values()
        if each.gone_at is not None and each.gone_at < event.seen_at
    ]
    still_there = max(0, event.running + event.waiting - _certainly_alive(knowledge, engine, event.seen_at))
    confirmed = _gone_by(left_before, still_there)
    for attempt in confirmed:
        _learn_lag(engine, attempt, event.seen_at, ignoring=False)
        release(knowledge, attempt, now)
    if len(confirmed) < len(left_before):
        _learn_lag(engine, left_before[-1], event.seen_at, ignoring=True)
    return dispatch(knowledge, now) if confirmed else []


def _gone_by(left_before: list[Attempt], still_there: int) -> list[Attempt]:
    """Return those of them, first gone first, that are surely over where so many streams of theirs are still there."""
    over = sum([each.streams for each in left_before]) - still_there
    confirmed: list[Attempt] = []
    for attempt in left_before:
        over -= attempt.streams
        if over < 0:
            break
        confirmed.append(attempt)
    return confirmed


def _certainly_alive(knowledge: Knowledge, engine: Engine, seen_at: float) -> int:
    """Count the streams that were running on this engine when its gauge was read, beyond doubt."""
    settled = seen_at - _GAUGE_SETTLE_S
    return sum(
        attempt.streams
        for attempt in knowledge.attempts.values()
        if attempt.engine is engine
        and attempt.state is not State.DEPARTING
        and attempt.admitted_at <= settled
    )


def _learn_lag(engine: Engine, attempt: Attempt, seen_at: float, *, ignoring: bool) -> None:
    """Learn from one reading: how long the engine took to let go, or that it does not."""
    assert attempt.gone_at is not None
    lag_s = seen_at - attempt.gone_at
    patience_s = _IGNORING_LAGS * engine.abort_lag.mean
    auto = engine.settings.ignores_hangups is IgnoresHangups.AUTO
    if ignoring:
        engine.ignores = engine.ignores or (auto and lag_s > patience_s)
    elif lag_s <= patience_s:
        engine.abort_lag.add(lag_s)
        engine.ignores = engine.ignores and not auto
