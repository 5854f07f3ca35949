"""Commit: write a plan down, admit from the queue, and refuse out of it. Nothing here asks whether; `assess` did."""

from headgate.core.decisions import Admit, Decision, Ended, Hold, Yield
from headgate.core.governor.assess import Plan, admission, refusal
from headgate.core.governor.knowledge import Knowledge
from headgate.core.governor.promises import Openings, known_until, place_until
from headgate.core.governor.records import Attempt, Engine
from headgate.core.lifecycle import State
from headgate.core.tickets import SOONEST_RETURN_S
from headgate.core.words import Outcome, Reason


def commit(knowledge: Knowledge, plan: Plan, now: float) -> Decision:
    """Make the plan true and return its decision."""
    draft, decision = plan.draft, plan.decision
    knowledge.arrivals += 1
    draft.lane.arrived += 1
    _count_retry(knowledge, plan, now)
    if isinstance(decision, Yield):
        _leave_record(knowledge, draft, decision, now)
        return decision
    knowledge.attempts[draft.attempt] = draft
    if plan.engine is not None:
        _start(knowledge, draft, plan.engine, decision, now)
    else:
        _hold(knowledge, draft)
    return decision


def _count_retry(knowledge: Knowledge, plan: Plan, now: float) -> None:
    if plan.draft.arrival.retry_count:
        knowledge.labelled += 1
    if plan.draft.recognised:
        knowledge.recognised += 1
    entry = plan.entry
    if entry is not None:
        if entry.due_at is not None and not entry.is_due(now):
            knowledge.early += 1
        knowledge.places.take(entry)


def _hold(knowledge: Knowledge, draft: Attempt) -> None:
    draft.lane.order.add(draft)
    engines = knowledge.engines_for(draft.arrival.model)
    ttft_s = min(engine.service.ttft_s(draft.prompt_tokens) for engine in engines)
    draft.give_up_at = draft.deadline - ttft_s
    if draft.hold_until is not None:
        draft.give_up_at = min(draft.give_up_at, draft.hold_until)
    knowledge.wake_at(draft.give_up_at, draft.attempt)


def _start(knowledge: Knowledge, draft: Attempt, engine: Engine, decision: Admit | Hold, now: float) -> None:
    """Give the permit that `decision` speaks of."""
    assert isinstance(decision, Admit)
    leg = decision.legs[0]
    draft.engine = engine
    draft.state = State.PREFILL
    draft.admitted_at = now
    draft.prefill_ahead = engine.gate.prefill_tokens
    draft.expected_ttft_s = decision.expected_ttft_s
    engine.gate.take(draft.attempt, leg.kv_tokens, leg.prompt_tokens)
    engine.work_prompt.add(draft.prompt_tokens)
    engine.work_output.add(draft.output_tokens)
    draft.lane.admitted += 1
    draft.lane.little.enter(now)
    knowledge.version += 1
    if not engine.gate.has_room(1, 1):
        engine.drain.became_full(now, engine.gate.streams)
    if not draft.arrival.stream:
        knowledge.wake_at(now + decision.expected_ttft_s, draft.attempt)


def dispatch(knowledge: Knowledge, openings: Openings, now: float) -> list[Decision]:
    """Admit what waits and fits, hopeless ones out first; return every decision in order."""
    decisions: list[Decision] = []
    while (held := knowledge.next_held()) is not None:
        engines = knowledge.engines_for(held.arrival.model)
        if not engines:
            decisions += refuse_held(knowledge, openings, held, Reason.NO_ENGINE, now)
            continue
        engine = knowledge.roomy_engine(held, engines)
        if engine is None:
            break
        if now + engine.expected_ttft_s(held.prompt_tokens) > held.deadline:
            decisions += refuse_held(knowledge, openings, held, late_reason(held, now), now)
            continue
        held.lane.order.remove(held)
        admit = admission(held, engine, now)
        _start(knowledge, held, engine, admit, now)
        decisions.append(admit)
    else:
        return decisions
    _mark_blocked(knowledge, now)
    return decisions


def _mark_blocked(knowledge: Knowledge, now: float) -> None:
    """Somebody waits although streams may be free: a gate is full in another meter, and drains as such."""
    for engine in knowledge.engines.values():
        if engine.up and engine.gate.streams:
            engine.drain.became_full(now, engine.gate.streams)


def late_reason(held: Attempt, now: float) -> Reason:
    """Return which word of lateness applies: the deadline has passed, or the first token would miss it."""
    return Reason.EXPIRED if now >= held.deadline else Reason.TOO_LATE


def refuse_held(
    knowledge: Knowledge, openings: Openings, held: Attempt, reason: Reason, now: float
) -> tuple[Yield, Ended]:
    """Take an attempt out of its queue with a yield; return the yield and the attempt's end."""
    held.lane.order.remove(held)
    del knowledge.attempts[held.attempt]
    held.state = State.OVER
    waited_s = now - held.arrived_at
    decision = refusal(knowledge, openings, held, reason, now, waited_s, held.deadline - held.arrived_at)
    _leave_record(knowledge, held, decision, now)
    ended = Ended(
        held.attempt, Outcome.YIELDED, held.lane.settings.name, None, waited_s, waited_s, None, 0, 0, reason
    )
    return decision, ended


def _leave_record(knowledge: Knowledge, draft: Attempt, decision: Yield, now: float) -> None:
    """Count the yield and remember the request, so that it keeps its age when it returns."""
    lane = draft.lane
    lane.outcomes[Outcome.YIELDED] += 1
    lane.causes[decision.reason] += 1
    knowledge.hints_given += 1
    if decision.reason is Reason.TOO_LARGE or draft.arrival.fingerprint is None:
        return
    fingerprint = fingerprint_of(draft)
    hint = decision.retry_after_s
    until = known_until(now, hint, draft.lane_deadline) if decision.retry else draft.lane_deadline
    knowledge.places.expire(now)
    if until <= now:
        return
    entry = knowledge.places.leave(
        draft.arrival.tenant, fingerprint, draft.first_seen, now + SOONEST_RETURN_S, until
    )
    if entry is not None and decision.retry:
        knowledge.places.promise(entry, now + hint, place_until(now, hint))


def fingerprint_of(draft: Attempt) -> int:
    """Return the request's fingerprint, computed at most once per attempt."""
    if draft.fingerprint is None:
        assert draft.arrival.fingerprint is not None
        draft.fingerprint = draft.arrival.fingerprint()
    return draft.fingerprint
