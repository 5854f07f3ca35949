"""The numbered invariants of the core (docs/invariants.md) as state machines over the real governor.

INV-6 is not applicable yet (there are no quotas); INV-8 is a measurement, INV-10 belongs to the door.
"""

from hypothesis import strategies as some
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from invariants.machine import MODERATE, GateMachine, build
from millgate.core.decisions import Admit, Decision, Ended, Queue
from millgate.core.events import Event, Failed, Released, Tick
from millgate.core.settings import Settings
from millgate.core.state.capacity_forecast import CapacityForecast
from millgate.core.words import Outcome, Sent


class NothingIsLost(GateMachine):
    """INV-1."""

    @invariant()
    def every_attempt_is_somewhere_and_lanes_count_as_decided(self) -> None:
        # The snapshot leaves out what a reload has taken away, once nothing is in it.
        lanes = self.gate._knowledge.lanes.values()
        arrived = sum(lane.arrived for lane in lanes)
        outcomes = sum(count for lane in lanes for count in lane.outcomes.values())
        queued = sum(lane.queued for lane in lanes)
        assert arrived == len(self.model.attempts)
        assert queued == len(self.model.queued)
        assert outcomes == sum(self.model.outcomes.values())
        assert arrived == outcomes + len(self.model.running) + queued
        for outcome, count in self.model.outcomes.items():
            assert sum(lane.outcomes.get(outcome, 0) for lane in lanes) == count


class TheCapHolds(GateMachine):
    """INV-2."""

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        engines = {engine.name: engine for engine in self.gate.snapshot(self.now).engines}
        for name in {leg.engine for each in decisions if isinstance(each, Admit) for leg in each.legs}:
            engine = engines[name]
            assert engine.running <= engine.limit
            assert engine.kv_limit is None or engine.kv_tokens <= engine.kv_limit
            assert engine.prefill_limit is None or engine.prefill_tokens <= engine.prefill_limit

    @invariant()
    def what_surely_runs_is_counted(self) -> None:
        """The gate may hold a departed client's permit longer than the outsider knows, never shorter."""
        for engine in self.gate.snapshot(self.now).engines:
            legs = [
                each.leg
                for each in self.model.running.values()
                if each.leg and each.leg.engine == engine.name
            ]
            leaving = [
                each.leg
                for each in self.model.departing.values()
                if each.leg and each.leg.engine == engine.name
            ]
            surely = sum(leg.streams for leg in legs)
            assert surely <= engine.running <= surely + sum(leg.streams for leg in leaving)
            assert sum(leg.kv_tokens for leg in legs) <= engine.kv_tokens


class EveryPermitEndsOnce(GateMachine):
    """INV-3."""

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        if isinstance(event, Released):
            before = self.gate.snapshot(self.now)
            assert self.gate.handle(event, self.now) == ()
            assert self.gate.snapshot(self.now) == before

    def teardown(self) -> None:
        if self.attempts:
            self.come_to_rest()
            snapshot = self.gate.snapshot(self.now)
            for engine in snapshot.engines:
                assert engine.running == engine.departing == engine.kv_tokens == engine.prefill_tokens == 0
            for lane in snapshot.lanes:
                assert lane.queued == lane.queued_tokens == lane.queued_bytes == lane.running == 0
            assert snapshot.retries.appointments == snapshot.retries.records == 0


class NothingIsSentForNobody(GateMachine):
    """INV-4."""

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            if isinstance(decision, Admit):
                known = self.model.attempts[decision.attempt]
                assert not known.gone
                assert self.now <= known.deadline


