"""Stories of users that return: a gate that is asked what it would do, and a twin that is never asked.

The settings of a story draw every policy of the core; its engines answer, fail, go down, and show their gauges.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import NamedTuple

from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.events import (
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
    HeldBack,
    PrefixMarks,
    QuotaSeen,
    QuotasKept,
    Released,
    Remaining,
    StoodStill,
    Tick,
    Withdrawn,
)
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    LimitSettings,
    QuotaLimit,
    QuotaRule,
    ServicePrior,
    Settings,
    TenantSettings,
)
from millgate.core.words import (
    DeadlineFrom,
    FailureKind,
    IgnoresHangups,
    LaneTakes,
    OutputCharge,
    QuotaKind,
    Sent,
)
from millgate.wiring.governor import build_governor

_NEVER = float("inf")
_TOKEN_S = 0.01


class Request(NamedTuple):
    """What a user wants, and how often it has been asked for."""

    tenant: str
    body: int
    lane: str | None
    output_tokens: int
    max_tokens: int | None
    model: str = ""
    attempts: int = 1


def plain_settings(dice: Random) -> Settings:
    """Return settings of one or two lanes and engines: queues, waits, deadlines and orders."""
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


def every_policy(dice: Random) -> Settings:
    """Return settings with every policy that there is, each in force more often than not."""
    lanes = tuple(_lane(name, dice) for name in ("first", "second", "third")[: dice.choice([2, 3])])
    engines = tuple(_engine(name, dice) for name in ("one", "two", "three")[: dice.choice([1, 2, 3])])
    quotas = (
        QuotaRule("requests", QuotaLimit(QuotaKind.RPM, dice.choice([60, 240]), 5.0), each=("tenant",)),
        QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 40_000, 10.0), tenant="1", each=("model",)),
        QuotaRule("output", QuotaLimit(QuotaKind.OTPM, 20_000, output=dice.choice(list(OutputCharge)))),
    )
    tenants = (TenantSettings("0", 3.0), TenantSettings("1", 1.0, dice.choice([1, 2])))
    return Settings(
        lanes,
        engines,
        max_appointments=dice.choice([8, 1_000]),
        max_queued=dice.choice([4, 10_000]),
        tenants=tenants,
        quotas=quotas[: dice.choice([0, 1, 2, 3])],
        retry_budget=dice.random() < 0.7,
        observe=dice.random() < 0.1,
        hard_cap=dice.random() < 0.5,
    )


def _lane(name: str, dice: Random) -> LaneSettings:
    return LaneSettings(
        name,
        ttft_slo_s=dice.choice([1.0, 10.0]),
        tpot_slo_s=dice.choice([None, 0.02]),
        deadline_s=dice.choice([5.0, 30.0, 300.0]),
        deadline_from=dice.choice(list(DeadlineFrom)),
        order=dice.choice(["arrival", "short_first", "deadline"]),
        max_queue=dice.choice([0, 1, 3, 8, None]),
        max_queue_tokens=dice.choice([None, 3_000]),
        max_queue_bytes=dice.choice([2**28, 2_000]),
        max_wait_s=dice.choice([None, None, 1.5]),
        hold_due_s=dice.choice([None, 0.0, 1.0]),
        overflow_after_s=dice.choice([0.0, 1.0, inf]),
        fair=dice.random() < 0.5,
        max_overtakes=dice.choice([1, None]),
        share=dice.choice([1.0, 3.0]),
        headroom=dice.choice([0, 1]),
        band=dice.choice([0, 0, 1]),
        window_s=dice.choice([0.0, 0.0, 0.3]),
        demote=dice.choice([None, "second", "third"]),
        clip_tokens=dice.choice([None, 20]),
        takes=None if name == "first" else dice.choice([None, *LaneTakes]),
        over_s=dice.choice([0.05, 0.2, 1.0]),
    )


def _engine(name: str, dice: Random) -> EngineSettings:
    limits = (QuotaLimit(QuotaKind.RPM, 120, 5.0), QuotaLimit(QuotaKind.TPM, 60_000))
    return EngineSettings(
        name,
        dice.choice([2, 4, 8]),
        kv_tokens=dice.choice([None, 3_000]),
        prefill_tokens=dice.choice([None, 300]),
        models=dice.choice([(), (), ("small",), ("small", "big")]),
        ignores_hangups=dice.choice(list(IgnoresHangups)),
        account=AccountSettings(limits) if dice.random() < 0.2 else None,
        limit=LimitSettings(dice.choice(["fixed", "slo_gradient", "aimd"]), 0.03, minimum=1),
        prior=ServicePrior(0.1, dice.choice([0.0, 0.001]), 0.01, 0.001),
        overflow=dice.random() < 0.3,
    )


@dataclass
class Story:
    """A gate that explains every arrival before it decides, and its twin; tokens take 10 ms each, whatever is believed.

    With `every` policy on, engines fail and are seen, too.
    """

    dice: Random
    every: bool
    now: float = 0.0
    running: dict[int, tuple[float, float, str]] = field(default_factory=dict)
    away: list[tuple[float, Request, Yield]] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    compared: int = 0

    def __post_init__(self) -> None:
        self.settings = self._draw()
        self.gate, self.twin = build_governor(self.settings, 0.0), build_governor(self.settings, 0.0)

    def _draw(self) -> Settings:
        return every_policy(self.dice) if self.every else plain_settings(self.dice)

    def step(self) -> None:
        """Do what is next: an end, a return, a newcomer or a wake; seldom new settings come first."""
        dice = self.dice
        comes_at = self.now + dice.expovariate(4.0)
        ends_at, ends = min(
            ((at, number) for number, (_, at, _) in self.running.items()), default=(_NEVER, 0)
        )
        back = min(self.away, key=lambda each: each[0], default=None)
        wake = self.twin.next_wake()
        assert self.gate.next_wake() == wake
        at = min(comes_at, ends_at, _NEVER if back is None else back[0], _NEVER if wake is None else wake)
        self.now = max(self.now, at)
        if dice.random() < 0.01:
            self.settings = self._draw()
            decisions = self.gate.reconfigure(self.settings, self.now)
            assert decisions == self.twin.reconfigure(self.settings, self.now)
            self._carry_out(decisions)
        if self.every and dice.random() < 0.3:
            self._news()
        if at == ends_at and ends in self.running:
            self._end(ends)
        elif back is not None and at == back[0]:
            self.away.remove(back)
            self._arrive(back[1]._replace(attempts=back[1].attempts + 1), back[2])
        elif at == comes_at:
            self._arrive(self._newcomer(), None)
        else:
            self._send(Tick())

    def _newcomer(self) -> Request:
        dice = self.dice
        output_tokens = max(1, int(dice.lognormvariate(4.0, 1.0)))
        body = dice.choice([len(self.requests) + 1_000, dice.randrange(5)])
        lane, allowed = dice.choice([None, "first", "second"]), dice.choice([output_tokens, 4096, None])
        model = dice.choice(["", "small", "big"]) if self.every else ""
        return Request(str(dice.randrange(4)), body, lane, output_tokens, allowed, model)

    def _arrive(self, request: Request, told: Yield | None) -> None:
        number = len(self.requests) + 1
        self.requests[number] = request
        arrival = Arrived(
            number,
            tenant=request.tenant,
            lane=request.lane,
            model=request.model,
            prompt_bytes=400,
            max_tokens=request.max_tokens,
            retry_count=self.dice.choice([None, request.attempts - 1]),
            fingerprint=lambda: request.body,
        )
        if self.every:
            arrival = self._with_more(arrival, told)
        explained = self.gate.explain(arrival, self.now)
        decisions = self._send(arrival)
        self.compared += 1
        assert explained.decision == _without_quota(decisions[0])

    def _with_more(self, arrival: Arrived, told: Yield | None) -> Arrived:
        """Return it with all that a client and a door may say; some bring a ticket, and some questions come to nothing."""
        dice = self.dice
        if told is not None and dice.random() < 0.3:
            due_at = self.now + dice.choice([-0.1, 0.0, 0.5])
            arrival = arrival._replace(first_seen=told.first_seen, due_at=due_at, hint_s=told.retry_after_s)
        arrival = arrival._replace(
            stream=dice.random() < 0.7,
            body_bytes=dice.choice([100, 900]),
            answers=dice.choice([1, 1, 1, 3]),
            time_allowed_s=dice.choice([None, None, None, 2.0]),
            max_wait_s=dice.choice([None, None, None, 1.0]),
            engine=dice.choice([None] * 5 + ["one"]),
            may_clip=dice.random() < 0.5,
            caps_sleep=dice.random() < 0.1,
            marks=self._marks(),
        )
        if dice.random() < 0.3:
            other = arrival._replace(attempt=-1, lane="third", engine="two", prompt_bytes=2_000)
            self.gate.explain(other, self.now + dice.choice([0.0, 0.0, 3.0]))
            self.gate.snapshot(self.now + 1.0)
        return arrival

    def _marks(self) -> Callable[[], PrefixMarks] | None:
        """Return the marks of a turn of one of a few conversations, or none."""
        talk, turns = 100 * self.dice.randrange(6), self.dice.randrange(9)
        marks = tuple((talk + turn, 50 * (turn + 1)) for turn in range(turns))
        return None if turns > 6 else lambda: marks

    def _end(self, number: int) -> None:
        del self.running[number]
        chance = self.dice.random()
        if chance < 0.1:
            self._send(ClientGone(number))
            return
        if self.every and chance < 0.2:
            kind, sent = self.dice.choice(list(FailureKind)), self.dice.choice(list(Sent))
            over_limit = kind is FailureKind.REFUSED and self.dice.random() < 0.5
            self._send(Failed(number, kind, sent, self.dice.choice([None, 0.5]), over_limit))
            self._send(Released(number))
            return
        if self.dice.random() < 0.5:
            self._send(FirstToken(number))
        cached_tokens = self.dice.choice([None, 0, 50])
        self._send(Finished(number, 100, self.requests[number].output_tokens, cached_tokens))
        self._send(Released(number))

    def _news(self) -> None:
        """An engine tells how far it is, its gauge is read, it goes down or up, or refused clients leave."""
        dice = self.dice
        name = dice.choice(self.settings.engines).name
        own = [number for number, (_, _, engine) in self.running.items() if engine == name]
        kind = dice.randrange(14)
        if kind < 5:
            tokens = {each: int((self.now - self.running[each][0]) / _TOKEN_S) for each in own}
            told = dice.choice([(), (100,), (100, 50)])
            so_far = tuple(Growth(each, tokens[each], *told) for each in own)
            self._send(EngineProgress(name, so_far))
        elif kind < 9:
            self._send(EngineSeen(name, self.now - 0.1, len(own) + dice.choice([0, 0, 1]), 0, dice.random()))
        elif kind == 9:
            self._send(EngineDown(name))
            self._send(EngineUp(name, trial=dice.random() < 0.3))
            self._send(EngineUp(name))
        elif kind == 10:
            self._send(QuotaSeen(name, (Remaining(QuotaKind.RPM, 100, dice.choice([2, 50]), 20.0),)))
        elif kind == 11:
            before = self.gate.quota_uses(self.now)
            self._send(QuotasKept(tuple(use._replace(used=use.used * 2.0) for use in before), 5.0))
        elif kind == 12:
            self._send(StoodStill() if dice.random() < 0.5 or not own else HeldBack(dice.choice(own)))
        elif self.away:
            gone = dice.choice(self.away)[1]
            self._send(Withdrawn((gone.body,), gone.tenant))

    def _send(self, event: Event) -> tuple[Decision, ...]:
        decisions = self.gate.handle(event, self.now)
        assert decisions == self.twin.handle(event, self.now)
        self._carry_out(decisions)
        return decisions

    def _carry_out(self, decisions: tuple[Decision, ...]) -> None:
        for each in decisions:
            request = self.requests[each.attempt]
            if isinstance(each, Admit):
                ends_at = self.now + 0.1 + _TOKEN_S * request.output_tokens
                self.running[each.attempt] = self.now, ends_at, each.legs[0].engine
            elif isinstance(each, Ended):
                self.running.pop(each.attempt, None)
            elif isinstance(each, Yield) and each.retry:
                early_or_late = self.dice.choice([1.0, 1.0, 1.0, 1.15, 0.5])
                self.away.append((self.now + early_or_late * each.retry_after_s, request, each))


def _without_quota(decision: Decision) -> Decision:
    """Return the decision as it is explained: what is left of quotas is said once they have been charged."""
    return decision._replace(quota=()) if isinstance(decision, Admit | Yield) else decision
