"""Whatever happens to requests, engines and settings: when all are over, nothing is taken, and no wake comes without end.

Engines that read for others, adapters, accounts, caps of tenants, overflow, batches and reloads meet here as they come. What is looked at is what
operators see, at each step, and at the end what counts as taken.
"""

from dataclasses import replace
from functools import partial
from math import inf
from random import Random

import pytest

from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import (
    AdaptersSeen,
    Arrived,
    ClientGone,
    EngineDown,
    EngineProgress,
    EngineSeen,
    EngineUp,
    Event,
    Failed,
    Finished,
    FirstToken,
    Growth,
    HandoffFailed,
    HeldBack,
    Prefilled,
    Released,
    StoodStill,
    Tick,
)
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    LimitSettings,
    QuotaLimit,
    ServicePrior,
    Settings,
    TenantSettings,
)
from millgate.core.words import DeadlineFrom, FailureKind, KvTransfer, QuotaKind, Role, Sent
from millgate.wiring.governor import build_governor

MODELS = ("m", "n", "o")
STEPS = 200
MOST_AT_ONCE = 50
"""Wakes at one instant; one that is due again and again there is more."""


def lane(name: str, dice: Random) -> LaneSettings:
    return LaneSettings(
        name,
        deadline_s=dice.choice([1.0, 10.0, 60.0]),
        deadline_from=dice.choice(list(DeadlineFrom)),
        order=dice.choice(["arrival", "deadline", "short_first"]),
        max_queue=dice.choice([None, None, None, 3]),
        fair=dice.random() < 0.5,
        max_overtakes=dice.choice([None, None, 2]),
        share=dice.choice([1.0, 4.0]),
        headroom=dice.choice([0, 0, 1]),
        band=dice.choice([0, 0, 1]),
        window_s=dice.choice([0.0, 0.0, 0.0, 0.3]),
        prefill_per_s=dice.choice([None, None, None, 2000.0]),
        overflow_after_s=dice.choice([0.0, 0.0, 2.0, inf]),
    )


def engines(dice: Random) -> tuple[EngineSettings, ...]:
    kind = dice.choice(["plain", "models", "adapters", "nixl", "sglang", "account"])
    each = [
        EngineSettings(
            f"e{at}",
            dice.choice([1, 2, 4, 8]),
            kv_tokens=dice.choice([None, 6_000, 20_000]),
            prefill_tokens=dice.choice([None, None, 3_000]),
            prior=ServicePrior(0.05, 0.0001, 0.01, 0.0),
            limit=LimitSettings(dice.choice(["fixed", "fixed", "aimd"]), minimum=1),
            models=dice.choice([("m",), ("n",), ("m", "n")]) if kind == "models" else (),
            adapters=MODELS if kind == "adapters" else (),
            adapter_slots=dice.choice([1, 2]) if kind == "adapters" else None,
            account=AccountSettings((QuotaLimit(QuotaKind.RPM, 60.0),)) if kind == "account" else None,
            overflow=kind not in {"nixl", "sglang"} and dice.random() < 0.3,
        )
        for at in range(dice.choice([1, 2, 3]))
    ]
    if kind in {"nixl", "sglang"} and len(each) > 1:
        roles = (Role.DECODE, Role.PREFILL, Role.UNIFIED if kind == "nixl" else Role.DECODE)
        each = [
            replace(one, role=role, kv_transfer=KvTransfer(kind))
            for one, role in zip(each, roles, strict=False)
        ]
    return tuple(each)


def settings(dice: Random) -> Settings:
    return Settings(
        tuple(lane(name, dice) for name in "abc"[: dice.choice([1, 2, 3])]),
        engines(dice),
        tenants=tuple(TenantSettings(name, max_inflight=dice.choice([None, 1, 4])) for name in "xy"),
        retry_budget=dice.random() < 0.5,
        max_queued=dice.choice([10_000, 10_000, 6]),
        observe=dice.random() < 0.05,
    )


