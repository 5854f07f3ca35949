"""What the gate believes that a real engine has cached, beside what the engine says that it found: conversations that evict each other."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import openai

from engines.conftest import Bench
from engines.findings import note
from engines.process import Engine
from engines.users import EXACTLY

REQUESTS, AT_ONCE = 200, 4
CONVERSATIONS, TURNS = 20, 12
"""At their ends they have some 15,000 tokens, half as much again as the engine keeps, and none has more than its context, 2,048."""
SYSTEM_TOKENS, SAID_TOKENS = 530, (10, 30)
"""More than the 512 from which prefixes are marked, and what is said in a turn."""
BLOCK_TOKENS = 32
WORDS = (
    "a gate holds what an engine cannot do now and tells each client when to come back so that "
    "every queue is seen to grow and no client waits for an answer which comes too late"
)


class Found(NamedTuple):
    """Of one answer: the tokens that the gate believed to be cached, those that the engine found, and those of the prompt."""

    predicted: int
    found: int
    prompt: int


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(WORDS.split(), k=words))


async def _words_per_token(client: openai.AsyncOpenAI, model: str) -> float:
    """Ask the engine how long its tokens are: one model's are bytes, another's are words."""
    dice, prompt_tokens = random.Random(0), []
    for words in (50, 150):
        message: Any = {"role": "user", "content": _text(dice, words)}
        answer = await client.chat.completions.create(model=model, messages=[message], max_tokens=1)
        assert answer.usage is not None
        prompt_tokens.append(answer.usage.prompt_tokens)
    return 100 / (prompt_tokens[1] - prompt_tokens[0])


class Conversation:
    """Messages of one user, who says more each time and repeats what was answered."""

    def __init__(self, dice: random.Random, words_per_token: float) -> None:
        self._dice, self._alone = dice, asyncio.Lock()
        self._words_per_token = words_per_token
        self._messages: list[Any] = [{"role": "system", "content": self._text(SYSTEM_TOKENS)}]

    def _text(self, tokens: int) -> str:
        return _text(self._dice, round(tokens * self._words_per_token))

    async def turn(self, client: openai.AsyncOpenAI, model: str) -> None:
        """Say something and hear the answer, once the turn before this one is over."""
        async with self._alone:
            self._messages.append({"role": "user", "content": self._text(self._dice.randint(*SAID_TOKENS))})
            answer = await client.chat.completions.create(
                model=model, messages=self._messages, max_tokens=2, extra_body=EXACTLY
            )
            self._messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def _in_turns(dice: random.Random, words_per_token: float) -> Iterator[Conversation]:
    """Yield conversations, a few of which go on at a time; each ends after some turns and another one begins."""
    open_now = [(Conversation(dice, words_per_token), TURNS) for _ in range(CONVERSATIONS)]
    for _ in range(REQUESTS):
        # The later ones more rarely: some come back while they are cached, some when they are not.
        place = min(dice.randrange(CONVERSATIONS), dice.randrange(CONVERSATIONS))
        conversation, left = open_now[place]
        open_now[place] = (
            (conversation, left - 1) if left > 1 else (Conversation(dice, words_per_token), TURNS)
        )
        yield conversation


async def _talk(port: int, engine: Engine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", timeout=300.0) as client:
        conversations = _in_turns(random.Random(1), await _words_per_token(client, engine.model))

    async def user(client: openai.AsyncOpenAI) -> None:
        for conversation in conversations:
            await conversation.turn(client, engine.model)

    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=300.0
    ) as client:
        await asyncio.gather(*[user(client) for _ in range(AT_ONCE)])


def _found(log: Path) -> list[Found]:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [
        Found(line.get("expected_cached_tokens", 0), line.get("cached_tokens", 0), line["prompt_tokens"])
        for line in lines
        if "prompt_tokens" in line
    ]


def test_what_is_believed_to_be_cached_is_found_within_a_block(caching_bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "attempts.jsonl"
    gate = caching_bench.gate(cap=AT_ONCE, records__log_attempts=str(log), lanes__interactive__ttft_slo="1h")

    asyncio.run(_talk(gate.port, caching_bench.engine))
    outcomes = gate.ended()

    found = _found(log)
    off = [abs(each.predicted - each.found) for each in found]
    evicted = sum(each.found < each.predicted - BLOCK_TOKENS for each in found)
    note(
        caching_bench.engine.kind.name,
        f"{len(found)} turns of conversations",
        version=caching_bench.engine.version,
        outcomes=outcomes,
        prompt_tokens=sum(each.prompt for each in found),
        found=sum(each.found for each in found),
        predicted=sum(each.predicted for each in found),
        off_median=median(off),
        off_p90=quantiles(off, n=10)[-1],
        believed_though_evicted=evicted,
    )
    assert outcomes == {"good": REQUESTS}
    assert sum(each.found for each in found) > 0
    assert median(off) <= BLOCK_TOKENS
