"""The verbs: what falls due, engines that come and go, drains, and new settings under way."""

from dataclasses import replace
from typing import Any

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Cancel, Decision, Ended, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    Draining,
    EngineDown,
    EngineProgress,
    EngineUp,
    Finished,
    FirstToken,
    Growth,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import Outcome, Reason

LANE = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0)
ENGINE = EngineSettings("engine", 1, prior=steady_prior(2.0))


def _ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> Decision:
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: attempt)
    return gate.handle(arrival._replace(**fields), now)[0]


def _admitted(decisions: tuple[Decision, ...]) -> list[int]:
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def _refused(decisions: tuple[Decision, ...]) -> list[tuple[int, Reason]]:
    return [(each.attempt, each.reason) for each in decisions if isinstance(each, Yield)]


def test_capacity_is_the_sum_that_the_snapshot_shows_with_an_engine_down_and_one_removed_that_still_works() -> (
    None
):
    """A line reply carries it instead of the snapshot's numbers, so both must say the same at every step."""
    engines = tuple(EngineSettings(name, 2, prior=steady_prior(2.0)) for name in ("a", "b", "c"))
    gate = governor(LANE, engines=engines)
    seen = []

    def look(now: float) -> None:
        shown = gate.snapshot(now).engines
        seen.append(tuple(gate.capacity()))
        assert seen[-1] == (sum(each.running for each in shown), sum(each.limit for each in shown if each.up))

    look(0.0)
    for attempt in range(1, 5):
        _ask(gate, attempt)
        look(0.0)
    gate.handle(EngineDown("a"), 0.1)
    look(0.1)
    gate.reconfigure(Settings((LANE,), engines[:2]), 0.2)
    look(0.2)
    gate.handle(Finished(1, 100, 100), 0.3)
    gate.handle(Released(1), 0.3)
    look(0.3)
    assert seen[0] == (0, 6)
    assert seen[4] == (4, 6)
    assert seen[5] == (4, 4)
    assert seen[7][0] == 3


def test_an_attempt_that_arrives_twice_is_our_own_mistake() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1)
    with pytest.raises(ValueError, match="attempt 1 has arrived before"):
        _ask(gate, 1)


def test_an_empty_gate_asks_for_no_wake() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    assert gate.next_wake() is None
    _ask(gate, 1)
    assert gate.next_wake() is None


def test_what_is_queued_falls_due_when_its_first_token_could_no_longer_be_in_time() -> None:
    gate = governor(replace(LANE, deadline_s=5.0), engines=(ENGINE,))
    _ask(gate, 1)
    assert isinstance(_ask(gate, 2), Queue)
    wake = gate.next_wake()

    assert wake == pytest.approx(4.9)
    decisions = gate.handle(Tick(), wake or 0.0)
    assert _refused(decisions) == [(2, Reason.TOO_LATE)]
    assert isinstance(decisions[1], Ended)
    assert decisions[1].cause is Reason.TOO_LATE


def test_a_late_tick_finds_it_expired() -> None:
    gate = governor(replace(LANE, deadline_s=5.0), engines=(ENGINE,))
    _ask(gate, 1)
    _ask(gate, 2)
    assert _refused(gate.handle(Tick(), 30.0)) == [(2, Reason.EXPIRED)]


def test_when_a_permit_ends_late_the_hopeless_go_out_before_the_next_is_admitted() -> None:
    """INV-4: the first in line expired meanwhile; the second, who came later, still can be good."""
    gate = governor(replace(LANE, deadline_s=8.0), engines=(ENGINE,))
    _ask(gate, 1)
    _ask(gate, 2)
    _ask(gate, 3, 3.0)
    gate.handle(Finished(1, 100, 100), 9.0)
    decisions = gate.handle(Released(1), 9.0)

    assert _refused(decisions) == [(2, Reason.EXPIRED)]
    assert _admitted(decisions) == [3]


def test_a_whole_answers_prefill_share_ends_after_the_predicted_prefill() -> None:
    engine = replace(ENGINE, max_inflight=4, prefill_tokens=100)
    gate = governor(LANE, engines=(engine,))
    _ask(gate, 1, stream=False)
    assert isinstance(_ask(gate, 2, stream=False), Queue)
    assert _admitted(gate.handle(Tick(), 0.1)) == [2]


def test_a_streams_prefill_share_ends_with_its_first_token_and_not_with_an_old_wake() -> None:
    """Attempt 2 waited; the wake that was set for its waiting says nothing about its prefill."""
    engine = replace(ENGINE, max_inflight=4, prefill_tokens=100, prior=steady_prior(30.0, ttft_s=0.5))
    gate = governor(replace(LANE, deadline_s=3.0), engines=(engine,))
    _ask(gate, 1)
    assert isinstance(_ask(gate, 2), Queue)
    assert _admitted(gate.handle(FirstToken(1), 0.5)) == [2]
    gate.handle(Tick(), 2.6)

    assert gate.snapshot(2.6).engines[0].prefill_tokens == 100
    gate.handle(FirstToken(2), 2.7)
    assert gate.snapshot(2.7).engines[0].prefill_tokens == 0


