"""Users of a real engine: they come at random, stream an answer, try again when told to, and leave when nothing comes.

The arrivals are an open loop: who is slow to be served does not slow the others down. Every random number comes from one seed, so two
addresses asked with the same seed are asked the same.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import httpx

from millgate.client.answers import read_hint_s

_MOST_PROMPT_TOKENS, _MOST_OUTPUT_TOKENS = 2_000, 400
_LETTERS, _OWN_LETTERS = "abcdefgh", 12
_SDK_TRIES = 3
"""The OpenAI and Anthropic SDKs try twice again by default."""
_SDK_WAIT_S = 8.0
"""What they wait at most where no answer names a time."""


class Asked(NamedTuple):
    """One request: seconds from the start, and its lengths in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Heard(NamedTuple):
    """What became of it; times in seconds from the start, None for what never came."""

    asked: Asked
    tries: int
    status: int | None
    first_s: float | None
    last_s: float | None
    prompt_tokens: int
    output_tokens: int
    left: bool

    @property
    def answered(self) -> bool:
        """Whether the answer came to its end."""
        return self.last_s is not None

    @property
    def ttft_s(self) -> float:
        """From the first try to the first token; answered ones only."""
        assert self.first_s is not None
        return self.first_s - self.asked.at_s

    @property
    def tpot_s(self) -> float:
        """Between two tokens on average; answered ones only."""
        assert self.first_s is not None
        assert self.last_s is not None
        return (self.last_s - self.first_s) / max(1, self.output_tokens - 1)


def arrivals(seed: int, per_s: float, seconds: float) -> list[Asked]:
    """Return Poisson arrivals with lognormal lengths: prompts with a median of 300 tokens, answers of 100."""
    dice, found, at_s = random.Random(seed), [], 0.0
    while (at_s := at_s + dice.expovariate(per_s)) < seconds:
        prompt = min(_MOST_PROMPT_TOKENS, max(16, round(300 * dice.lognormvariate(0.0, 0.8))))
        output = min(_MOST_OUTPUT_TOKENS, max(4, round(100 * dice.lognormvariate(0.0, 0.7))))
        found.append(Asked(at_s, prompt, output))
    return found


class Crowd:
    """Asks one address for streams with `more` in the body; `patience_s` is how long a user waits for a first token, over all tries.

    No two prompts begin alike, nor do those of crowds of different numbers: an engine finds none of them in its prefix cache.
    """

    def __init__(self, url: str, more: dict[str, Any], patience_s: float, number: int = 0) -> None:
        self._url, self._more, self._patience_s = f"{url.rstrip('/')}/v1/chat/completions", more, patience_s
        self._number, self._users = number, count()

    async def come(self, asked: Sequence[Asked]) -> list[Heard]:
        """Return when the last of them has been served or has left."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
            start_s = asyncio.get_running_loop().time()
            return list(await asyncio.gather(*(self._one(client, start_s, each) for each in asked)))

    async def _one(self, client: httpx.AsyncClient, start_s: float, asked: Asked) -> Heard:
        user = _User(asked, start_s, f"{self._number} {next(self._users)}")
        await asyncio.sleep(max(0.0, asked.at_s - user.now_s()))
        try:
            async with asyncio.timeout_at(start_s + asked.at_s + self._patience_s) as patience:
                for number in range(1, _SDK_TRIES + 1):
                    user.tries = number
                    wait_s = await self._try(client, user, patience)
                    if wait_s is None or number == _SDK_TRIES:
                        break
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            user.left = True
        return user.heard()

    async def _try(self, client: httpx.AsyncClient, user: "_User", patience: asyncio.Timeout) -> float | None:
        """Return how long to wait before the next try; None where there is none, as after a stream that breaks."""
        user.status = None
        try:
            async with client.stream(
                "POST", self._url, json=_body(user.asked, user.name) | self._more
            ) as answer:
                user.status = answer.status_code
                if answer.status_code != httpx.codes.OK:
                    return _told_s(answer.headers, user.tries)
                async for event in _events(answer):
                    user.hear(event, patience)
        except httpx.HTTPError:
            return None if user.status is not None else _backed_off_s(user.tries)
        return None


class _User:
    """One user while he waits."""

    def __init__(self, asked: Asked, start_s: float, name: str) -> None:
        self.asked, self.name, self._start_s = asked, name, start_s
        self.tries, self.left = 0, False
        self.status: int | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._pieces = 0
        self._tokens: tuple[int, int] | None = None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._start_s

    def hear(self, event: dict[str, Any], patience: asyncio.Timeout) -> None:
        """Take one event of the stream; who has a first token stays to the end."""
        for choice in event.get("choices") or ():
            if choice.get("delta", {}).get("content"):
                self._first_s = self._first_s or self.now_s()
                self._pieces += 1
                patience.reschedule(None)
            if choice.get("finish_reason") in {"stop", "length"}:
                self._last_s = self.now_s()
                self._first_s = self._first_s or self._last_s
        if usage := event.get("usage"):
            self._tokens = (usage["prompt_tokens"], usage["completion_tokens"])

    def heard(self) -> Heard:
        """Return what became of it; of an engine that tells no counts each piece of the answer is a token."""
        tokens = self._tokens or (self.asked.prompt_tokens, self._pieces)
        return Heard(self.asked, self.tries, self.status, self._first_s, self._last_s, *tokens, self.left)


def _body(asked: Asked, name: str) -> dict[str, Any]:
    """A byte of the text is a token where the tokenizer has no merges (tests/engines/tiny_model.py); only its beginning is the user's own."""
    own, common = random.Random(name), random.Random(hash(asked))
    text = own.choices(_LETTERS, k=_OWN_LETTERS) + common.choices(_LETTERS, k=asked.prompt_tokens)
    messages = [{"role": "user", "content": "".join(text[: asked.prompt_tokens])}]
    return {"messages": messages, "max_tokens": asked.output_tokens, "stream": True}


def _told_s(headers: httpx.Headers, tries: int) -> float | None:
    if headers.get("x-should-retry") == "false":
        return None
    hint_s = read_hint_s(headers)
    return _backed_off_s(tries) if hint_s is None else hint_s


def _backed_off_s(tries: int) -> float:
    return min(_SDK_WAIT_S, 0.5 * 2.0 ** (tries - 1))


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