class Life:
    """One gate from its start to its last request; what its requests do is thrown by dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.settings = settings(self.dice)
        self.gate = build_governor(self.settings, 0.0)
        self.now, self.attempts = 0.0, 0
        self.queued: set[int] = set()
        self.running: set[int] = set()
        self.ended: set[int] = set()
        """Whose engines have not let go."""

    def step(self) -> None:
        dice = self.dice
        self.pass_time(
            dice.choice([0.0, 0.0, 0.01, 0.05, 0.3, 1.0])
            if dice.random() < 0.98
            else dice.choice([30.0, 400.0])
        )
        if dice.random() < 0.45:
            self.arrive()
        elif dice.random() < 0.7 and (self.running or self.ended):
            self.happen(dice.choice(sorted(self.running | self.ended)))
        elif dice.random() < 0.5:
            self.news(dice.choice(self.settings.engines).name)
        elif dice.random() < 0.1:
            changed = settings(dice)
            self.settings = (
                changed if dice.random() < 0.5 else replace(changed, engines=self.settings.engines)
            )
            self.take(self.gate.reconfigure(self.settings, self.now))
        self.gate.snapshot(self.now)
        self.gate.shared_use(self.now)

    def pass_time(self, passes_s: float) -> None:
        until, at_once = self.now + passes_s, 0
        while (wake := self.gate.next_wake()) is not None and wake <= until:
            at_once = 0 if wake > self.now else at_once + 1
            assert at_once < MOST_AT_ONCE, f"it is woken again and again at {self.now}"
            self.now = max(self.now, wake)
            self.send(Tick())
        self.now = until

    def arrive(self) -> None:
        dice, talk = self.dice, self.dice.randrange(4)
        marks = tuple((100 * talk + turn, 3_000 * (turn + 1)) for turn in range(dice.randrange(1, 6)))
        self.attempts += 1
        arrived = Arrived(
            self.attempts,
            tenant=dice.choice("xyz"),
            lane=dice.choice([None, *"abc"]),
            model=dice.choice(MODELS),
            prompt_bytes=dice.choice([40, 400, 4_000, 40_000]),
            max_tokens=dice.choice([None, 0, 1, 50, 200]),
            answers=dice.choice([1, 1, 1, 3]),
            stream=dice.random() < 0.7,
            hands_over=True,
            bootstraps=True,
            fingerprint=partial(int, dice.randrange(30)),
            retry_count=dice.choice([None, None, 0, 2]),
            marks=dice.choice([None, lambda: marks]),
            session=dice.choice([None, None, talk]),
        )
        self.gate.explain(arrived, self.now)
        self.send(arrived)

    def happen(self, number: int) -> None:
        """Let something happen to a request that an engine has."""
        dice = self.dice
        if number in self.ended:
            self.ended.discard(number)
            self.send(Released(number))
            return
        events: list[Event] = [
            FirstToken(number),
            Finished(
                number, dice.choice([None, 1_000]), dice.choice([None, 50]), released=dice.random() < 0.7
            ),
            ClientGone(number),
            Failed(number, dice.choice([FailureKind.CONNECT, FailureKind.TIMEOUT]), dice.choice(list(Sent))),
            Prefilled(number, 100, 0),
            HeldBack(number),
            HandoffFailed(number, FailureKind.BROKEN),
        ]
        event = dice.choice(events)
        self.send(event)
        if isinstance(event, Finished) and event.released:
            self.ended.discard(number)

    def news(self, engine: str) -> None:
        """Let an engine say something of itself, or a client leave the queue."""
        dice = self.dice
        events: list[Event] = [
            EngineDown(engine),
            EngineUp(engine),
            EngineUp(engine, trial=True),
            EngineSeen(
                engine,
                self.now,
                dice.randrange(5),
                dice.randrange(8),
                0.5,
                adapters=AdaptersSeen(2, ("m",)),
            ),
            EngineProgress(engine, tuple(Growth(each, dice.randrange(200)) for each in sorted(self.running))),
            StoodStill(),
        ]
        self.send(
            ClientGone(min(self.queued)) if self.queued and dice.random() < 0.3 else dice.choice(events)
        )

    def send(self, event: Event) -> None:
        self.take(self.gate.handle(event, self.now))

    def take(self, decisions: tuple[Decision, ...]) -> None:
        for each in decisions:
            if isinstance(each, Queue):
                self.running.discard(each.attempt)
                self.queued.add(each.attempt)
            elif isinstance(each, Admit):
                self.queued.discard(each.attempt)
                self.running.add(each.attempt)
            elif isinstance(each, Yield | Ended):
                self.queued.discard(each.attempt)
                if each.attempt in self.running:
                    self.running.discard(each.attempt)
                    self.ended.add(each.attempt)

    def end_all(self) -> None:
        """Let every request end and every engine let go, then time pass until the last lease is over."""
        while self.queued or self.running or self.ended:
            self.pass_time(0.01)
            for number in sorted(self.queued):
                self.send(ClientGone(number))
            for number in sorted(self.running):
                self.send(Finished(number, 1, 1))
            for number in sorted(self.ended):
                self.ended.discard(number)
                self.send(Released(number))
        for _ in range(20):
            self.pass_time(30.0)


@pytest.mark.parametrize("seed", range(60))
def test_when_all_is_over_nothing_is_taken(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.end_all()
    seen = life.gate.snapshot(life.now)

    assert [
        each
        for each in seen.engines
        if each.running or each.departing or each.kv_tokens or each.prefill_tokens
    ] == []
    assert [each.name for each in seen.lanes if each.queued or each.running or each.queued_tokens] == []
    assert len(seen.engines) == len(life.settings.engines), "engines that a reload took away are forgotten"