def test_an_answer_that_outgrows_its_reservation_blocks_admissions_until_it_ends() -> None:
    gate = governor(LANE, engines=(replace(ENGINE, max_inflight=4, kv_tokens=1_000),))
    _ask(gate, 1)
    gate.handle(EngineProgress("engine", (Growth(1, 850),)), 1.0)
    assert gate.snapshot(1.0).engines[0].kv_tokens == 950
    assert isinstance(_ask(gate, 2, 1.0), Queue)


def test_progress_of_another_engine_is_not_believed() -> None:
    gate = governor(LANE, engines=(ENGINE, replace(ENGINE, name="other")))
    _ask(gate, 1)
    gate.handle(EngineProgress("other", (Growth(1, 850),)), 1.0)
    assert gate.snapshot(1.0).engines[0].kv_tokens == 200


@pytest.mark.parametrize("gone", [False, True], ids=["whole", "left before its end"])
def test_an_answer_whose_engine_is_done_says_in_one_word_what_it_else_says_in_two(gone: bool) -> None:
    """A late end of an attempt whose client has left gives its permit back as well, and its outcome stays what it was."""
    told: list[tuple[tuple[Decision, ...], object]] = []
    for ends in ((Finished(1, 100, 90, released=True),), (Finished(1, 100, 90), Released(1))):
        gate = governor(LANE, engines=(ENGINE,))
        decisions: tuple[Decision, ...] = ()
        for number in (1, 2):
            _ask(gate, number)
        for event in (*((ClientGone(1),) if gone else ()), *ends):
            decisions += gate.handle(event, 1.0)
        told.append((decisions, gate.snapshot(1.0)))
    assert told[0] == told[1]
    assert [type(each) for each in told[0][0]] == [Ended, Admit]


def test_an_engine_that_goes_down_strands_who_waits_and_keeps_what_runs() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1)
    _ask(gate, 2)
    assert _refused(gate.handle(EngineDown("engine"), 1.0)) == [(2, Reason.NO_ENGINE)]
    assert gate.snapshot(1.0).engines[0].running == 1
    assert gate.handle(EngineDown("engine"), 1.0) == ()
    gate.handle(EngineUp("engine"), 2.0)
    assert isinstance(_ask(gate, 3, 2.0), Queue)


def test_an_engine_that_comes_up_takes_who_waits() -> None:
    gate = governor(LANE, engines=(ENGINE, replace(ENGINE, name="other")))
    gate.handle(EngineDown("other"), 0.0)
    _ask(gate, 1)
    _ask(gate, 2)
    assert _admitted(gate.handle(EngineUp("other"), 1.0)) == [2]


def test_a_drain_refuses_what_waits_and_comes_lets_what_runs_go_on_and_cancels_after_the_grace() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1)
    _ask(gate, 2)
    assert _refused(gate.handle(Draining(30.0), 1.0)) == [(2, Reason.DRAINING)]
    refused = _ask(gate, 3, 2.0)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry_after_s, refused.retry) == (Reason.DRAINING, 1.0, True)
    assert gate.next_wake() == 31.0
    cancel, ended = gate.handle(Tick(), 31.0)

    assert cancel == Cancel(1, Reason.DRAINING, 1.0)
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.cause) == (Outcome.YIELDED, Reason.DRAINING)
    gate.handle(Released(1), 31.1)
    assert gate.snapshot(31.1).engines[0].running == 0
    assert gate.next_wake() is None or gate.handle(Tick(), 100.0) == ()


def test_a_drain_without_a_grace_lets_streams_finish() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1)
    gate.handle(Draining(), 1.0)
    assert gate.next_wake() is None
    (ended,) = gate.handle(Finished(1, 100, 100), 500.0)
    assert isinstance(ended, Ended)


def test_a_raised_limit_admits_who_waits_and_a_lowered_one_only_blocks() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    for attempt in range(3):
        _ask(gate, attempt)
    raised = gate.reconfigure(Settings((LANE,), (replace(ENGINE, max_inflight=2),)), 1.0)
    assert _admitted(raised) == [1]
    assert gate.reconfigure(Settings((LANE,), (ENGINE,)), 2.0) == ()
    gate.handle(Finished(0, 100, 100), 3.0)
    assert gate.handle(Released(0), 3.0) == ()
    assert gate.snapshot(3.0).lanes[0].queued == 1


def test_new_settings_do_not_call_a_dead_engine_up() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    gate.handle(EngineDown("engine"), 0.0)
    gate.reconfigure(Settings((LANE,), (replace(ENGINE, max_inflight=5),)), 1.0)
    assert not gate.snapshot(1.0).engines[0].up
    assert isinstance(_ask(gate, 1, 1.0), Yield)


