"""Users at a screen: what they do while they wait, and when they are refused.

A user asks, and hangs up when no token has come within the patience; then it asks again at once (a refresh), a
bounded number of times. A refusal is obeyed: told when to come back it comes back then, if its patience lasts
that long. Told not to come back, or to come back too late, it goes away.
"""

import asyncio
from typing import NamedTuple

from millgate.client.answers import REFUSALS
from millgate.demos.connection import AttemptAnswer, Endpoint
from millgate.demos.users import Story, told


class UserManners(NamedTuple):
    """How users behave: patience per look at the screen, refreshes after it, and how often a hint is obeyed."""

    patience_s: float
    refreshes: int
    returns: int


class PatientUser:
    """One request's user: asks, waits, refreshes and obeys hints as its manners say."""

    def __init__(self, endpoint: Endpoint, manners: UserManners) -> None:
        self._endpoint = endpoint
        self._manners = manners
        self._attempts = 0
        self._refreshes = 0
        self._reasons: list[str] = []

    async def live(self, body: bytes) -> Story:
        """Pursue one request to its end and tell its story."""
        loop = asyncio.get_running_loop()
        asked_at = looked_at = loop.time()
        while True:
            self._attempts += 1
            left_s = self._manners.patience_s - (loop.time() - looked_at)
            answer = await self._endpoint.ask(body, max(0.001, left_s))
            if answer.hung_up and self._refreshes < self._manners.refreshes:
                self._refreshes += 1
                looked_at = loop.time()
                continue
            wait_s = self._comes_back_after(answer, looked_at + self._manners.patience_s - loop.time())
            if wait_s is None:
                return told(answer, asked_at, self._attempts, self._refreshes, self._reasons)
            await asyncio.sleep(wait_s)

    def _comes_back_after(self, answer: AttemptAnswer, patience_left_s: float) -> float | None:
        if answer.status not in REFUSALS or answer.hung_up:
            return None
        self._reasons.append(answer.reason or str(answer.status))
        if not answer.retry or answer.hint_s is None or len(self._reasons) > self._manners.returns:
            return None
        return answer.hint_s if answer.hint_s < patience_left_s else None
