"""What is explained is what is done: the same decision, reason and hint, all along stories of users who come back.

The machine of the other invariants is drawn step by step and stays short; here a few hundred requests come, are
refused, and come back when told, a little late, or far too soon, to full short queues and to gates that hold nobody.
"""

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.events import Arrived, ClientGone, Event, Finished, FirstToken, Released, Tick
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import DeadlineFrom
from millgate.wiring.governor import build_governor

_STEPS = 300


class _Request(NamedTuple):
    tenant: str
    body: int
    lane: str | None
    output_tokens: int
    max_tokens: int | None
    attempts: int = 1


def _settings(dice: Random) -> Settings:
    lanes = tuple(
        LaneSettings(
            name,
            ttft_slo_s=10.0,
            deadline_s=dice.choice([5.0, 60.0, 3600.0]),
            deadline_from=dice.choice(list(DeadlineFrom)),
            order=dice.choice(["arrival", "short_first", "deadline"]),
            max_queue=dice.choice([0, 0, 1, 2, 5, None]),
            max_wait_s=dice.choice([None, None, 0.0, 1.5]),
            hold_due_s=dice.choice([None, None, 0.0, 1.0]),
            fair=dice.random() < 0.3,
        )
        for name in ("first", "second")[: dice.choice([1, 1, 2])]
    )
    engines = tuple(
        EngineSettings(
            name,
            dice.choice([1, 2, 4]),
            kv_tokens=dice.choice([None, 2_000]),
            prior=ServicePrior(0.1, 0.0, dice.choice([0.005, 0.01, 0.02]), 0.0),
        )
        for name in ("one", "two")[: dice.choice([1, 1, 2])]
    )
    return Settings(lanes, engines)


@dataclass
class _Story:
    """One gate and its users; tokens take 10 ms each, whatever is believed."""

    dice: Random
    now: float = 0.0
    running: dict[int, float] = field(default_factory=dict)
    away: list[tuple[float, _Request]] = field(default_factory=list)
    requests: dict[int, _Request] = field(default_factory=dict)
    compared: int = 0

    def __post_init__(self) -> None:
        self.gate = build_governor(_settings(self.dice), 0.0)

    def step(self) -> None:
        """Do what is next: an end, a return, a newcomer or a wake; seldom new settings come first."""
        comes_at = self.now + self.dice.expovariate(4.0)
        ends = min(((at, number) for number, at in self.running.items()), default=(float("inf"), 0))
        back = min(self.away, default=(float("inf"), None))
        wake = self.gate.next_wake()
        at = min(comes_at, ends[0], back[0], float("inf") if wake is None else wake)
        self.now = max(self.now, at)
        if self.dice.random() < 0.01:
            self._carry_out(self.gate.reconfigure(_settings(self.dice), self.now))
        if at == ends[0]:
            self._end(ends[1])
        elif back[1] is not None and at == back[0]:
            self.away.remove((at, back[1]))
            self._arrive(back[1]._replace(attempts=back[1].attempts + 1))
        elif at == comes_at:
            self._arrive(self._newcomer())
        else:
            self._send(Tick())

    def _newcomer(self) -> _Request:
        dice = self.dice
        output_tokens = max(1, int(dice.lognormvariate(4.0, 1.0)))
        body = dice.choice([len(self.requests) + 1_000, dice.randrange(5)])
        lane, allowed = dice.choice([None, "first", "second"]), dice.choice([output_tokens, 4096, None])
        return _Request(str(dice.randrange(4)), body, lane, output_tokens, allowed)

    def _arrive(self, request: _Request) -> None:
        number = len(self.requests) + 1
        self.requests[number] = request
        arrival = Arrived(
            number,
            tenant=request.tenant,
            lane=request.lane,
            prompt_bytes=400,
            max_tokens=request.max_tokens,
            retry_count=self.dice.choice([None, request.attempts - 1]),
            fingerprint=lambda: request.body,
        )
        explained = self.gate.explain(arrival, self.now)
        decisions = self.gate.handle(arrival, self.now)
        self.compared += 1
        assert explained.decision == decisions[0]
        self._carry_out(decisions)

    def _end(self, number: int) -> None:
        del self.running[number]
        if self.dice.random() < 0.1:
            self._send(ClientGone(number))
            return
        if self.dice.random() < 0.5:
            self._send(FirstToken(number))
        self._send(Finished(number, 100, self.requests[number].output_tokens))
        self._send(Released(number))

    def _send(self, event: Event) -> None:
        self._carry_out(self.gate.handle(event, self.now))

    def _carry_out(self, decisions: tuple[Decision, ...]) -> None:
        for each in decisions:
            request = self.requests[each.attempt]
            if isinstance(each, Admit):
                self.running[each.attempt] = self.now + 0.1 + 0.01 * request.output_tokens
            elif isinstance(each, Ended):
                self.running.pop(each.attempt, None)
            elif isinstance(each, Yield) and each.retry:
                early_or_late = self.dice.choice([1.0, 1.0, 1.0, 1.15, 0.5])
                self.away.append((self.now + early_or_late * each.retry_after_s, request))


@pytest.mark.parametrize("seed", range(40))
def test_an_explanation_is_the_decision_that_follows_whoever_comes_back_to_whatever_queue(seed: int) -> None:
    story = _Story(Random(seed))
    for _ in range(_STEPS):
        story.step()

    assert story.compared > 50