def test_a_removed_engine_takes_nothing_new_and_is_gone_with_its_last_permit() -> None:
    other = replace(ENGINE, name="other")
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1)
    gate.reconfigure(Settings((LANE,), (other,)), 1.0)
    gate.handle(EngineUp("engine"), 1.0)
    assert isinstance(_ask(gate, 2, 1.0), Admit)
    assert isinstance(_ask(gate, 3, 1.0), Queue)
    assert [engine.name for engine in gate.snapshot(1.0).engines] == ["engine", "other"]
    gate.handle(Finished(1, 100, 100), 2.0)
    gate.handle(Released(1), 2.0)
    assert [engine.name for engine in gate.snapshot(2.0).engines] == ["other"]


def test_a_removed_lane_keeps_its_work_and_gets_no_more() -> None:
    second = replace(LANE, name="second")
    gate = governor(LANE, second, engines=(ENGINE,))
    _ask(gate, 1)
    _ask(gate, 2, lane="second")
    gate.reconfigure(Settings((LANE,), (ENGINE,)), 1.0)
    assert gate.explain(Arrived(3, lane="second"), 1.0).lane == "lane"
    gate.handle(Finished(1, 100, 100), 2.0)
    assert _admitted(gate.handle(Released(1), 2.0)) == [2]


def test_what_is_queued_moves_into_the_new_order_and_keeps_its_age() -> None:
    gate = governor(LANE, engines=(ENGINE,))
    for attempt in range(3):
        _ask(gate, attempt, attempt * 0.1)
    gate.reconfigure(Settings((replace(LANE, order="deadline"),), (ENGINE,)), 1.0)
    gate.handle(Finished(0, 100, 100), 2.0)
    assert _admitted(gate.handle(Released(0), 2.0)) == [1]
    assert gate.snapshot(2.0).lanes[0].queued == 1


def test_inv_7_an_event_from_the_past_is_taken_at_the_last_ones_time() -> None:
    """INV-7: time never goes backward."""
    gate = governor(LANE, engines=(ENGINE,))
    _ask(gate, 1, 10.0)
    queued = _ask(gate, 2, 3.0)
    assert isinstance(queued, Queue)
    assert queued.expected_wait_s == pytest.approx(2.0, abs=0.1)
    assert gate.snapshot(0.0).now == 10.0


def test_inv_5_wakes_of_those_who_are_gone_do_not_pile_up() -> None:
    """INV-5: ten thousand come, wait and leave before anything falls due."""
    gate = governor(replace(LANE, deadline_s=1e6, ttft_slo_s=1e6), engines=(ENGINE,))
    _ask(gate, 0)
    for attempt in range(1, 10_001):
        _ask(gate, attempt, attempt * 1e-3)
        gate.handle(ClientGone(attempt), attempt * 1e-3)
    knowledge = gate._knowledge
    assert len(knowledge.attempts.wakes) <= 5 * (len(knowledge.attempts.by_number) + 1_000) + 2


def test_explain_says_what_would_be_decided_and_with_which_numbers() -> None:
    gate = governor(LANE, engines=(replace(ENGINE, max_inflight=2),))
    arrival = Arrived(9, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 1)
    free = gate.explain(arrival, 0.0)
    assert isinstance(free.decision, Admit)
    assert (free.engine, free.expected_wait_s, free.running, free.queued, free.limit) == (
        "engine",
        0.0,
        0,
        0,
        2,
    )
    for attempt in range(3):
        _ask(gate, attempt)
    full = gate.explain(arrival, 0.0)
    assert isinstance(full.decision, Queue)
    assert (full.engine, full.running, full.queued) == (None, 2, 1)
    assert full.expected_wait_s == full.decision.expected_wait_s == pytest.approx(2.0)


def test_the_snapshot_adds_up_good_and_wasted_tokens() -> None:
    gate = governor(LANE, engines=(replace(ENGINE, max_inflight=3),))
    for attempt in range(3):
        _ask(gate, attempt)
    gate.handle(FirstToken(0), 0.1)
    gate.handle(Finished(0, 90, 70), 1.0)
    gate.handle(EngineProgress("engine", (Growth(1, 33),)), 1.0)
    gate.handle(ClientGone(1), 1.0)
    gate.handle(FirstToken(2), 70.0)
    gate.handle(Finished(2, 90, 10), 71.0)
    snapshot = gate.snapshot(71.0)

    assert snapshot.good_output_tokens == 70
    assert snapshot.wasted_output_tokens == 33 + 10
    assert snapshot.wasted_prompt_tokens == 100 + 90
    assert dict(snapshot.lanes[0].outcomes) == {Outcome.GOOD: 1, Outcome.CLIENT_GONE: 1, Outcome.LATE: 1}
