"""Users whose program is an SDK: what each of them wants, how often it tries, and how it went. Everything is real time.

A try has a time-out for its first token. Hints are obeyed to the letter, and where there is none it backs off. The
numbers are those of openai 3.52 and anthropic 2.11 as read and measured: 0.5 s doubling up to 8 s, each cut by
up to a quarter at random. A hint of up to two minutes is taken as it is. `x-should-retry: false` ends it. Which
answers are tried again is the same there: 408, 409, 429 and everything from 500 on, a time-out, no answer at all.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from millgate.client.answers import REFUSALS
from millgate.demos.connection import AttemptAnswer, Endpoint

FIRST_BACKOFF_S, LONGEST_BACKOFF_S, BACKOFF_JITTER = 0.5, 8.0, 0.25
LONGEST_HINT_S = 120.0
TRIED_AGAIN = frozenset({0, 408, 409, 429})


class Wish(NamedTuple):
    """One request of the load: when it comes after the start, and its true sizes in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


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
Live = Callable[[bytes], Awaitable[Story]]
"""Pursues the request with this body to its end, as its user, and tells its story."""


class SdkUser:
    """One request's user: `tries` at most, each with the whole patience.

    Times are real seconds; back-off is engine seconds, `time_scale` of them in a real one.
    """

    def __init__(
        self, endpoint: Endpoint, patience_s: float, tries: int, *, dice: random.Random, time_scale: float
    ) -> None:
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._tries = tries
        self._dice = dice
        self._time_scale = time_scale
        self._attempts = self._hangups = 0
        self._reasons: list[str] = []

    async def live(self, body: bytes) -> Story:
        """Pursue one request to its end and tell its story."""
        asked_at = asyncio.get_running_loop().time()
        while True:
            self._attempts += 1
            answer = await self._endpoint.ask(body, self._patience_s)
            wait_s = self._tries_again_after(answer)
            if wait_s is None:
                return told(answer, asked_at, self._attempts, self._hangups, self._reasons)
            await asyncio.sleep(wait_s)

    def _tries_again_after(self, answer: AttemptAnswer) -> float | None:
        if answer.hung_up:
            self._hangups += 1
        elif answer.status in TRIED_AGAIN or answer.status >= 500:
            self._reasons.append(answer.reason or str(answer.status))
        else:
            return None
        if self._attempts >= self._tries or not answer.retry:
            return None
        if answer.hint_s is not None and answer.hint_s <= LONGEST_HINT_S:
            return answer.hint_s
        return self._backoff_s() / self._time_scale

    def _backoff_s(self) -> float:
        doubled_s = FIRST_BACKOFF_S * 2.0 ** (self._attempts - 1)
        return min(doubled_s, LONGEST_BACKOFF_S) * (1.0 - BACKOFF_JITTER * self._dice.random())


def told(
    answer: AttemptAnswer, asked_at: float, attempts: int, refreshes: int, reasons: Iterable[str]
) -> Story:
    """Return the story of a request that was first asked then and ended with this answer."""
    first = answer.first_token_at
    return Story(
        ending=ending_of(answer),
        attempts=attempts,
        refreshes=refreshes,
        first_token_s=None if first is None else first - asked_at,
        total_s=answer.ended_at - asked_at,
        reasons=tuple(reasons),
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
    wishes: Iterable[Wish], encode: Encode, live: Live, *, on_story: Callable[[Story], None], grace_s: float
) -> list[Story]:
    """Send every wish at its own time, whatever became of those before; return one story for each.

    A user that has not ended `grace_s` after the last wish is cut off and told as unfinished.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    stories: list[Story] = []
    living: set[asyncio.Task[None]] = set()

    async def follow(body: bytes, wish: Wish, late_s: float) -> None:
        story = (await live(body))._replace(
            late_s=late_s, prompt_tokens=wish.prompt_tokens, output_tokens=wish.output_tokens
        )
        stories.append(story)
        on_story(story)

    for number, wish in enumerate(wishes):
        await asyncio.sleep(max(0.0, start + wish.at_s - loop.time()))
        late_s = max(0.0, loop.time() - start - wish.at_s)
        task = asyncio.create_task(follow(encode(number, wish), wish, late_s))
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
