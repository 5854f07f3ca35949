"""A gate before a provider in virtual time: the gateway's governor, the provider's law, users that honour hints.

    twin = Twin(config, Traffic(asked_per_s=100.0), seed=1)
    twin.run_until(60.0)
    twin.count_anew()
    twin.run_until(120.0)
    print(twin.counts, twin.used_share)

What `python -m lab demo provider` shows in two minutes on real sockets takes two seconds here, and is the same every time.
Answers stream; the gate learns their real sizes at their end and the provider's headers with their first byte.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import ceil, exp
from random import Random
from typing import NamedTuple

from lab.provider.law import Grant, ProviderLaw
from millgate.config.schema import Config
from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.events import (
    Arrived,
    EngineProgress,
    Event,
    Failed,
    Finished,
    FirstToken,
    Growth,
    QuotaReading,
    QuotaSeen,
    Released,
    Remaining,
    Tick,
)
from millgate.core.quotas.bucket import Sizes
from millgate.core.words import FailureKind, QuotaKind, Sent
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import build_settings

BYTES_PER_TOKEN = 4
_SPREAD = 0.6
# Answers are told to the provider's meters in so many pieces.
_PIECES = 5
_LEAST_WAY_S, _LONGEST_WAY_S = 0.001, 0.02
_ROUNDED_TO = -3
_REQUESTS = (QuotaKind.RPM, QuotaKind.RPD)


@dataclass(frozen=True, slots=True)
class ProviderTraffic:
    """What users ask, log-normal sizes around these means in tokens, and how fast the provider answers, in seconds.

    A user comes back so many `returns` times when told to.
    """

    asked_per_s: float
    mean_prompt_tokens: float = 300.0
    mean_output_tokens: float = 100.0
    max_tokens: int = 400
    returns: int = 2
    ttft_s: float = 0.3
    tpot_s: float = 0.01


class Outage(NamedTuple):
    """From when until when the provider fails everything, and how: CONNECT is a refused connection, REFUSED a 529."""

    begins_at: float
    ends_at: float
    kind: FailureKind


@dataclass(slots=True)
class ProviderCounts:
    """What happened since the counts began.

    `sent` and `refused` are the provider's, `failed` those of an outage; `answered` and `yields`, by reason, are what
    users met. `promised` counts clients that returned on time, `kept` those of them that were let in.
    """

    sent: int = 0
    refused: int = 0
    failed: int = 0
    answered: int = 0
    promised: int = 0
    kept: int = 0
    yields: Counter[str] = field(default_factory=Counter)
    longest_refusal_s: float = 0.0

    @property
    def refused_share(self) -> float:
        """The share of what was sent that was met with 429."""
        return self.refused / self.sent if self.sent else 0.0


@dataclass(slots=True)
class _Wish:
    """One user's request; `asked_at` is when its present try arrived, `tries` counts those before it."""

    number: int
    prompt: int
    output: int
    asked_at: float = 0.0
    tries: int = 0
    first_token_at: float | None = None