class EverythingIsBounded(GateMachine):
    """INV-5."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_before = 0

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        snapshot = self.gate.snapshot(self.now)
        queued_before, self.queued_before = self.queued_before, sum(lane.queued for lane in snapshot.lanes)
        newcomers = [self.model.attempts[each.attempt] for each in decisions if isinstance(each, Queue)]
        if not newcomers:
            return
        # A bound that was lowered turns nobody out, it only lets nobody in.
        assert self.queued_before <= max(self.settings.max_queued, queued_before)
        (known,) = newcomers
        bound = next((each for each in self.settings.lanes if each.name == known.lane), None)
        if bound is None:
            return  # A second try, in a lane that is no longer configured.
        lane = next(each for each in snapshot.lanes if each.name == known.lane)
        if not known.due:
            # Who may be back when told, or for the last time, stands beyond the count; nobody else comes in meanwhile.
            assert lane.queued <= (self.settings.max_queued if bound.max_queue is None else bound.max_queue)
        assert bound.max_queue_tokens is None or lane.queued_tokens <= bound.max_queue_tokens
        assert lane.queued_bytes <= bound.max_queue_bytes

    @invariant()
    def memories_stay_within_their_bounds(self) -> None:
        retries = self.gate.snapshot(self.now).retries
        knowledge = self.gate._knowledge
        assert retries.appointments <= retries.records <= self.most_appointments
        assert len(knowledge.attempts.wakes) <= 5 * (len(knowledge.attempts.by_number) + 1_000) + 2
        for pool in knowledge.engines.routes.pools:
            assert len(pool.appointments._ends) <= 2 * (pool.appointments.records + 1_000) + 1
            assert isinstance(pool.capacity_forecast, CapacityForecast)
            assert len(pool.capacity_forecast._noted) <= 9 + len(pool.capacity_forecast._ends)


class TimeNeverGoesBackward(GateMachine):
    """INV-7."""

    @rule(late_s=some.sampled_from([0.001, 1.0, 1e6]))
    def a_stamp_from_the_past(self, late_s: float) -> None:
        self.send(Tick(), late_s)

    @rule(ahead_s=some.sampled_from([0.0, 1.0, 60.0]))
    def somebody_looks(self, ahead_s: float) -> None:
        """A look, even ahead of time, changes nothing (the second run in `teardown` never looks)."""
        self.gate.snapshot(self.now + ahead_s)
        if self.model.attempts:
            last = list(self.model.attempts.values())[-1]
            self.gate.explain(last.arrival, self.now + ahead_s)

    def teardown(self) -> None:
        if not self.script:
            return
        again = build(self.first_settings)
        for (event, at), answer in zip(self.script, self.answers, strict=True):
            if isinstance(event, Settings):
                assert again.reconfigure(event, at) == answer
            else:
                assert again.handle(event, at) == answer
        assert again.snapshot(self.now) == self.gate.snapshot(self.now)
        assert again.next_wake() == self.gate.next_wake()


class ASecondTryIsElsewhere(GateMachine):
    """An attempt that failed before its engine had anything of it: one more permit at most, and not there."""

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            known = self.model.attempts[decision.attempt]
            if isinstance(decision, Admit):
                assert known.permits == (1 if known.tried is None else 2)
                assert decision.legs[0].engine != known.tried
        if not isinstance(event, Failed) or not decisions:
            return
        own = [each for each in decisions if each.attempt == event.attempt]
        if event.blames_request and (event.sent is not Sent.NONE or isinstance(own[0], Ended)):
            # Its permit is free at once, so the next ones may be admitted in the same step; it is not tried again.
            assert isinstance(decisions[0], Ended)
            assert decisions[0].outcome is Outcome.BAD_REQUEST
            assert own == [decisions[0]]
        elif event.sent is not Sent.NONE:
            assert [(type(each), each.attempt) for each in decisions] == [(Ended, event.attempt)]


class NobodyIsOvertaken(GateMachine):
    """INV-9, for the order of arrival, where the bound is none at all.

    A request that is back when told may go before older ones of other tenants: its turn in the line was before theirs.
    In a fair lane any request may, since its tenant may have had less.
    """

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        lanes = {lane.name: lane for lane in self.settings.lanes if lane.order == "arrival"}
        for decision in decisions:
            known = self.model.attempts[decision.attempt]
            lane = lanes.get(known.lane)
            if isinstance(decision, Admit) and lane is not None and known.tried is None:
                waiting = [
                    each
                    for each in self.model.queued.values()
                    if (each.lane, each.arrival.model) == (known.lane, known.arrival.model)
                    # Whose engine has failed has had a turn and waits for fewer engines.
                    and each.tried is None
                ]
                assert all(
                    each.first_seen >= known.first_seen
                    or ((lane.fair or known.due) and each.arrival.tenant != known.arrival.tenant)
                    for each in waiting
                )


def test_inv_1_every_attempt_is_queued_running_or_has_one_outcome() -> None:
    run_state_machine_as_test(NothingIsLost, settings=MODERATE)


def test_inv_2_no_admission_goes_above_a_limit_in_any_meter() -> None:
    run_state_machine_as_test(TheCapHolds, settings=MODERATE)


def test_inv_3_every_permit_ends_exactly_once_and_at_rest_all_is_zero() -> None:
    run_state_machine_as_test(EveryPermitEndsOnce, settings=MODERATE)


def test_inv_4_nobody_is_admitted_who_left_or_whose_deadline_has_passed() -> None:
    run_state_machine_as_test(NothingIsSentForNobody, settings=MODERATE)


def test_inv_5_queues_and_memories_stay_within_their_bounds() -> None:
    run_state_machine_as_test(EverythingIsBounded, settings=MODERATE)


def test_inv_7_the_same_events_decide_the_same_and_looking_changes_nothing() -> None:
    run_state_machine_as_test(TimeNeverGoesBackward, settings=MODERATE)


def test_an_attempt_that_failed_unsent_is_tried_once_more_and_never_where_it_failed() -> None:
    run_state_machine_as_test(ASecondTryIsElsewhere, settings=MODERATE)


def test_inv_9_in_the_order_of_arrival_nobody_is_overtaken() -> None:
    run_state_machine_as_test(NobodyIsOvertaken, settings=MODERATE)
