"""Two real engines, one of which reads prompts for the other: answers are those of one engine, and nothing stays behind."""

import asyncio
import random
from pathlib import Path
from typing import Any

import openai
import pytest

from engines.conftest import Pair
from engines.findings import note
from engines.process import seconds_until
from engines.users import EXACTLY, LONG
from faults.process import GateProcess, until
from faults.talk import Talk, chat

USERS = 8
TOKENS = 16
WORDS = Path(__file__).read_text(encoding="utf-8").split()
PHASE_WITHIN_S = 60.0
"""On a slow machine a fresh engine takes tens of seconds for its first step."""
LEASE_S = 30.0
"""vLLM's own, and the gate's default."""


def prompt(number: int) -> str:
    """Return some hundred tokens that no other number has."""
    return " ".join(random.Random(number).choices(WORDS, k=250))


async def answer(client: openai.AsyncOpenAI, model: str, number: int) -> str:
    """Ask for the most probable tokens, as a stream or not by turns, and return the text."""
    wanted: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt(number)}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "extra_body": EXACTLY,
    }
    if number % 2:
        return str((await client.chat.completions.create(**wanted)).choices[0].message.content)
    chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **wanted)]
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "length"
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


async def answers(base_url: str, model: str, *, at_once: int) -> list[str]:
    """Return what all users are answered, so many at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        async with places:
            return await answer(client, model, number)

    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="sk-test", timeout=600.0) as client:
        return await asyncio.gather(*[one(client, number) for number in range(USERS)])


def asking(gate: GateProcess, model: str, number: int, *, stream: bool) -> Talk:
    """Ask for a long answer on a plain socket."""
    line = gate.connect()
    line.ask(chat(prompt(number), model=model, stream=stream, max_tokens=LONG, ignore_eos=True))
    return line


def kept(gate: GateProcess) -> int:
    """Return the tokens that count as held on either engine."""
    return sum(int(engine["kv_tokens"]) for engine in gate.state()["engines"])


def legs(gate: GateProcess) -> dict[str, Any]:
    """Return the counts of requests of two legs."""
    found: dict[str, Any] = gate.state()["legs"]
    return found


def test_answers_are_the_same_as_of_one_engine_and_prompts_are_fetched(pair: Pair) -> None:
    model = pair.reads.model
    gate = pair.gate()
    through = asyncio.run(answers(f"http://127.0.0.1:{gate.port}", model, at_once=USERS))
    # The other engine has read none of these prompts yet that it was handed.
    fetched = pair.writes.count("vllm:external_prefix_cache_hits_total")
    counted = legs(gate)
    alone = asyncio.run(answers(pair.reads.url, model, at_once=USERS))
    note(
        pair.reads.kind.name,
        f"{USERS} prompts",
        version=pair.reads.version,
        two_legs=counted["begun"],
        fetched=counted["fetched"],
        lost=counted["lost"],
        tokens_by_gate=counted["tokens"],
        tokens_by_engine=fetched,
        seconds=round(counted["transfer_s"], 3),
        same=sum(one == other for one, other in zip(through, alone, strict=True)),
    )

    assert gate.ended() == {"good": USERS}
    assert counted["begun"] == counted["fetched"] > 0
    assert counted["lost"] == 0
    assert 0 < fetched <= counted["tokens"]
    assert through == alone


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole-answers"])
def test_users_who_leave_while_prompts_are_read_and_later_leave_nothing_behind(
    pair: Pair, stream: bool
) -> None:
    gate = pair.gate()
    lines = [asking(gate, pair.reads.model, number, stream=stream) for number in range(USERS)]
    until(lambda: pair.reads.load().running, PHASE_WITHIN_S, "no prompt is read by the engine for that")
    for line in lines[: USERS // 2]:
        line.close()
    until(lambda: pair.writes.load().running, PHASE_WITHIN_S, "no answer is written")
    for line in lines[USERS // 2 :]:
        line.close()
    idle_s = seconds_until(lambda: pair.reads.load().total + pair.writes.load().total == 0, PHASE_WITHIN_S)
    # What the first engine keeps of a prompt that is not fetched counts to the end of its lease.
    kept_s = seconds_until(lambda: not kept(gate), LEASE_S + PHASE_WITHIN_S)
    outcomes = gate.ended()
    note(
        pair.reads.kind.name,
        f"{USERS} leave in two phases",
        streams=stream,
        idle_after=f"{idle_s:.2f} s",
        nothing_kept_after=f"{kept_s:.2f} s",
        attempts=outcomes,
    )

    assert sum(outcomes.values()) == USERS
    assert {each.partition("/")[0] for each in outcomes} == {"client_gone"}


def test_prompts_that_a_killed_engine_was_reading_are_read_where_they_are_answered(pair: Pair) -> None:
    gate = pair.gate()

    async def killed_meanwhile() -> list[str]:
        users = asyncio.ensure_future(answers(f"http://127.0.0.1:{gate.port}", model, at_once=USERS))
        await asyncio.to_thread(until, lambda: pair.reads.load().running, PHASE_WITHIN_S)
        pair.reads.kill()
        return await users

    model = pair.reads.model
    through = asyncio.run(killed_meanwhile())
    pair.reads.wait()
    counted = legs(gate)
    alone = asyncio.run(answers(pair.writes.url, model, at_once=USERS))
    note(pair.reads.kind.name, "the engine that reads is killed", two_legs=counted, attempts=gate.ended())

    assert gate.ended() == {"good": USERS}
    assert counted["lost"] > 0
    assert through == alone
