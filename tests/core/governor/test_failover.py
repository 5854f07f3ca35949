"""A second try: where, for whom, and when there is none."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Ended, Queue
from millgate.core.events import (
    Arrived,
    ClientGone,
    Draining,
    EngineDown,
    EngineUp,
    Event,
    Failed,
    Finished,
    FirstToken,
    LeaseGranted,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import FailureKind, Outcome, Reason, Sent

LANE = LaneSettings("lane", ttft_slo_s=20.0, deadline_s=20.0)


def _gate(*caps: int, lane: LaneSettings = LANE, **fields: Any) -> Governor:
    """Return a gate before engines named a, b, c, ... with these caps; an answer takes 2 s."""
    engines = tuple(
        EngineSettings(name, cap, prior=steady_prior(2.0), **fields)
        for name, cap in zip("abcdef", caps, strict=False)
    )
    return governor(lane, engines=engines)


def _send(gate: Governor, event: Event, now: float) -> list[Any]:
    return list(gate.handle(event, now))


def _ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> Any:
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: attempt)
    return _send(gate, arrival._replace(**fields), now)[0]


def _refused_connection(gate: Governor, attempt: int, now: float = 0.1, sent: Sent = Sent.NONE) -> list[Any]:
    return _send(gate, Failed(attempt, FailureKind.CONNECT, sent), now)


def _engine(admit: Admit) -> str:
    assert isinstance(admit, Admit)
    return admit.legs[0].engine


def _running(gate: Governor, now: float = 0.1) -> dict[str, int]:
    return {engine.name: engine.running for engine in gate.snapshot(now).engines}


def test_with_room_elsewhere_it_is_admitted_there_at_once() -> None:
    gate = _gate(1, 1)
    assert _engine(_ask(gate, 1)) == "a"
    (again,) = _refused_connection(gate, 1)

    assert _engine(again) == "b"
    assert again.waited_s == pytest.approx(0.1)
    assert _running(gate) == {"a": 0, "b": 1}


def test_without_room_elsewhere_it_waits_first_in_line_and_not_for_the_engine_that_failed() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    _ask(gate, 2)
    assert isinstance(_ask(gate, 3), Queue)
    decisions = _refused_connection(gate, 1)

    # Its own stream is free for whoever waited; its own turn is the next one elsewhere.
    assert [(type(each), each.attempt) for each in decisions] == [(Admit, 3), (Queue, 1)]
    _ask(gate, 4, 0.2)
    gate.handle(Finished(3), 1.0)
    (at_a,) = _send(gate, Released(3), 1.0)
    gate.handle(Finished(2), 2.0)
    (at_b,) = _send(gate, Released(2), 2.0)
    assert (at_a.attempt, _engine(at_a)) == (4, "a")
    assert (at_b.attempt, _engine(at_b)) == (1, "b")


def test_who_waits_for_a_second_try_ends_like_everybody_who_waits() -> None:
    gate = _gate(1, 1)
    for attempt in (1, 2):
        _ask(gate, attempt)
    _refused_connection(gate, 1)
    wake = gate.next_wake()
    assert wake is not None
    assert wake > 10.0
    refused, ended = _send(gate, Tick(), wake)

    assert (refused.attempt, refused.reason) == (1, Reason.TOO_LATE)
    assert (ended.outcome, ended.engine) == (Outcome.YIELDED, None)


def test_what_was_due_in_the_first_try_is_not_due_in_the_second() -> None:
    """An answer in one piece gives its prompt share back after the predicted prefill: that wake is gone."""
    gate = _gate(1, 1)
    _ask(gate, 2)
    _ask(gate, 1, stream=False)
    assert gate.next_wake() == pytest.approx(0.1)
    _refused_connection(gate, 1, now=0.05)

    assert gate.handle(Tick(), 0.2) == ()
    assert gate.snapshot(0.2).lanes[0].queued == 1


def test_its_client_may_leave_while_it_waits() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    _ask(gate, 2)
    _refused_connection(gate, 1)
    (ended,) = _send(gate, ClientGone(1), 1.0)

    assert (ended.outcome, ended.engine) == (Outcome.CLIENT_GONE, None)
    assert gate.snapshot(1.0).lanes[0].queued == 0


@pytest.mark.parametrize("sent", [Sent.REQUEST, Sent.BYTES])
def test_what_its_engine_may_have_begun_is_not_sent_twice(sent: Sent) -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    (ended,) = _refused_connection(gate, 1, sent=sent)

    assert (type(ended), ended.outcome, ended.cause) == (Ended, Outcome.ENGINE_FAILED, FailureKind.CONNECT)


def test_what_has_had_a_token_has_been_sent_whatever_the_door_says() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    gate.handle(FirstToken(1), 0.1)
    (ended,) = _refused_connection(gate, 1, now=0.2)

    assert ended.outcome is Outcome.ENGINE_FAILED


def test_there_is_no_third_try() -> None:
    gate = _gate(1, 1, 1)
    _ask(gate, 1)
    _refused_connection(gate, 1)
    (ended,) = _refused_connection(gate, 1, now=0.2)

    assert (ended.outcome, ended.engine) == (Outcome.ENGINE_FAILED, "b")
    gate.handle(Released(1), 0.2)
    assert _running(gate, 0.2) == {"a": 0, "b": 0, "c": 0}
    assert dict(gate.snapshot(0.2).lanes[0].outcomes) == {Outcome.ENGINE_FAILED: 1}


def test_a_single_engine_has_nobody_beside_it() -> None:
    gate = _gate(1)
    _ask(gate, 1)
    (ended,) = _refused_connection(gate, 1)

    assert ended.outcome is Outcome.ENGINE_FAILED


def test_engines_that_are_down_are_not_tried() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    gate.handle(EngineDown("b"), 0.05)
    (ended,) = _refused_connection(gate, 1)

    assert ended.outcome is Outcome.ENGINE_FAILED


def test_engines_that_serve_other_models_are_not_tried() -> None:
    engines = (EngineSettings("a", 1, models=("one",)), EngineSettings("b", 1, models=("other",)))
    gate = governor(LANE, engines=engines)
    _ask(gate, 1, model="one")
    (ended,) = _refused_connection(gate, 1)

    assert ended.outcome is Outcome.ENGINE_FAILED


def test_a_lane_that_holds_nobody_does_not_hold_it_either() -> None:
    gate = _gate(1, 1, lane=LaneSettings("lane", deadline_s=20.0, max_queue=0))
    _ask(gate, 1)
    _ask(gate, 2)
    (ended,) = _refused_connection(gate, 1)

    assert ended.outcome is Outcome.ENGINE_FAILED


def test_a_drain_holds_nobody_but_lets_it_run_where_there_is_room() -> None:
    gate = _gate(1, 2)
    for attempt in (1, 2, 3):
        _ask(gate, attempt)
    gate.handle(Draining(10.0), 0.05)
    at_a = 1 if _running(gate)["a"] else 0
    assert at_a
    (ended,) = _refused_connection(gate, 1)
    assert ended.outcome is Outcome.ENGINE_FAILED
    gate.handle(Released(1), 0.1)

    (again,) = _refused_connection(gate, 2, now=0.2)
    assert _engine(again) == "a"


def test_it_waits_through_an_engine_that_goes_and_comes_back() -> None:
    gate = _gate(1, 1, 1)
    for attempt in (1, 2, 3):
        _ask(gate, attempt)
    _refused_connection(gate, 1)
    assert gate.handle(EngineDown("b"), 1.0) == ()
    gate.handle(Finished(2), 2.0)
    assert gate.handle(Released(2), 2.0) == ()

    (back,) = _send(gate, EngineUp("b"), 3.0)
    assert _engine(back) == "b"


def test_when_the_last_other_engine_goes_down_it_is_told_so() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    _ask(gate, 2)
    _refused_connection(gate, 1)
    refused, ended = _send(gate, EngineDown("b"), 1.0)

    assert (refused.attempt, refused.reason, ended.outcome) == (1, Reason.NO_ENGINE, Outcome.YIELDED)


def test_a_replica_that_is_closed_without_a_lease_has_no_second_try() -> None:
    gate = _gate(1, 1)
    _ask(gate, 1)
    gate.handle(LeaseGranted(inf, 2, closed=True), 0.05)
    (ended,) = _refused_connection(gate, 1)
    assert (ended.attempt, ended.outcome) == (1, Outcome.ENGINE_FAILED)


def test_after_a_change_of_the_configuration_it_is_tried_on_an_engine_that_is_configured_now() -> None:
    """It was admitted by a route that is no more; waiting there nobody would ever see it again."""
    first = EngineSettings("a", 1, prior=steady_prior(2.0))
    gate = governor(LANE, engines=(first,))
    _ask(gate, 1)
    gate.reconfigure(Settings((LANE,), (first, replace(first, name="b"))), 0.05)
    (again,) = _refused_connection(gate, 1)

    assert _engine(again) == "b"
    assert _running(gate) == {"a": 0, "b": 1}


def test_an_engine_that_now_serves_another_model_forgets_who_it_failed() -> None:
    engines = (
        EngineSettings("a", 1, prior=steady_prior(2.0)),
        EngineSettings("b", 1, prior=steady_prior(2.0)),
    )
    gate = governor(LANE, engines=engines)
    _ask(gate, 1, model="small")
    _ask(gate, 2, model="small")
    apart = tuple(
        replace(engine, models=(model,)) for engine, model in zip(engines, ("big", "small"), strict=True)
    )
    gate.reconfigure(Settings((LANE,), apart), 0.05)
    queued = _refused_connection(gate, 1)[-1]

    assert isinstance(queued, Queue)
    assert gate.snapshot(0.1).engines[0].running == 0
    gate.handle(Finished(2, 100, 100), 0.3)
    assert [_engine(each) for each in _send(gate, Released(2), 0.3) if isinstance(each, Admit)] == ["b"]


def test_how_soon_an_engine_refuses_is_not_how_fast_it_works() -> None:
    """Each refusal counted as an answer of some milliseconds: a wait of seconds was foreseen to be over at once."""
    gate = _gate(1)
    _ask(gate, 0)
    _ask(gate, 1)
    before_s = gate.snapshot(0.0).lanes[0].expected_wait_s
    for attempt in range(1, 30):
        now = 0.01 * attempt
        _ask(gate, attempt + 1, now)
        gate.handle(Failed(attempt - 1, FailureKind.REFUSED, Sent.REQUEST), now)
        gate.handle(Released(attempt - 1), now)
    assert gate.snapshot(0.3).lanes[0].expected_wait_s >= 0.9 * before_s