class Twin:
    """One run. `config` is a configuration of one engine with an account.

    `used_share` says how full the provider's meters are at the start.
    """

    def __init__(
        self,
        config: Config,
        traffic: ProviderTraffic,
        *,
        seed: int,
        used_share: float = 0.5,
        outage: Outage | None = None,
    ) -> None:
        settings = build_settings(config).settings
        account = settings.engines[0].account
        assert account is not None
        self.governor = build_governor(settings, 0.0)
        self.counts = ProviderCounts()
        self._engine = settings.engines[0].name
        self._law = ProviderLaw(account.limits, 0.0, used_share=used_share)
        self._traffic, self._outage = traffic, outage
        self._dice = Random(seed)
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._planned = self._attempts = self._users = 0
        self._wake_at: float | None = None
        self._open: dict[int, _Wish] = {}
        self._sent: dict[int, _Wish] = {}
        self._now = 0.0
        self._at(0.0, self._user_comes)
        self._at(1.0, self._second_passes)

    @property
    def used_share(self) -> float:
        """The share that was charged since the counts began, of the limit that was used most."""
        return max([self._law.used_share(kind, self._now) for kind in self._law.meters])

    def run_until(self, end: float) -> None:
        """Let everything happen before this time."""
        while self._agenda[0][0] < end:
            self._now, _, happen = heappop(self._agenda)
            happen(self._now)
        self._now = end

    def count_anew(self) -> None:
        """Begin every count anew, as after a warm-up."""
        self.counts = ProviderCounts()
        self._law.count_from(self._now)

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        self._planned += 1
        heappush(self._agenda, (when, self._planned, happen))

    # ---- users

    def _user_comes(self, now: float) -> None:
        traffic = self._traffic
        self._users += 1
        output = min(traffic.max_tokens, self._size(traffic.mean_output_tokens))
        self._ask(_Wish(self._users, self._size(traffic.mean_prompt_tokens), output), now)
        self._at(now + self._dice.expovariate(traffic.asked_per_s), self._user_comes)

    def _size(self, mean: float) -> int:
        return max(1, round(mean * self._dice.lognormvariate(0.0, _SPREAD) / exp(_SPREAD**2 / 2)))

    def _ask(self, wish: _Wish, now: float) -> None:
        self._attempts += 1
        wish.asked_at = now
        self.counts.promised += wish.tries > 0
        self._open[self._attempts] = wish
        prompt_bytes = BYTES_PER_TOKEN * wish.prompt
        arrival = Arrived(
            self._attempts,
            prompt_bytes=prompt_bytes,
            body_bytes=prompt_bytes,
            max_tokens=self._traffic.max_tokens,
            retry_count=wish.tries,
            fingerprint=lambda: wish.number,
        )
        self._post(arrival, now)

    def _refused(self, refusal: Yield, now: float) -> None:
        wish = self._open.pop(refusal.attempt)
        self.counts.yields[refusal.reason] += 1
        self.counts.longest_refusal_s = max(self.counts.longest_refusal_s, now - wish.asked_at)
        wish.tries += 1
        if refusal.retry and wish.tries <= self._traffic.returns:
            self._at(now + ceil(refusal.retry_after_s * 1000) / 1000, partial(self._ask, wish))

    # ---- the gate

    def _post(self, event: Event, now: float) -> None:
        for decision in self.governor.handle(event, now):
            self._obey(decision, now)
        wake_at = self.governor.next_wake()
        if wake_at is not None and (self._wake_at is None or wake_at < self._wake_at):
            self._wake_at = wake_at
            self._at(max(now, wake_at), self._wake)

    def _wake(self, now: float) -> None:
        if self._wake_at is not None and now >= self._wake_at:
            self._wake_at = None
            self._post(Tick(), now)

    def _obey(self, decision: Decision, now: float) -> None:
        if isinstance(decision, Admit):
            wish = self._open.pop(decision.attempt)
            self.counts.sent += 1
            self.counts.kept += wish.tries > 0
            self._sent[decision.attempt] = wish
            self._at(now + self._on_the_way(), partial(self._arrives, decision.attempt))
        elif isinstance(decision, Yield):
            self._refused(decision, now)
        elif isinstance(decision, Ended):
            self.counts.answered += decision.cause is None

    def _second_passes(self, now: float) -> None:
        tpot_s = self._traffic.tpot_s
        streams = [
            Growth(attempt, min(wish.output, 1 + int((now - wish.first_token_at) / tpot_s)))
            for attempt, wish in self._sent.items()
            if wish.first_token_at is not None
        ]
        self._post(EngineProgress(self._engine, tuple(streams)), now)
        self._at(now + 1.0, self._second_passes)

    # ---- the provider

    def _on_the_way(self) -> float:
        return self._dice.uniform(_LEAST_WAY_S, _LONGEST_WAY_S)

    def _arrives(self, attempt: int, now: float) -> None:
        wish, outage = self._sent[attempt], self._outage
        if outage is not None and outage.begins_at <= now < outage.ends_at:
            self.counts.failed += 1
            sent = Sent.NONE if outage.kind is FailureKind.CONNECT else Sent.REQUEST
            self._ends_badly(Failed(attempt, outage.kind, sent), (), now)
            return
        sizes = Sizes(wish.prompt, wish.output, self._traffic.max_tokens)
        verdict = self._law.ask(sizes, now)
        if verdict.refused_by is not None:
            self.counts.refused += 1
            hint_s = max(1, ceil(verdict.wait_s))
            failed = Failed(attempt, FailureKind.REFUSED, Sent.REQUEST, hint_s, True, verdict.refused_by)
            self._at(now + self._on_the_way(), partial(self._ends_badly, failed, self._says(now)))
            return
        self._answer(attempt, wish, self._law.grant(sizes, now), now)

    def _answer(self, attempt: int, wish: _Wish, grant: Grant, now: float) -> None:
        first_at, said = now + self._traffic.ttft_s, self._says(now)
        self._at(first_at, partial(self._begins, attempt, said))
        ends_at = first_at + wish.output * self._traffic.tpot_s
        for piece in range(1, _PIECES + 1):
            so_far = wish.output * piece // _PIECES
            at = first_at + so_far * self._traffic.tpot_s
            self._at(at, partial(_produce, grant, so_far))
        self._at(ends_at, partial(self._ends_well, attempt, grant))

    def _begins(self, attempt: int, said: QuotaReading, now: float) -> None:
        self._sent[attempt].first_token_at = now
        self._post(QuotaSeen(self._engine, said), now)
        self._post(FirstToken(attempt), now)

    def _ends_well(self, attempt: int, grant: Grant, now: float) -> None:
        grant.end(0, now)
        wish = self._sent.pop(attempt)
        self._post(Finished(attempt, wish.prompt, wish.output), now)
        self._post(Released(attempt), now)

    def _ends_badly(self, failed: Failed, said: QuotaReading, now: float) -> None:
        del self._sent[failed.attempt]
        self._post(QuotaSeen(self._engine, said), now)
        self._post(failed, now)
        self._post(Released(failed.attempt), now)

    def _says(self, now: float) -> QuotaReading:
        """Return the headers of an answer, tokens rounded to thousands as Anthropic does."""
        return tuple(
            Remaining(kind, limit, left if kind in _REQUESTS else round(left, _ROUNDED_TO), reset_s)
            for kind, limit, left, reset_s in self._law.standing(now)
        )


def _produce(grant: Grant, so_far: int, now: float) -> None:
    grant.produce(so_far - grant.produced, now)
