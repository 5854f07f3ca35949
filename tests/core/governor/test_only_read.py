"""Requests that an engine only reads (embeddings, scores, reranking): their whole answers say how fast it is."""

from dataclasses import dataclass, field

import pytest

from core.world import Client, World, governor
from millgate.core.decisions import Admit, Decision
from millgate.core.events import Arrived, Event, Failed, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.words import FailureKind, Outcome, Sent

PROMPT_TOKENS = 600
OWN_S = 0.11
"""A prompt has the engine to itself for so long: sixteen at once take 1.8 s, as on a small CPU."""
CAP = 16
DEADLINE_S = 10.0


def gate_of_readers(prefill_tokens: int | None = None) -> Governor:
    """Return a gate in front of one engine whose speed is unknown; its prior is seven times too fast."""
    lane = LaneSettings("embeddings", ttft_slo_s=DEADLINE_S, deadline_s=DEADLINE_S)
    return governor(lane, engines=(EngineSettings("engine", CAP, prefill_tokens=prefill_tokens),))


@dataclass(eq=False)
class Reader(World):
    """An engine that reads one list after the other, and forgets those that were given up."""

    gate: Governor
    texts: int = 1
    free_at: float = 0.0
    killed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.gate)

    def send(self, event: Event) -> None:
        """Ask for lists that are only read."""
        if isinstance(event, Arrived):
            event = event._replace(stream=False, max_tokens=0, answers=self.texts)
        super().send(event)

    def _do(self, decision: Decision) -> None:
        if not isinstance(decision, Admit):
            super()._do(decision)
            return
        client = self.clients[decision.attempt]
        client.admitted_at = self.now
        self.free_at = max(self.now, self.free_at) + client.service_s
        if self.free_at > decision.first_event_by:
            self.killed.append(decision.attempt)
            kill = Failed(decision.attempt, FailureKind.TIMEOUT, Sent.REQUEST)
            self._end(decision.first_event_by, kill)
        else:
            self._end(self.free_at, Finished(decision.attempt, PROMPT_TOKENS, 0))

    def _end(self, at: float, event: Failed | Finished) -> None:
        self.at(at, lambda: self.send(event))
        self.at(at, lambda: self.send(Released(event.attempt)))


def reader(name: int, own_s: float = OWN_S) -> Client:
    """Return a client whose list takes the engine this long."""
    return Client(name, own_s, body=name, prompt_bytes=4 * PROMPT_TOKENS)


def test_two_hundred_whole_answers_without_output_teach_the_service_time() -> None:
    """Sixteen at once, again and again; what is shown, and what hints rest on, is what permits take."""
    gate = gate_of_readers()
    world = Reader(gate)
    own_s = 3.0 * OWN_S
    for number in range(208):
        world.come(reader(number, own_s), number // CAP * CAP * own_s)
    world.run()
    assert sum(world.outcomes.values()) == world.outcomes[Outcome.GOOD] == 208
    engine = gate.snapshot(world.now).engines[0]
    assert engine.expected_service_s == pytest.approx(CAP * own_s, rel=0.1)
    assert engine.drain_per_s == pytest.approx(1.0 / own_s, rel=0.25)


@pytest.mark.parametrize("texts", [1, 4, 64])
@pytest.mark.parametrize("prefill_tokens", [None, 8192])
def test_overload_by_embeddings_is_no_livelock(texts: int, prefill_tokens: int | None) -> None:
    """Twice of what the engine can read, for a minute: nothing admitted is given up, and the engine's time is used."""
    world = Reader(gate_of_readers(prefill_tokens), texts)
    lasts_s = 60.0
    for number in range(int(2.0 * lasts_s / OWN_S)):
        world.come(reader(number), number * OWN_S / 2.0)
    world.run(until=lasts_s)
    assert not world.killed
    assert world.outcomes[Outcome.GOOD] >= 0.9 * lasts_s / OWN_S


def test_a_crowd_of_embeddings_at_once_is_served_as_far_as_the_deadline_lets_it() -> None:
    world = Reader(gate_of_readers())
    for number in range(192):
        world.come(reader(number), 0.0)
    world.run()
    assert not world.killed
    assert world.outcomes[Outcome.GOOD] >= 0.9 * DEADLINE_S / OWN_S
