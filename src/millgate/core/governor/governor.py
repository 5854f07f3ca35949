"""The governor: six verbs, pure, deterministic, the same object in the gateway, the library and the simulator.

`handle` is the only way in. Every event is looked up in one table; a late word about an attempt that has moved on
finds no row in `lifecycle.NEXT` and changes nothing. Time never goes backward: an event stamped before the last
one is taken at the last one's time (INV-7).
"""

from collections.abc import Callable
from typing import Any, Final

from millgate.core import events
from millgate.core.decisions import Decision, Explanation
from millgate.core.events import Arrived, Event
from millgate.core.governor import endings, report
from millgate.core.governor.assess import assess
from millgate.core.governor.classes import least_reading_s
from millgate.core.governor.commit import commit, dispatch, late_reason, refuse_queued
from millgate.core.governor.failover import detours_turned
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.watch import look_at_first, move_limit
from millgate.core.lifecycle import State, states_before
from millgate.core.limits.gate import is_only_read
from millgate.core.queues.base import Order
from millgate.core.routing.base import Router
from millgate.core.settings import LaneSettings, Settings
from millgate.core.snapshot import Capacity, Snapshot
from millgate.core.state.attempt import Attempt
from millgate.core.words import Reason

_MAY_LEAVE: Final[tuple[State, ...]] = states_before(events.ClientGone)
_MAY_READ: Final[tuple[State, ...]] = states_before(events.FirstToken)
_MAY_FINISH: Final[tuple[State, ...]] = states_before(events.Finished)
_MAY_FAIL: Final[tuple[State, ...]] = states_before(events.Failed)
_MAY_RELEASE: Final[tuple[State, ...]] = states_before(events.Released)


