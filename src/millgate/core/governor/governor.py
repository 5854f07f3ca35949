"""The governor: eight verbs, pure, deterministic, the same object in the gateway, the library and the simulator.

`handle` is the only way in. Every event is looked up in one table; a late word about an attempt that has moved on
finds no row in `lifecycle.NEXT` and changes nothing. Time never goes backward: an event stamped before the last
one is taken at the last one's time (INV-7).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from millgate.core import events
from millgate.core.decisions import Decision, Explanation, Queue
from millgate.core.events import Arrived, Event
from millgate.core.fast_records import number_of
from millgate.core.governor import endings, leases, legs, report
from millgate.core.governor.assess import assess
from millgate.core.governor.commit import commit, dispatch, late_reason, refuse_queued
from millgate.core.governor.failover import detours_turned
from millgate.core.governor.knowledge import Knowledge, first_due
from millgate.core.governor.verbs import Core
from millgate.core.governor.watch import look_at_first, move_limit
from millgate.core.instruments import Instruments
from millgate.core.lifecycle import NEXT, State
from millgate.core.limits.gate import is_seen_read
from millgate.core.queues.base import Order
from millgate.core.settings import LaneSettings, Settings
from millgate.core.snapshot import Capacity, SharedUse, Snapshot
from millgate.core.state.attempt import Attempt
from millgate.core.words import Reason


class Governor(Core):
    """Decides about every attempt; composed by `wiring`, owned by one driver.

    `make_order` makes the queue order that a lane asks for; `instruments` report, and are asked for no decision.
    """

    def __init__(
        self,
        settings: Settings,
        make_order: Callable[[LaneSettings], Order],
        instruments: Instruments,
        now: float,
    ) -> None:
        self._knowledge = Knowledge(settings, make_order, instruments, now)
        self._lease, self._now = self._knowledge.lease, now
        self._handlers: dict[type, Callable[[Any, float], tuple[Decision, ...]]] = {
            events.ClientGone: self._client_gone,
            events.Withdrawn: partial(_withdrawn, self._knowledge),
            events.FirstToken: self._first_token,
            events.Prefilled: partial(_first_leg_heard, self._knowledge),
            events.HandoffFailed: partial(_first_leg_heard, self._knowledge),
            events.Failed: self._failed,
            events.Released: self._released,
            events.EngineProgress: self._progress,
            events.EngineSeen: partial(endings.seen, self._knowledge),
            events.QuotaSeen: partial(_quota_seen, self._knowledge),
            events.QuotasKept: partial(_quotas_kept, self._knowledge),
            events.EngineUp: self._engine_up,
            events.EngineDown: self._engine_down,
            events.Draining: partial(_draining, self._knowledge),
            events.LeaseGranted: self._lease_granted,
            events.HeldBack: self._held_back,
            events.StoodStill: partial(_stood_still, self._knowledge),
            events.Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Take one event at this time and return what is decided, in order."""
        if now > self._now:
            self._advance(now)
        else:
            now = self._now
        # Before any decision: a replica that was stopped wakes up with an ended lease.
        if now >= self._lease.until:
            self._lease.ends()
            leases.put_in_force(self._knowledge, now)
        if isinstance(event, Arrived):  # the most frequent first: the table's are called as any object is
            return self._arrived(event, now)
        if isinstance(event, events.Finished):
            return self._finished(event, now)
        return self._handlers[type(event)](event, now)

    def _advance(self, now: float) -> None:
        """End what time alone ends: appointments, leases of sessions and those of prompts that were read for other engines."""
        self._now, knowledge = now, self._knowledge
        knowledge.engines.expire_legs(now)
        for pool in knowledge.engines.routes.pools:
            pool.appointments.expire(now)
        if knowledge.allowances.lines.bookings:
            knowledge.allowances.lines.expire(now)
        if knowledge.engines.working_sets.leases:
            knowledge.engines.working_sets.expire(now)

    def next_wake(self) -> float | None:
        """Return when `handle(Tick)` is due at the latest, or None when nothing will fall due by itself."""
        return first_due(self._knowledge)

    def is_awaited(self) -> bool:
        """Return whether anything may follow from what falls due: something is queued, or a drain ends."""
        return self._knowledge.attempts.queued_count > 0 or self._knowledge.draining

    def snapshot(self, now: float) -> Snapshot:
        """Return frozen numbers of everything; changes nothing."""
        return report.snapshot(self._knowledge, max(now, self._now))

    def capacity(self) -> Capacity:
        """Return how many streams run and may run; changes nothing."""
        return report.capacity(self._knowledge)

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """Return what this arrival would get now and why; changes nothing."""
        return report.explanation(self._knowledge, arrival, max(now, self._now))

    def shared_use(self, now: float) -> SharedUse:
        """Return what this replica holds and wants of what a cluster shares; changes nothing."""
        return leases.shared_use(self._knowledge, max(now, self._now))

    def quota_uses(self, now: float) -> tuple[events.QuotaUse, ...]:
        """Return what is used of quotas; changes nothing."""
        return self._knowledge.allowances.ledger.uses(max(now, self._now))

    def reconfigure(self, settings: Settings, now: float) -> tuple[Decision, ...]:
        """Take new settings: what runs goes on, what waits keeps its turn, lower limits only block admissions.

        Lanes and engines are matched by name. A removed engine takes nothing new and lives until its last permit
        ends; work of a removed lane ends under the settings that it came with.
        """
        now, knowledge = max(now, self._now), self._knowledge
        self._advance(now)
        knowledge.allowances.reconfigure(settings, knowledge.attempts.by_number.values(), now)
        knowledge.reconfigure(settings, now)
        if now >= self._lease.until:
            self._lease.ends()
        leases.put_in_force(knowledge, now)
        return (*_refuse_stranded(knowledge, now), *dispatch(knowledge, now))

    def _arrived(self, event: Arrived, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        if number_of(event) in knowledge.attempts.by_number:
            raise ValueError(f"attempt {event.attempt} has arrived before")
        plan = assess(knowledge, event, now)
        order, attempts = plan.request.queue.order, knowledge.attempts
        head = order.head()
        decisions = commit(knowledge, plan, now)
        # It may be next and leave room to others, or have what a large one before it has no use of; and others have left room, perhaps for it.
        is_queued = isinstance(plan.decision, Queue)
        if is_queued and (plan.leaves_room or attempts.has_left_room or order.head() is not head):
            return (*decisions, *dispatch(knowledge, now))
        return decisions

    def _current(self, event: Any) -> Attempt | None:
        """Return the attempt that an event is about, if it stands where the event means anything to it."""
        attempt = self._knowledge.attempts.by_number.get(event.attempt)
        return attempt if attempt is not None and (attempt.state, type(event)) in NEXT else None

    def _client_gone(self, event: events.ClientGone, now: float) -> tuple[Decision, ...]:
        knowledge, attempt = self._knowledge, self._current(event)
        if attempt is None:
            return ()
        was_queued = attempt.state is State.QUEUED
        ended = endings.client_gone(knowledge.attempts, knowledge.allowances, knowledge.totals, attempt, now)
        return (ended, *dispatch(knowledge, now)) if was_queued else (ended,)

    def _first_token(self, event: events.FirstToken, now: float) -> tuple[Decision, ...]:
        knowledge, attempt = self._knowledge, self._current(event)
        if attempt is None:
            return ()
        engine = attempt.engine
        opens = engine is not None and (engine.gate.prefill_limit is not None or engine.silence.lasts_s > 0.0)
        opens = opens or attempt.reading is not None or knowledge.attempts.has_left_room
        endings.first_token(knowledge.engines, attempt, now - event.ago_s)
        # A prefill share has come back, or what another engine kept, a silent one has spoken, or a free one is no longer too late for who waits for a full one.
        return tuple(dispatch(knowledge, now)) if opens and knowledge.attempts.queued_count else ()

    def _finished(self, event: events.Finished, now: float) -> tuple[Decision, ...]:
        attempt = self._knowledge.attempts.by_number.get(number_of(event))
        if attempt is None:
            return ()
        ended: tuple[Decision, ...] = ()
        if (attempt.state, events.Finished) in NEXT:
            ended = (endings.finished(self._knowledge, attempt, event, now),)
        if event.released and (attempt.state, events.Released) in NEXT:
            return ended + self._lets_go(attempt, now)
        return ended

    def _failed(self, event: events.Failed, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event)
        return () if attempt is None else tuple(endings.failed(self._knowledge, attempt, event, now))

    def _released(self, event: events.Released, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event)
        return () if attempt is None else self._lets_go(attempt, now)

    def _held_back(self, event: events.HeldBack, _now: float) -> tuple[Decision, ...]:
        if (attempt := self._current(event)) is not None and attempt.permit is not None:
            attempt.permit.held_back()
        return ()

    def _lets_go(self, attempt: Attempt, now: float) -> tuple[Decision, ...]:
        endings.release(self._knowledge.attempts, self._knowledge.allowances, attempt, now)
        return tuple(dispatch(self._knowledge, now)) if self._knowledge.attempts.queued_count else ()

    def _progress(self, event: events.EngineProgress, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        engine = knowledge.engines.by_name.get(event.engine)
        if engine is None:
            return ()
        endings.progressed(knowledge.attempts, engine, event, now)
        look_at_first(knowledge.attempts, knowledge.output_length, now)
        knowledge.engines.routes.pool_of(engine).look(now)
        if moved := move_limit(engine, now):
            knowledge.engines.learned_of(engine)
        # A limit that has risen has room for a queued request, and so has a pace that is now another.
        may_go = moved > 0 or engine.prompts.pace is not None
        return tuple(dispatch(knowledge, now)) if may_go and knowledge.attempts.queued_count else ()

    def _engine_up(self, event: events.EngineUp, now: float) -> tuple[Decision, ...]:
        if (engine := self._knowledge.engines.by_name.get(event.engine)) is not None:
            engine.went_up(on_trial=event.trial)
            self._knowledge.engines.placement.changed(engine)
        return self._turn(event.engine, now, up=True) or tuple(dispatch(self._knowledge, now))

    def _engine_down(self, event: events.EngineDown, now: float) -> tuple[Decision, ...]:
        return self._turn(event.engine, now, up=False)

    def _turn(self, name: str, now: float, *, up: bool) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        engine = knowledge.engines.by_name.get(name)
        if engine is None or engine.up is up:
            return ()
        engine.turned(up=up)
        if up:
            knowledge.engines.prefixes.forget(engine.number)
            knowledge.engines.working_sets.forget(engine.number)
            knowledge.engines.placement.adapter_turns.adapters.forget(engine.number)
        knowledge.engines.turned()
        detours_turned(knowledge.lanes.values(), knowledge.engines.routes)
        return (*_refuse_stranded(knowledge, now), *dispatch(knowledge, now))

    def _lease_granted(self, event: events.LeaseGranted, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        knowledge.lease.grants(event, now)
        leases.put_in_force(knowledge, now)
        return tuple(dispatch(knowledge, now)) if knowledge.attempts.queued_count else ()

    def _tick(self, _event: events.Tick, now: float) -> tuple[Decision, ...]:
        knowledge, attempts = self._knowledge, self._knowledge.attempts
        decisions: list[Decision] = []
        while (number := attempts.wakes.pop(now)) is not None:
            if (attempt := attempts.by_number.get(number)) is not None:
                decisions += self._fall_due(attempt, now)
        if knowledge.drain_by is not None and now >= knowledge.drain_by:
            knowledge.grace_over()
            decisions += endings.cancel_running(attempts, knowledge.totals, now)
        return (*decisions, *dispatch(knowledge, now))

    def _fall_due(self, attempt: Attempt, now: float) -> tuple[Decision, ...]:
        """Do what is due for one attempt; the caller dispatches."""
        knowledge = self._knowledge
        if attempt.state is State.QUEUED:
            if now < attempt.give_up_at:
                return ()
            impatient = attempt.queued_until is not None and now >= attempt.queued_until
            reason = Reason.SATURATED if impatient else late_reason(attempt.request, now)
            return refuse_queued(knowledge, attempt, reason, now)
        permit, engine = endings.permit_of(attempt)
        is_unseen = permit.state is State.PREFILL and not is_seen_read(attempt.request.arrival)
        if permit.is_done(now):
            endings.release(knowledge.attempts, knowledge.allowances, attempt, now)
        elif is_unseen and now >= permit.due_at:
            engine.read_unseen(permit, attempt.unread_tokens, now)
            knowledge.engines.learned_of(engine)
        return ()


def _first_leg_heard(knowledge: Knowledge, event: events.FirstLegNews, now: float) -> tuple[Decision, ...]:
    attempt = knowledge.attempts.by_number.get(event.attempt)
    if attempt is not None and (attempt.state, type(event)) in NEXT:
        legs.heard(knowledge.engines, attempt, event, now)
        if not attempt.is_apart and attempt.permit is not None:  # it is read there from now on
            knowledge.attempts.wake_at(attempt.permit.due_at, attempt.request.attempt)
    return tuple(dispatch(knowledge, now)) if knowledge.attempts.queued_count else ()


def _withdrawn(knowledge: Knowledge, event: events.Withdrawn, _now: float) -> tuple[Decision, ...]:
    for pool in knowledge.engines.routes.pools:
        for fingerprint in event.fingerprints:
            knowledge.allowances.lines.withdraw(pool.appointments.withdraw(event.tenant, fingerprint))
    return ()


def _quota_seen(knowledge: Knowledge, event: events.QuotaSeen, now: float) -> tuple[Decision, ...]:
    engine = knowledge.engines.by_name.get(event.engine)
    if engine is not None and engine.provider is not None:
        engine.provider.account.seen(event.reading, now)
    return ()


def _quotas_kept(knowledge: Knowledge, event: events.QuotasKept, now: float) -> tuple[Decision, ...]:
    knowledge.allowances.ledger.keep(event.uses, event.ago_s, now)
    return ()


def _draining(knowledge: Knowledge, event: events.Draining, now: float) -> tuple[Decision, ...]:
    knowledge.drains(None if event.grace_s is None else now + event.grace_s)
    decisions: list[Decision] = []
    for queued in list(knowledge.attempts.queued()):
        decisions += refuse_queued(knowledge, queued, Reason.DRAINING, now)
    return tuple(decisions)


def _stood_still(knowledge: Knowledge, _event: events.StoodStill, now: float) -> tuple[Decision, ...]:
    for engine in knowledge.engines.by_name.values():
        for permit in engine.permits.values():
            permit.unwatched()
        engine.drain.stood_still(now)
        engine.reading.interrupted(now)
    return ()


def _refuse_stranded(knowledge: Knowledge, now: float) -> list[Decision]:
    """Refuse what waits for engines of which none is up, also where it is no lane's turn."""
    decisions: list[Decision] = []
    for queued in [each for each in knowledge.attempts.queued() if not each.request.route.up]:
        decisions += refuse_queued(knowledge, queued, Reason.NO_ENGINE, now)
    return decisions
