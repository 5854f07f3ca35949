"""Users whose program is an SDK: what each of them wants, how often it tries, and how it went; Poisson arrivals of them from one seed.

Everything is real time. A try has a time-out for its first token. Hints are obeyed to the letter, and where there is
none it backs off. The numbers are those of openai 3.52 and anthropic 2.11 as read and measured: 0.5 s doubling up to 8
s, each cut by up to a quarter at random. A hint of up to two minutes is taken as it is. `x-should-retry: false` ends
it. Which answers are tried again is the same there: 408, 409, 429 and everything from 500 on, a time-out, no answer at
all.
"""

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from millgate.client.answers import REFUSALS
from millgate.demos.connection import AttemptAnswer, Endpoint

BYTES_PER_TOKEN = 4
"""How the embedded engine counts the tokens of a text."""
WORD = "word"
"""Exactly one token of that count."""
NUMBER_TOKENS = 3
"""Every prompt begins with its own twelve-digit number: equal prompts would be each other's retries to a gate."""
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


class Mix(NamedTuple):
    """A mix of sizes: log-normal around these means, in tokens, within these bounds."""

    mean_prompt_tokens: float = 600.0
    mean_output_tokens: float = 150.0
    spread: float = 0.6
    most_prompt_tokens: int = 4000
    most_output_tokens: int = 1000


def sizes(mix: Mix, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Draw prompt and output tokens for ever. `spread` is sigma: 0.6 is a coefficient of variation of 0.66."""
    shift = mix.spread**2 / 2
    while True:
        prompt = dice.lognormvariate(math.log(mix.mean_prompt_tokens) - shift, mix.spread)
        output = dice.lognormvariate(math.log(mix.mean_output_tokens) - shift, mix.spread)
        yield (
            min(mix.most_prompt_tokens, max(NUMBER_TOKENS + 1, round(prompt))),
            min(mix.most_output_tokens, max(1, round(output))),
        )


def poisson_wishes(mix: Mix, *, rate_per_s: float, duration_s: float, seed: int) -> Iterator[Wish]:
    """Draw the arrivals of `duration_s` at this mean rate; the same seed gives the same wishes."""
    clock, at_s = random.Random(seed), 0.0
    for prompt_tokens, output_tokens in sizes(mix, random.Random(seed + 1)):
        at_s += clock.expovariate(rate_per_s)
        if at_s >= duration_s:
            return
        yield Wish(at_s, prompt_tokens, output_tokens)


class Encoder:
    """Writes request bodies that the embedded engine reads as so many tokens; the gate sees only their bytes.

    The true length of the answer rides in a field of its own, which no gate reads.
    """

    def __init__(self, *, tokens_per_event: int, max_tokens: int | None) -> None:
        fields: dict[str, Any] = {
            "model": "demo",
            "stream": True,
            "millgate_tokens_per_event": tokens_per_event,
        }
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        self._tail = json.dumps(fields, separators=(",", ":"))[1:]

    def __call__(self, number: int, wish: Wish) -> bytes:
        """Write the body of one request."""
        text = f"{number:0{NUMBER_TOKENS * BYTES_PER_TOKEN}d}" + WORD * (wish.prompt_tokens - NUMBER_TOKENS)
        return (
            f'{{"messages":[{{"role":"user","content":"{text}"}}],'
            f'"millgate_output_tokens":{wish.output_tokens},{self._tail}'
        ).encode("ascii")
