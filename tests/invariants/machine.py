"""The rules of a gate's life, drawn at random: several lanes and engines, honest and dishonest news, odd times.

The governor is the real one. Every event and every settings change goes into a script, so that it can be run again.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import Phase, settings as profile, strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from invariants.model import Known, Model
from millgate.core.decisions import Decision
from millgate.core.events import (
    Arrived,
    ClientGone,
    Draining,
    EngineDown,
    EngineProgress,
    EngineSeen,
    EngineUp,
    Event,
    Failed,
    Finished,
    FirstToken,
    Growth,
    PrefixMarks,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import DeadlineFrom, FailureKind, IgnoresHangups, Sent
from millgate.wiring.choices import ORDERS
from millgate.wiring.governor import build_governor

# Reproducible, and small enough for every machine of this suite to run in a few seconds. A failure is shown as it was
# found: shrinking a story of fifty bursts takes minutes; add Phase.shrink to see it shorter.
MODERATE = profile(max_examples=50, stateful_step_count=50, phases=[Phase.generate])
LANES, ENGINES = ("first", "second", "third"), ("one", "two")

lane_settings = some.builds(
    LaneSettings,
    name=some.just(""),
    ttft_slo_s=some.sampled_from([0.5, 10.0]),
    tpot_slo_s=some.sampled_from([None, 0.05]),
    deadline_s=some.sampled_from([0.3, 5.0, 10.0, 30.0]),
    deadline_from=some.sampled_from(DeadlineFrom),
    order=some.sampled_from(sorted(ORDERS)),
    max_queue=some.sampled_from([None, None, 0, 1, 3]),
    max_queue_tokens=some.sampled_from([None, None, 1_500]),
    max_queue_bytes=some.sampled_from([2**28, 2**28, 5_000]),
    max_wait_s=some.sampled_from([None, None, None, 0.0, 2.0]),
    fair=some.booleans(),
    max_overtakes=some.sampled_from([1, 3]),
    share=some.sampled_from([1.0, 3.0]),
    headroom=some.sampled_from([0, 1]),
    band=some.integers(0, 1),
    window_s=some.sampled_from([0.0, 0.0, 0.0, 0.2]),
)
engine_settings = some.builds(
    EngineSettings,
    name=some.just(""),
    max_inflight=some.integers(1, 4),
    kv_tokens=some.sampled_from([None, 1_000, 5_000]),
    prefill_tokens=some.sampled_from([None, None, 300]),
    models=some.sampled_from([(), (), (), ("small",), ("small", "big")]),
    ignores_hangups=some.sampled_from(IgnoresHangups),
)
core_settings = some.builds(
    lambda lanes, engines, places, queued: Settings(
        tuple(replace(lane, name=name) for name, lane in zip(LANES, lanes, strict=False)),
        tuple(replace(engine, name=name) for name, engine in zip(ENGINES, engines, strict=False)),
        places,
        queued,
    ),
    some.lists(lane_settings, min_size=1, max_size=3),
    some.lists(engine_settings, min_size=1, max_size=2),
    some.sampled_from([4, 1_000]),
    some.sampled_from([10_000, 10_000, 5]),
)


def _pool(size: int, dice: Random) -> list[tuple[Arrived, int]]:
    """Return kinds of arrivals, each with its body; drawing one of them costs a hundredth of drawing every field."""
    usually = (None, None, None, None)
    return [
        (
            Arrived(
                attempt=0,
                tenant=dice.choice(["", "other"]),
                lane=dice.choice([None, *LANES]),
                model=dice.choice(["small", "small", "big"]),
                prompt_bytes=dice.choice([0, 40, 400, 400, 1_600, 4_100]),
                body_bytes=dice.choice([100, 3_000]),
                max_tokens=dice.choice([None, 0, 1, 20, 20, 50, 5_000]),
                answers=dice.choice([1, 1, 1, 2, 3, 6]),
                stream=dice.choice([True, False]),
                time_allowed_s=dice.choice([*usually, 0.0, 1.0]),
                retry_count=dice.choice([None, 0, 1, 2]),
                max_wait_s=dice.choice([*usually, 0.0, 2.0]),
                marks=_marks(dice),
            ),
            dice.randrange(3),
        )
        for _ in range(size)
    ]


def _marks(dice: Random) -> Callable[[], PrefixMarks] | None:
    """Return the marks of a turn of one of a few conversations; None for every other arrival."""
    talk, turns = 100 * dice.randrange(4), dice.randrange(6)
    marks = tuple((talk + turn, 70 * (turn + 1)) for turn in range(turns))
    return dice.choice([None, lambda: marks])


KINDS = _pool(500, Random(1))
bursts = some.lists(some.integers(0, len(KINDS) - 1), min_size=2, max_size=8)
picks = some.integers(0, 1_000)


def build(settings: Settings) -> Governor:
    """Return the governor under test."""
    return build_governor(settings, 0.0)


class GateMachine(RuleBasedStateMachine):
    """A gate, the outsider's model of it, and everything that may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.attempts = 0
        self.model = Model()
        self.script: list[tuple[Event | Settings, float]] = []
        self.answers: list[tuple[Decision, ...]] = []

    @initialize(settings=core_settings)
    def opens(self, settings: Settings) -> None:
        self.settings = self.first_settings = settings
        self.most_appointments = settings.max_appointments
        self.gate = build(settings)

    def send(self, event: Event, late_s: float = 0.0) -> tuple[Decision, ...]:
        """Hand one event in, note it and its decisions, and let the model judge them."""
        decisions = self.gate.handle(event, self.now - late_s)
        self.script.append((event, self.now - late_s))
        self.answers.append(decisions)
        assert all(decision == type(decision)(*decision) for decision in decisions), (
            "a record without all fields"
        )
        assert all(len(decision) == len(decision._fields) for decision in decisions), (
            "a record of another length"
        )
        self.model.now = self.now
        self.model.takes(event, decisions)
        self.judge(event, decisions)
        return decisions

    def judge(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        """Say what this machine's invariant asks of one step."""

    def pick(self, among: dict[int, Known], pick: int) -> int:
        return list(among)[pick % len(among)]

    @rule(burst=bursts)
    def many_arrive(self, burst: list[int]) -> None:
        for kind in burst:
            self._arrive(*KINDS[kind])

    @precondition(lambda self: self.model.next_promise(self.now))
    @rule(newcomers=some.lists(some.integers(0, len(KINDS) - 1), max_size=4))
    def next_one_is_back_when_told(self, newcomers: list[int]) -> None:
        """And finds what has come while it was away."""
        promise = self.model.next_promise(self.now)
        assert promise is not None
        self.now = promise.due_at
        self.send(Tick())
        self.many_arrive(newcomers)
        assert promise.arrival.fingerprint is not None
        self._arrive(promise.arrival, promise.arrival.fingerprint())

    def _arrive(self, arrival: Arrived, body: int) -> None:
        self.attempts += 1
        arrival = arrival._replace(attempt=self.attempts, fingerprint=lambda: body)
        explained = self.gate.explain(arrival, self.now)
        self.model.arrives(arrival, explained, self.now)
        decisions = self.send(arrival)
        assert decisions[0] == explained.decision, f"decided {decisions}, explained {explained.decision}"

    @rule(step_s=some.sampled_from([0.001, 0.05, 0.3, 1.0, 5.0]))
    def time_passes(self, step_s: float) -> None:
        self.now += step_s

    @rule(late_s=some.sampled_from([0.0, 0.0, 0.5, 30.0]))
    def tick_when_asked_or_late(self, late_s: float) -> None:
        wake = self.gate.next_wake()
        if wake is not None:
            self.now = max(self.now, wake) + late_s
            self.send(Tick())

    @precondition(lambda self: self.model.queued or self.model.running)
    @rule(pick=picks)
    def client_leaves(self, pick: int) -> None:
        self.send(ClientGone(self.pick({**self.model.queued, **self.model.running}, pick)))

    @precondition(lambda self: self.model.running)
    @rule(pick=picks)
    def first_token(self, pick: int) -> None:
        self.send(FirstToken(self.pick(self.model.running, pick)))

    @precondition(lambda self: self.model.running)
    @rule(
        pick=picks,
        usage=some.sampled_from([(None, None), (30, 7), (10_000, 3_000), (0, 0)]),
        at_once=some.booleans(),
    )
    def answers_whole(self, pick: int, usage: tuple[int | None, int | None], at_once: bool) -> None:
        attempt = self.pick(self.model.running, pick)
        self.send(Finished(attempt, *usage))
        if at_once:
            self.send(Released(attempt))

    @precondition(lambda self: self.model.running)
    @rule(
        pick=picks,
        kind=some.sampled_from(FailureKind),
        sent=some.sampled_from(Sent),
        blames=some.sampled_from([(False, False), (True, False), (False, True)]),
    )
    def engine_fails(self, pick: int, kind: FailureKind, sent: Sent, blames: tuple[bool, bool]) -> None:
        attempt, (request, key) = self.pick(self.model.running, pick), blames
        self.send(Failed(attempt, kind, sent, blames_request=request, blames_key=key))

    @precondition(lambda self: self.model.departing)
    @rule(pick=picks)
    def released(self, pick: int) -> None:
        self.send(Released(self.pick(self.model.departing, pick)))

    @precondition(lambda self: self.model.running)
    @rule(
        engine=some.sampled_from(ENGINES),
        tokens=some.sampled_from([0, 1, 50, 100_000]),
        prompt=some.sampled_from([(None, None), (None, 9), (0, 0), (7, None), (100_000, 10**6)]),
    )
    def engine_reports_progress(
        self, engine: str, tokens: int, prompt: tuple[int | None, int | None]
    ) -> None:
        growth = tuple(Growth(attempt, tokens, *prompt) for attempt in [*self.model.running, 10**9])
        self.send(EngineProgress(engine, growth))

    @rule(
        engine=some.sampled_from([*ENGINES, "nobody"]),
        off=some.sampled_from([0, 0, 0, 1, -2, -1_000, 10**9]),
        waiting=some.sampled_from([0, 2, None]),
        age_s=some.sampled_from([0.0, 0.2, 10.0, -5.0]),
    )
    def gauge_is_read(self, engine: str, off: int, waiting: int | None, age_s: float) -> None:
        legs = [each.leg for each in self.model.running.values() if each.leg is not None]
        true = sum(leg.streams for leg in legs if leg.engine == engine)
        self.send(EngineSeen(engine, self.now - age_s, true + off, waiting, 0.5))

    @rule(
        what=some.one_of(
            some.builds(EngineDown, some.sampled_from(ENGINES)),
            some.builds(EngineUp, some.sampled_from([*ENGINES, "nobody"])),
            some.builds(EngineUp, some.sampled_from(ENGINES), trial=some.just(True)),
        ),
        rarely=some.integers(0, 3),
    )
    def something_turns(self, what: EngineDown | EngineUp, rarely: int) -> None:
        """One in four times; what is down comes up again soon."""
        if rarely:
            for engine in ENGINES:
                self.send(EngineUp(engine))
        else:
            self.send(what)

    @precondition(lambda self: self.model.running and len(self.script) >= 40)
    @rule(grace_s=some.sampled_from([0.5, None]))
    def a_drain_begins(self, grace_s: float | None) -> None:
        """It ends most of the story; where its grace is short, what runs is cancelled."""
        self.send(Draining(grace_s))
        self.now += 1.0
        self.send(Tick())

    @precondition(lambda self: self.attempts)
    @rule(settings=core_settings)
    def settings_change(self, settings: Settings) -> None:
        self.settings = settings
        # A bound that is lowered drops nothing that is kept.
        self.most_appointments = max(self.most_appointments, settings.max_appointments)
        decisions = self.gate.reconfigure(settings, self.now)
        self.script.append((settings, self.now))
        self.answers.append(decisions)
        self.model.now = self.now
        self.model.takes(Tick(), decisions)
        self.judge(Tick(), decisions)

    @precondition(lambda self: self.attempts)
    @rule(pick=some.integers(1, 1_000), news=some.sampled_from([ClientGone, FirstToken, Finished, Released]))
    def late_or_unknown_news(self, pick: int, news: type) -> None:
        """News of somebody who is over or was never here changes nothing and decides nothing."""
        attempt = pick % (2 * self.attempts)
        known = self.model.attempts.get(attempt)
        if known is None or (known.ended and attempt not in self.model.departing):
            before = self.gate.snapshot(self.now)
            assert self.send(news(attempt)) == ()
            assert self.gate.snapshot(self.now) == before

    def come_to_rest(self) -> None:
        """Let everything end that still runs, and the longest memory fade."""
        for attempt in list(self.model.running):
            self.send(Finished(attempt))
        while self.model.departing:
            self.send(Released(next(iter(self.model.departing))))
        while (wake := self.gate.next_wake()) is not None:
            self.now = max(self.now, wake)
            self.send(Tick())
            for attempt in list(self.model.running):
                self.send(Finished(attempt))
                self.send(Released(attempt))
        self.now += 100.0
        self.send(Tick())
