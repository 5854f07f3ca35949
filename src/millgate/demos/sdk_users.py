"""Users whose program is an SDK: a time-out, a few tries, hints obeyed to the letter, back-off where there is none.

The numbers are those of openai 3.52 and anthropic 2.11 as read and measured: 0.5 s doubling up to 8 s, each cut by
up to a quarter at random. A hint of up to two minutes is taken as it is. `x-should-retry: false` ends it. Which
answers are tried again is the same there: 408, 409, 429 and everything from 500 on, a time-out, no answer at all.
"""

import asyncio
import random

from millgate.demos.connection import AttemptAnswer, Endpoint
from millgate.demos.crowd import CrowdUser, Story, UserManners

FIRST_BACKOFF_S, LONGEST_BACKOFF_S, BACKOFF_JITTER = 0.5, 8.0, 0.25
LONGEST_HINT_S = 120.0
TRIED_AGAIN = frozenset({0, 408, 409, 429})


class SdkUser(CrowdUser):
    """One request's user: every try has the whole patience, and `Manners.refreshes` further tries are made in all.

    Times are real seconds; back-off is engine seconds, `time_scale` of them in a real one.
    """

    def __init__(
        self, endpoint: Endpoint, manners: UserManners, *, dice: random.Random, time_scale: float
    ) -> None:
        super().__init__(endpoint, manners)
        self._dice = dice
        self._time_scale = time_scale

    async def live(self, body: bytes) -> Story:
        """Pursue one request to its end and tell its story."""
        asked_at = asyncio.get_running_loop().time()
        while True:
            self._attempts += 1
            answer = await self._endpoint.ask(body, self._manners.patience_s)
            wait_s = self._tries_again_after(answer)
            if wait_s is None:
                return self._told(answer, asked_at)
            await asyncio.sleep(wait_s)

    def _tries_again_after(self, answer: AttemptAnswer) -> float | None:
        if answer.hung_up:
            self._refreshes += 1
        elif answer.status in TRIED_AGAIN or answer.status >= 500:
            self._reasons.append(answer.reason or str(answer.status))
        else:
            return None
        if self._attempts > self._manners.refreshes or not answer.retry:
            return None
        if answer.hint_s is not None and answer.hint_s <= LONGEST_HINT_S:
            return answer.hint_s
        return self._backoff_s() / self._time_scale

    def _backoff_s(self) -> float:
        doubled_s = FIRST_BACKOFF_S * 2.0 ** (self._attempts - 1)
        return min(doubled_s, LONGEST_BACKOFF_S) * (1.0 - BACKOFF_JITTER * self._dice.random())