class Governor:
    """Decides about every attempt; composed by `wiring`, owned by one driver.

    `make_order` makes the queue order that a lane asks for.
    """

    def __init__(
        self, settings: Settings, make_order: Callable[[LaneSettings], Order], router: Router, now: float
    ) -> None:
        self._knowledge = Knowledge(settings, make_order, router, now)
        self._now = now
        self._handlers: dict[type, Callable[[Any, float], tuple[Decision, ...]]] = {
            events.Arrived: self._arrived,
            events.ClientGone: self._client_gone,
            events.Withdrawn: self._withdrawn,
            events.FirstToken: self._first_token,
            events.Finished: self._finished,
            events.Failed: self._failed,
            events.Released: self._released,
            events.EngineProgress: self._progress,
            events.EngineSeen: self._seen,
            events.QuotaSeen: self._quota_seen,
            events.EngineUp: self._engine_up,
            events.EngineDown: self._engine_down,
            events.Draining: self._draining,
            events.Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Take one event at this time and return what is decided, in order."""
        if now > self._now:
            self._now = now
            for pool in self._knowledge.routes.pools:
                pool.appointments.expire(now)
            self._knowledge.allowances.lines.expire(now)
        else:
            now = self._now
        return self._handlers[type(event)](event, now)

    def next_wake(self) -> float | None:
        """Return when `handle(Tick)` is due at the latest, or None when nothing will fall due by itself."""
        first = self._knowledge.wakes.first()
        drain_by = self._knowledge.drain_by
        if first is None or drain_by is None:
            return first if drain_by is None else drain_by
        return min(first, drain_by)

    def snapshot(self, now: float) -> Snapshot:
        """Return frozen numbers of everything; changes nothing."""
        return report.snapshot(self._knowledge, max(now, self._now))

    def capacity(self) -> Capacity:
        """Return how many streams run and may run; changes nothing."""
        return report.capacity(self._knowledge)

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """Return what this arrival would get now and why; changes nothing."""
        knowledge = self._knowledge
        plan = assess(knowledge, arrival, max(now, self._now))
        request = plan.request
        engine = plan.engine or next(iter(request.route.up), None)
        engines = request.route.up or request.route.engines
        return Explanation(
            decision=plan.decision,
            lane=request.lane.settings.name,
            engine=plan.engine.settings.name if plan.engine else None,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            kv_tokens=request.kv_tokens,
            first_seen=request.first_seen,
            recognised=request.recognised,
            deadline=request.deadline,
            expected_wait_s=plan.expected_wait_s,
            expected_ttft_s=engine.expected_ttft_s(request.unread_tokens, now) if engine else 0.0,
            running=knowledge.running(),
            queued=knowledge.queued_count,
            limit=knowledge.stream_limit(),
            reading_s=least_reading_s(engines, request.unread_tokens),
            classed=request.classed,
        )

    def reconfigure(self, settings: Settings, now: float) -> tuple[Decision, ...]:
        """Take new settings: what runs goes on, what waits keeps its turn, lower limits only block admissions.

        Lanes and engines are matched by name. A removed engine takes nothing new and lives until its last permit
        ends; work of a removed lane ends under the settings that it came with.
        """
        self._now = now = max(now, self._now)
        knowledge = self._knowledge
        for pool in knowledge.pools:
            pool.appointments.expire(now)
        knowledge.allowances.lines.expire(now)
        knowledge.allowances.reconfigure(settings, now)
        knowledge.reconfigure(settings, now)
        return (*_refuse_stranded(knowledge, now), *dispatch(knowledge, now))

    def _arrived(self, event: Arrived, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        if event.attempt in knowledge.attempts:
            raise ValueError(f"attempt {event.attempt} has arrived before")
        return commit(knowledge, assess(knowledge, event, now), now)

    def _current(self, attempt_number: int, states: tuple[State, ...]) -> Attempt | None:
        """Return the attempt that an event is about, if it stands where the event means anything to it."""
        attempt = self._knowledge.attempts.get(attempt_number)
        return attempt if attempt is not None and attempt.state in states else None

    def _client_gone(self, event: events.ClientGone, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event.attempt, _MAY_LEAVE)
        if attempt is None:
            return ()
        was_queued = attempt.state is State.QUEUED
        ended = endings.client_gone(self._knowledge, attempt, event, now)
        return (ended, *dispatch(self._knowledge, now)) if was_queued else (ended,)

    def _withdrawn(self, event: events.Withdrawn, _now: float) -> tuple[Decision, ...]:
        for pool in self._knowledge.pools:
            for fingerprint in event.fingerprints:
                pool.appointments.withdraw(event.tenant, fingerprint)
        return ()

    def _first_token(self, event: events.FirstToken, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event.attempt, _MAY_READ)
        if attempt is None:
            return ()
        endings.first_token(self._knowledge, attempt, now)
        engine = attempt.engine
        if engine is None or engine.gate.prefill_limit is None or not self._knowledge.queued_count:
            return ()
        # A prefill share has come back, which a queued request may have waited for.
        return tuple(dispatch(self._knowledge, now))

    def _finished(self, event: events.Finished, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event.attempt, _MAY_FINISH)
        return () if attempt is None else (endings.finished(self._knowledge, attempt, event, now),)

    def _failed(self, event: events.Failed, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event.attempt, _MAY_FAIL)
        return () if attempt is None else tuple(endings.failed(self._knowledge, attempt, event, now))

    def _released(self, event: events.Released, now: float) -> tuple[Decision, ...]:
        attempt = self._current(event.attempt, _MAY_RELEASE)
        if attempt is None:
            return ()
        endings.release(self._knowledge, attempt, now)
        return tuple(dispatch(self._knowledge, now)) if self._knowledge.queued_count else ()

    def _progress(self, event: events.EngineProgress, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        engine = knowledge.engines.get(event.engine)
        if engine is None:
            return ()
        endings.progressed(knowledge, engine, event, now)
        look_at_first(knowledge, engine, now)
        knowledge.routes.pool_of(engine).look(now)
        moved = move_limit(engine, now)
        if moved:
            knowledge.learned_of(engine)
        # A limit that has risen has room for a queued request, and so has a pace that is now another.
        may_go = moved > 0 or engine.prompts.pace is not None
        return tuple(dispatch(knowledge, now)) if may_go and knowledge.queued_count else ()

    def _seen(self, event: events.EngineSeen, now: float) -> tuple[Decision, ...]:
        return tuple(endings.seen(self._knowledge, event, now))

    def _quota_seen(self, event: events.QuotaSeen, now: float) -> tuple[Decision, ...]:
        engine = self._knowledge.engines.get(event.engine)
        if engine is not None and engine.provider is not None:
            engine.provider.seen(event.reading, now)
        return ()

    def _engine_up(self, event: events.EngineUp, now: float) -> tuple[Decision, ...]:
        engine = self._knowledge.engines.get(event.engine)
        if engine is not None:
            engine.went_up(on_trial=event.trial)
        return self._turn(event.engine, now, up=True) or tuple(dispatch(self._knowledge, now))

    def _engine_down(self, event: events.EngineDown, now: float) -> tuple[Decision, ...]:
        return self._turn(event.engine, now, up=False)

    def _turn(self, name: str, now: float, *, up: bool) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        engine = knowledge.engines.get(name)
        if engine is None or engine.up is up:
            return ()
        engine.turned(up=up)
        if up:
            knowledge.prefixes.forget(engine.number)
        knowledge.engines_turned()
        detours_turned(knowledge.lanes.values(), knowledge.routes)
        return (*_refuse_stranded(knowledge, now), *dispatch(knowledge, now))

    def _draining(self, event: events.Draining, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        knowledge.drains(None if event.grace_s is None else now + event.grace_s)
        decisions: list[Decision] = []
        for queued in list(knowledge.queued()):
            decisions += refuse_queued(knowledge, queued, Reason.DRAINING, now)
        return tuple(decisions)

    def _tick(self, _event: events.Tick, now: float) -> tuple[Decision, ...]:
        knowledge = self._knowledge
        decisions: list[Decision] = []
        opened = False
        while (number := knowledge.wakes.pop(now)) is not None:
            attempt = knowledge.attempts.get(number)
            if attempt is not None:
                opened = self._fall_due(attempt, decisions, now) or opened
        if knowledge.drain_by is not None and now >= knowledge.drain_by:
            knowledge.grace_over()
            decisions += endings.cancel_running(knowledge, now)
        if opened:
            decisions += dispatch(knowledge, now)
        return tuple(decisions)

    def _fall_due(self, attempt: Attempt, decisions: list[Decision], now: float) -> bool:
        """Do what is due for one attempt; return whether something was given back."""
        knowledge = self._knowledge
        if attempt.state is State.QUEUED:
            if now < attempt.give_up_at:
                return True
            impatient = attempt.queued_until is not None and now >= attempt.queued_until
            reason = Reason.SATURATED if impatient else late_reason(attempt.request, now)
            decisions += refuse_queued(knowledge, attempt, reason, now)
            return True
        permit, engine = endings.permit_of(attempt)
        if permit.state is State.PREFILL:
            arrival = attempt.request.arrival
            if arrival.stream or is_only_read(arrival) or now < permit.due_at:
                return False
            engine.read_unseen(permit, attempt.unread_tokens, now)
            knowledge.learned_of(engine)
            return True
        if permit.is_done(now):
            endings.release(knowledge, attempt, now)
            return True
        return False


def _refuse_stranded(knowledge: Knowledge, now: float) -> list[Decision]:
    """Refuse what waits for engines of which none is up, also where it is no lane's turn."""
    decisions: list[Decision] = []
    for queued in [each for each in knowledge.queued() if not each.request.route.up]:
        decisions += refuse_queued(knowledge, queued, Reason.NO_ENGINE, now)
    return decisions
