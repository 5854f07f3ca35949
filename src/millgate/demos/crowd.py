"""Users with patience: what each of them wants, how each of them behaves, and how it went.

A user asks, and hangs up when no token has come within the patience; then it asks again at once (a refresh), a
bounded number of times. A refusal is obeyed: told when to come back it comes back then, if its patience lasts
that long. Told not to come back, or to come back too late, it goes away. Everything is real time.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from millgate.demos.connection import AttemptAnswer, Endpoint

REFUSALS = frozenset({429, 503, 529})


class Wish(NamedTuple):
    """One request of the load: when it comes after the start, and its true sizes in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class UserManners(NamedTuple):
    """How users behave: patience per look at the screen, refreshes after it, and how often a hint is obeyed."""

    patience_s: float
    refreshes: int
    returns: int


class UserEnding(StrEnum):
    """How a request ended for its user."""

    WHOLE = "whole"
    CUT = "cut"
    GONE = "gone"
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"


class Story(NamedTuple):
    """One request from its first attempt to its end, in seconds since the first attempt.

    `first_token_s` is that of the attempt that was answered; `reasons` are the refusals met on the way;
    `late_s` is how far behind its time this process sent it; `prompt_tokens` and `output_tokens` are what was wished.
    """

    ending: UserEnding
    attempts: int = 1
    refreshes: int = 0
    first_token_s: float | None = None
    total_s: float = 0.0
    reasons: tuple[str, ...] = ()
    late_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0


Encode = Callable[[int, Wish], bytes]
"""Number and wish in, request body out."""


class CrowdUser:
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
                return self._told(answer, asked_at)
            await asyncio.sleep(wait_s)

    def _comes_back_after(self, answer: AttemptAnswer, patience_left_s: float) -> float | None:
        if answer.status not in REFUSALS or answer.hung_up:
            return None
        self._reasons.append(answer.reason or str(answer.status))
        if not answer.retry or answer.hint_s is None or len(self._reasons) > self._manners.returns:
            return None
        return answer.hint_s if answer.hint_s < patience_left_s else None

    def _told(self, answer: AttemptAnswer, asked_at: float) -> Story:
        first = answer.first_token_at
        return Story(
            ending=ending_of(answer),
            attempts=self._attempts,
            refreshes=self._refreshes,
            first_token_s=None if first is None else first - asked_at,
            total_s=answer.ended_at - asked_at,
            reasons=tuple(self._reasons),
        )


def ending_of(answer: AttemptAnswer) -> UserEnding:
    """Name how a request ended, from its last answer."""
    if answer.whole:
        return UserEnding.WHOLE
    if answer.hung_up:
        return UserEnding.GONE
    if answer.status in REFUSALS:
        return UserEnding.REFUSED
    return UserEnding.FAILED if answer.first_token_at is None else UserEnding.CUT


async def open_loop(
    endpoint: Endpoint,
    wishes: Iterable[Wish],
    manners: UserManners,
    encode: Encode,
    *,
    on_story: Callable[[Story], None],
    grace_s: float,
    make_user: Callable[[Endpoint, UserManners], CrowdUser] = CrowdUser,
) -> list[Story]:
    """Send every wish at its own time, whatever became of those before; return one story for each.

    A user that has not ended `grace_s` after the last wish is cut off and told as unfinished.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    stories: list[Story] = []
    living: set[asyncio.Task[None]] = set()

    async def live(body: bytes, wish: Wish, late_s: float) -> None:
        story = await make_user(endpoint, manners).live(body)
        story = story._replace(
            late_s=late_s, prompt_tokens=wish.prompt_tokens, output_tokens=wish.output_tokens
        )
        stories.append(story)
        on_story(story)

    for number, wish in enumerate(wishes):
        await asyncio.sleep(max(0.0, start + wish.at_s - loop.time()))
        task = asyncio.create_task(
            live(encode(number, wish), wish, max(0.0, loop.time() - start - wish.at_s))
        )
        living.add(task)
        task.add_done_callback(living.discard)
    return stories + await _cut_off(living, grace_s)


async def _cut_off(living: set[asyncio.Task[None]], grace_s: float) -> list[Story]:
    if not living:
        return []
    done, pending = await asyncio.wait(set(living), timeout=grace_s)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()
    return [Story(UserEnding.UNFINISHED) for _ in pending]
