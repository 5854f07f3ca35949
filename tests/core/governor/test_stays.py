"""Little's law of whole stays and of their parts: W is what requests spent at the gate, not only on an engine."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as some

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Ended, Queue
from millgate.core.events import Arrived, ClientGone, Event, Failed, Finished, FirstToken, Released, Tick
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.snapshot import LittleSnapshot
from millgate.core.words import FailureKind, Outcome, Sent

LANES = (
    LaneSettings("chat", share=2.0, ttft_slo_s=8.0, deadline_s=8.0),
    LaneSettings("batch", ttft_slo_s=40.0, deadline_s=40.0, max_queue=4),
)
ENGINES = tuple(EngineSettings(name, 2, prior=steady_prior(2.0)) for name in "ab")


@dataclass
class Part:
    """What an onlooker notes of one part of the stays: when each attempt came in and went out."""

    since: dict[int, float] = field(default_factory=dict)
    stays: list[tuple[float, float]] = field(default_factory=list)

    def comes(self, attempt: int, now: float) -> None:
        self.since.setdefault(attempt, now)

    def goes(self, attempt: int, now: float) -> None:
        if attempt in self.since:
            self.stays.append((self.since.pop(attempt), now))

    def area(self, now: float) -> float:
        return sum(end - start for start, end in self.stays) + sum(now - at for at in self.since.values())


class Onlooker:
    """Sends events, and keeps its own books of decisions: it sees no state of the governor."""

    def __init__(self, *lanes: LaneSettings) -> None:
        self.gate = governor(*(lanes or LANES), engines=ENGINES)
        self.whole, self.queue, self.engine = Part(), Part(), Part()
        self.lanes: dict[int, str] = {}
        self.now = 0.0

    def send(self, event: Event) -> list[Decision]:
        decisions = list(self.gate.handle(event, self.now))
        if isinstance(event, Released):
            self.engine.goes(event.attempt, self.now)
            self.whole.goes(event.attempt, self.now)
        if isinstance(event, Failed) and not any(_has_failed(each) for each in decisions):
            # A second try goes through the queue, if only for no time.
            self.engine.goes(event.attempt, self.now)
            self.queue.comes(event.attempt, self.now)
        for each in decisions:
            self._note(each)
        return decisions

    def _note(self, decision: Decision) -> None:
        number = decision.attempt
        if isinstance(decision, Queue):
            self.whole.comes(number, self.now)
            self.queue.comes(number, self.now)
        elif isinstance(decision, Admit):
            self.whole.comes(number, self.now)
            self.queue.goes(number, self.now)
            self.engine.comes(number, self.now)
        elif isinstance(decision, Ended) and number not in self.engine.since:
            self.queue.goes(number, self.now)
            self.whole.goes(number, self.now)

    def ask(self, number: int, lane: str = "chat") -> list[Decision]:
        self.lanes[number] = lane
        return self.send(
            Arrived(number, lane=lane, prompt_bytes=400, max_tokens=100, fingerprint=lambda: number)
        )

    def little(self) -> LittleSnapshot:
        return self.gate.snapshot(self.now).little


def _has_failed(decision: Decision) -> bool:
    return isinstance(decision, Ended) and decision.outcome is Outcome.ENGINE_FAILED


def _w(little: LittleSnapshot) -> tuple[float, float, float]:
    return little.whole.mean_stay_s, little.queue.mean_stay_s, little.engine.mean_stay_s


def _serve(gate: Onlooker, number: int) -> None:
    gate.send(Finished(number, 100, 100))
    gate.send(Released(number))


def test_the_stay_of_a_request_that_waited_is_its_wait_and_its_time_on_the_engine() -> None:
    """Four run for 2 s, four wait for them and run for 2 s: a stay is 2 s or 4 s, 3 s in the mean."""
    gate = Onlooker(LaneSettings("chat", ttft_slo_s=20.0, deadline_s=20.0))
    for number in range(8):
        gate.ask(number)
    for at, ending in ((2.0, range(4)), (4.0, range(4, 8))):
        gate.now = at
        for number in ending:
            _serve(gate, number)
    little = gate.little()

    assert _w(little) == pytest.approx((3.0, 2.0, 2.0))
    assert (little.whole.completed, little.queue.completed, little.engine.completed) == (8, 4, 8)
    assert little.whole.entered_per_s == pytest.approx(2.0)
    assert little.whole.mean_attempts == pytest.approx(6.0)
    assert (little.queue.mean_attempts, little.engine.mean_attempts) == pytest.approx((2.0, 4.0))


def test_what_is_refused_at_the_door_never_came_in() -> None:
    gate = Onlooker(LaneSettings("chat", max_queue=0))
    for number in range(9):
        gate.ask(number)
    gate.now = 1.0
    assert gate.little().whole.entered_per_s == pytest.approx(4.0)
    assert gate.little().queue.entered_per_s == 0.0


def test_a_client_that_gives_up_in_the_queue_stayed_as_long_as_it_waited() -> None:
    gate = Onlooker(LaneSettings("chat", ttft_slo_s=20.0, deadline_s=20.0))
    for number in range(5):
        gate.ask(number)
    gate.now = 1.5
    gate.send(ClientGone(4))
    little = gate.little()

    assert _w(little) == (1.5, 1.5, 0.0)
    assert (little.whole.completed, little.engine.completed) == (1, 0)


def test_a_second_try_is_one_stay_with_two_visits_to_engines() -> None:
    gate = Onlooker(LaneSettings("chat", ttft_slo_s=20.0, deadline_s=20.0))
    gate.ask(1)
    gate.now = 0.5
    gate.send(Failed(1, FailureKind.CONNECT, Sent.NONE))
    gate.now = 2.5
    _serve(gate, 1)
    little = gate.little()

    assert (little.whole.completed, little.engine.completed) == (1, 2)
    assert little.whole.mean_stay_s == pytest.approx(2.5)
    assert little.engine.mean_stay_s == pytest.approx(1.25)
    assert little.whole.mean_attempts == little.queue.mean_attempts + little.engine.mean_attempts


def test_a_client_that_left_is_in_the_house_until_its_engine_lets_go() -> None:
    gate = Onlooker()
    gate.ask(1)
    gate.now = 1.0
    gate.send(ClientGone(1))
    gate.now = gate.gate.next_wake() or 0.0
    assert gate.little().whole.completed == 0
    gate.send(Tick())
    little = gate.little()

    assert little.whole.completed == little.engine.completed == 1
    assert little.whole.mean_stay_s == little.engine.mean_stay_s == gate.now


def test_lanes_are_told_apart_and_add_up() -> None:
    gate = Onlooker()
    gate.ask(1, "chat")
    gate.ask(2, "batch")
    gate.now = 2.0
    _serve(gate, 1)
    gate.now = 10.0
    _serve(gate, 2)
    snapshot = gate.gate.snapshot(10.0)
    chat, batch = (lane.little.whole for lane in snapshot.lanes)

    assert (chat.mean_stay_s, batch.mean_stay_s) == (2.0, 10.0)
    assert snapshot.little.whole.mean_stay_s == 6.0
    assert snapshot.little.whole.mean_attempts == pytest.approx(chat.mean_attempts + batch.mean_attempts)


steps = some.lists(
    some.tuples(
        some.sampled_from(["ask", "ask", "ask", "token", "finish", "finish", "fail", "leave", "tick"]),
        some.integers(0, 9),
        some.floats(0.0, 9.0),
    ),
    max_size=120,
)


def _step(gate: Onlooker, what: str, which: int, asked: int) -> None:
    alive = [number for number in gate.whole.since if number in gate.engine.since]
    if what == "ask":
        gate.ask(asked, LANES[which % 2].name)
    elif what == "tick":
        gate.send(Tick())
    elif what == "leave" and gate.queue.since:
        gate.send(ClientGone(list(gate.queue.since)[which % len(gate.queue.since)]))
    elif alive:
        number = alive[which % len(alive)]
        if what == "token":
            gate.send(FirstToken(number))
        elif what == "finish":
            _serve(gate, number)
        elif any(_has_failed(each) for each in gate.send(Failed(number, FailureKind.CONNECT, Sent.NONE))):
            gate.send(Released(number))


@given(steps)
@settings(max_examples=150)
def test_whatever_happens_the_whole_is_the_sum_of_its_parts_and_agrees_with_an_onlooker(
    drawn: list[tuple[str, int, float]],
) -> None:
    gate = Onlooker()
    for asked, (what, which, passed_s) in enumerate(drawn):
        gate.now += passed_s
        _step(gate, what, which, asked)
        _agree(gate)


def _agree(gate: Onlooker) -> None:
    snapshot = gate.gate.snapshot(gate.now)
    little = snapshot.little
    for reading in (little.whole, little.queue, little.engine):
        assert abs(reading.residual) < 1e-9
    assert little.whole.mean_attempts == pytest.approx(
        little.queue.mean_attempts + little.engine.mean_attempts, abs=1e-9
    )
    for name in ("whole", "queue", "engine"):
        lanes: list[Any] = [getattr(lane.little, name) for lane in snapshot.lanes]
        assert getattr(little, name).mean_attempts == pytest.approx(sum(each.mean_attempts for each in lanes))
        if gate.now < 60.0:
            seen: Part = getattr(gate, name)
            window_s = getattr(little, name).window_s
            assert getattr(little, name).completed == len(seen.stays)
            assert getattr(little, name).mean_attempts * window_s == pytest.approx(
                seen.area(gate.now), abs=1e-6
            )
