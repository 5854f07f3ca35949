"""Ten times too much work, one account, and the provider's own law, in virtual time.

The account sees what a gateway sees: estimated prompts, a mean output length, delays on the way, answers of 1 to 20 s
whose true length it learns at the end. It does not see how full the provider's buckets are when it starts, nor what
another client takes from them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf
from random import Random
from typing import NamedTuple

from lab.provider.law import Grant, ProviderLaw

from millgate.core.events import QuotaReading, Remaining
from millgate.core.quotas.account import Account
from millgate.core.quotas.bucket import Reservation, Sizes
from millgate.core.settings import AccountSettings, QuotaLimit
from millgate.core.words import QuotaKind

WARM_UP_S = 60.0
MEAN_PROMPT, MEAN_OUTPUT, MAX_TOKENS = 800, 200, 1024
# Five per cent wrong: what the learned ratio of bytes to tokens is off by, to the safe side or not by chance.
PROMPT_BIAS = 1.05
PIECES = 4
REQUESTS = (QuotaKind.RPM, QuotaKind.RPD)


class Score(NamedTuple):
    """What came of it after the warm-up: requests sent and refused, and the share of the first limit that was used."""

    sent: int
    refused: int
    used_share: float


class Job(NamedTuple):
    """One request: its real size, and its reservation."""

    prompt: int
    output: int
    reservation: Reservation


class World:
    """One run; the first of `limits` is the one that binds, `believed` is what the account is told instead."""

    def __init__(
        self,
        limits: Sequence[QuotaLimit],
        seed: int,
        *,
        used_share: float,
        eaten: float = 0.0,
        headers: bool = True,
        believed: Sequence[QuotaLimit] | None = None,
    ) -> None:
        self.dice = Random(seed)
        self.law = ProviderLaw(limits, 0.0, used_share=used_share)
        self.account = Account(AccountSettings(tuple(believed or limits)), 0.0)
        self.binding = limits[0].kind
        self.eaten, self.headers = eaten, headers
        self.agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self.planned = 0
        self.wake_at = 0.0
        self.sent = self.refused = 0
        self.waiting = self._next_size()

    def run(self, for_s: float) -> Score:
        """Return the score of so many seconds after the warm-up."""
        self._at(0.0, self._wake)
        self._at(WARM_UP_S, self._count_anew)
        if self.eaten:
            self._at(self.dice.random(), self._another_client)
        end = WARM_UP_S + for_s
        while self.agenda[0][0] < end:
            now, _, happen = heappop(self.agenda)
            happen(now)
        return Score(self.sent, self.refused, self.law.used_share(self.binding, end))

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        self.planned += 1
        heappush(self.agenda, (when, self.planned, happen))

    def _count_anew(self, now: float) -> None:
        self.sent = self.refused = 0
        self.law.count_from(now)

    def _next_size(self) -> tuple[int, int]:
        prompt = max(10, round(self.dice.lognormvariate(0, 0.8) * 0.72 * MEAN_PROMPT))
        output = round(self.dice.lognormvariate(0, 1.0) * 0.6 * MEAN_OUTPUT)
        return prompt, min(MAX_TOKENS, max(1, output))

    def _on_the_way(self) -> float:
        return self.dice.uniform(0.02, 0.3)

    def _wake(self, now: float) -> None:
        if now == self.wake_at:
            self._send_all(now)

    def _send_all(self, now: float) -> None:
        """Send while the account allows; somebody always waits."""
        while True:
            prompt, output = self.waiting
            asked = Sizes(round(prompt * PROMPT_BIAS), MEAN_OUTPUT, MAX_TOKENS)
            wait_s = self.account.wait_s(asked, now)
            assert wait_s != inf
            if wait_s > 0.0:
                self.wake_at = now + wait_s
                self._at(self.wake_at, self._wake)
                return
            job = Job(prompt, output, self.account.take(asked, now))
            self.sent += 1
            self.waiting = self._next_size()
            self._at(now + self._on_the_way(), partial(self._arrives, job))

    def _arrives(self, job: Job, now: float) -> None:
        sizes = Sizes(job.prompt, MEAN_OUTPUT, MAX_TOKENS)
        verdict = self.law.ask(sizes, now)
        if verdict.refused_by is not None:
            self.refused += 1
            named = verdict.refused_by if self.headers else None
            hint_s, said = max(1, ceil(verdict.wait_s)), self._says(now)
            self._at(now + self._on_the_way(), partial(self._comes_back, job, hint_s, named, said))
            return
        grant, said = self.law.grant(sizes, now), self._says(now)
        length_s = self.dice.uniform(1.0, 20.0)
        for piece in range(1, PIECES + 1):
            so_far = job.output * piece // PIECES
            self._at(now + length_s * piece / PIECES, partial(self._produces, job, grant, so_far))
        self._at(now + length_s + 1e-6, partial(self._ends, job, grant, said))

    def _produces(self, job: Job, grant: Grant, output_tokens: int, now: float) -> None:
        grant.produce(output_tokens - grant.produced, now)
        self.account.progress(job.reservation, output_tokens, now)

    def _ends(self, job: Job, grant: Grant, said: QuotaReading, now: float) -> None:
        grant.end(0, now)
        self._at(now + self._on_the_way(), partial(self._has_ended, job, said))

    def _has_ended(self, job: Job, said: QuotaReading, now: float) -> None:
        self.account.seen(said, now)
        self.account.settle(job.reservation, job.prompt, 0, job.output, now)
        self.account.answered(job.prompt, 0, job.output)
        self._send_all(now)

    def _comes_back(
        self, job: Job, hint_s: float, named: QuotaKind | None, said: QuotaReading, now: float
    ) -> None:
        self.account.seen(said, now)
        self.account.settle(job.reservation, 0, 0, 0, now)
        self.account.refused(hint_s, now, named)
        self._send_all(now)

    def _says(self, now: float) -> QuotaReading:
        """Return the headers of an answer: as old as the answer when it is read, tokens rounded to thousands."""
        if not self.headers:
            return ()
        return tuple(
            Remaining(kind, limit, left if kind in REQUESTS else round(left, -3), reset_s)
            for kind, limit, left, reset_s in self.law.standing(now)
        )

    def _another_client(self, now: float) -> None:
        """Take its share every second, or a whole request whenever one has come together."""
        share = self.law.meters[self.binding].limit.rate_per_s * self.eaten
        every_s = max(1.0, 1.0 / share)
        self.law.eat(self.binding, share * every_s, now)
        self._at(now + every_s, self._another_client)
