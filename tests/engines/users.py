"""Users of a real engine: unmodified SDKs and plain sockets, all asking for answers of a known length."""

import asyncio
from collections import Counter
from typing import Any

import openai

from engines.process import Engine
from engines.watch import Watch
from faults.process import GateProcess
from faults.talk import Talk, chat

LONG = 1500
"""More tokens than any test waits for; the model's context must hold them."""

EXACTLY: dict[str, Any] = {"ignore_eos": True}
"""Random weights end at random: both engines then write all of `max_tokens`."""


def asked(number: int) -> Any:
    """Return messages that no other user sends: no prefix is shared, no answer repeated."""
    return [{"role": "user", "content": f"{number}: tell me of the mill and the river"}]


def talk(gate: GateProcess, engine: Engine, *, stream: bool, max_tokens: int = LONG) -> Talk:
    """Ask through the gate on a plain socket."""
    line = gate.connect()
    line.ask(
        chat(
            "tell me of the river", model=engine.model, stream=stream, max_tokens=max_tokens, ignore_eos=True
        )
    )
    return line


def begun(gate: GateProcess, engine: Engine) -> Talk:
    """Ask for a long stream and return when its first token is there."""
    line = talk(gate, engine, stream=True)
    assert line.head().status == 200
    while b'"content":"' not in line.chunk():
        pass
    return line


async def one_user(client: openai.AsyncOpenAI, engine: Engine, number: int, max_tokens: int) -> str:
    """Ask once, as a stream or not by turns, and return the finish reason or the gate's reason for its last refusal."""
    wanted: dict[str, Any] = {
        "model": engine.model,
        "messages": asked(number),
        "max_tokens": max_tokens,
        "extra_body": EXACTLY,
    }
    try:
        if number % 2:
            whole = await client.chat.completions.create(**wanted)
            finish = whole.choices[0].finish_reason
        else:
            finish = None
            async for chunk in await client.chat.completions.create(stream=True, **wanted):
                finish = next((choice.finish_reason for choice in chunk.choices), None) or finish
    except openai.APIStatusError as refusal:
        return f"refused {refusal.response.headers.get('x-millgate-reason')}"
    return str(finish)


async def leaving_user(client: openai.AsyncOpenAI, engine: Engine, watch: Watch, number: int) -> str:
    """Ask for a long stream and leave after its third event."""
    stream = await client.chat.completions.create(
        model=engine.model, messages=asked(number), max_tokens=LONG, stream=True, extra_body=EXACTLY
    )
    events = aiter(stream)
    for _ in range(3):
        await anext(events)
    watch.hung_up()
    await stream.close()
    return "left"


async def askers_of_several(gate: GateProcess, engine: Engine) -> Counter[str]:
    """Ask at once for several answers and of several prompts, twice for more than any cap; return what was answered whole."""
    base_url = f"http://127.0.0.1:{gate.port}/v1"
    wanted: dict[str, Any] = {"model": engine.model, "max_tokens": 24, "extra_body": EXACTLY}

    async def answers(word: str, count: int, asking: Any) -> str:
        try:
            choices = (await asking).choices
        except openai.APIStatusError as refusal:
            return str(refusal.status_code)
        return word if len(choices) == count else f"{len(choices)} answers"

    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-test", timeout=600.0) as client:
        chats, texts = client.chat.completions, client.completions
        prompts = [each["content"] for number in range(6) for each in asked(number)]
        asking = [
            answers("n=2", 2, chats.create(messages=asked(number), n=2, **wanted)) for number in range(6)
        ]
        asking += [answers("n=4", 4, chats.create(messages=asked(10), n=4, **wanted)) for _ in range(3)]
        asking += [answers("3 prompts", 3, texts.create(prompt=prompts[:3], **wanted)) for _ in range(3)]
        asking += [
            answers("2 prompts, n=2", 4, texts.create(prompt=prompts[:2], n=2, **wanted)) for _ in range(3)
        ]
        asking.append(answers("n=5", 5, chats.create(messages=asked(11), n=5, **wanted)))
        asking.append(answers("6 prompts", 6, texts.create(prompt=prompts, **wanted)))
        return Counter(await asyncio.gather(*asking))


async def crowd(
    gate: GateProcess, engine: Engine, watch: Watch, *, users: int, leaving: int = 0, max_tokens: int = 32
) -> Counter[str]:
    """Let all of them ask at once and return how it went for them, by word."""
    base_url = f"http://127.0.0.1:{gate.port}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-test", timeout=600.0) as client:
        staying = [one_user(client, engine, number, max_tokens) for number in range(users - leaving)]
        going = [leaving_user(client, engine, watch, users + number) for number in range(leaving)]
        return Counter(await asyncio.gather(*going, *staying))
