"""Clients that leave: whatever they were waiting for ends at once, at the gate and at the engine (INV-4)."""

import asyncio

import pytest

from gateway.harness import ROLE, Asked, chat, event, run, standing, until
from millgate.core.decisions import Decision, Ended
from millgate.core.events import Event
from millgate.core.words import Outcome, Stage


async def wait_for_ever(asked: Asked) -> None:
    await asked.hung_up(60)


async def head_only(asked: Asked) -> None:
    asked.open_stream()
    await asked.hung_up(60)


async def talk_for_ever(asked: Asked) -> None:
    asked.open_stream()
    asked.send(ROLE)
    while True:
        asked.send(event("x"))
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_is_aborted_at_the_engine(stream: bool) -> None:
    async def body() -> None:
        async with standing(wait_for_ever) as stand:
            client = await stand.client()
            client.ask(chat(stream=stream))
            asked = await stand.engine.next()
            client.leave()
            await asked.hung_up()
            await stand.settle()
            assert stand.outcomes() == {"client_gone": 1}
            assert dict(stand.lane.gone)[Stage.PREFILL] == 1

    run(body())


def test_a_client_that_leaves_between_the_engines_head_and_the_first_token_is_aborted() -> None:
    async def body() -> None:
        async with standing(head_only) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            asked = await stand.engine.next()
            await asyncio.sleep(0.02)
            client.leave()
            await asked.hung_up()
            await stand.settle()
            assert dict(stand.lane.gone)[Stage.PREFILL] == 1

    run(body())


def test_what_was_written_for_a_client_that_left_at_once_is_counted_as_wasted() -> None:
    """How far streams have come is reported once a second; most that are left are left sooner."""

    async def writes_five(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, *[event("x")] * 5)
        await asked.hung_up(60)

    async def body() -> None:
        async with standing(writes_five) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            read = b""
            while read.count(b"data: ") < 6:
                read += await client.chunk()
            client.leave()
            await (await stand.engine.next()).hung_up()
            await stand.settle()
            assert stand.outcomes() == {"client_gone": 1}
            assert stand.gateway.driver.snapshot().wasted_output_tokens == 5

    run(body())


def test_an_answer_that_its_user_stops_is_written_down_with_the_prompt_that_the_engine_has_counted() -> None:
    """What a stopped answer had cost was an estimate, while the provider had told it in the first event."""
    begun = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":'
        b'{"input_tokens":5,"cache_read_input_tokens":70,"output_tokens":1}}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}\n\n'
    )

    async def begins(asked: Asked) -> None:
        asked.open_stream()
        asked.send(begun)
        await asked.hung_up(60)

    async def body() -> None:
        async with standing(begins) as stand:
            ends: list[Ended] = []

            class Watching:
                def on_step(self, _happened: Event, decisions: tuple[Decision, ...], _now: float) -> None:
                    ends.extend(each for each in decisions if isinstance(each, Ended))

            stand.gateway.driver.observers.append(Watching())
            client = await stand.client()
            client.ask(chat(stream=True), b"/v1/messages")
            await client.head()
            await client.chunk()
            client.leave()
            await stand.settle()
            (end,) = ends
            assert (end.outcome, end.prompt_tokens, end.cached_tokens) == (Outcome.CLIENT_GONE, 75, 70)

    run(body())


def test_a_client_that_leaves_in_mid_stream_is_aborted() -> None:
    async def body() -> None:
        async with standing(talk_for_ever) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            for _ in range(3):
                await client.chunk()
            client.leave()
            await (await stand.engine.next()).hung_up()
            await stand.settle()
            assert dict(stand.lane.gone)[Stage.DECODE] == 1

    run(body())


def test_a_client_that_leaves_while_queued_never_reaches_the_engine() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1) as stand:
            running, waiting = await stand.client(), await stand.client()
            running.ask(chat("first"))
            await stand.engine.next()
            waiting.ask(chat("second"))
            await until(lambda: stand.lane.queued == 1)
            waiting.leave()
            await until(lambda: stand.lane.queued == 0)
            running.leave()
            await stand.settle()
            assert len(stand.engine.asked) == 1
            assert dict(stand.lane.gone) | {Stage.QUEUED: 1} == dict(stand.lane.gone)

    run(body())


def test_a_half_closed_client_counts_as_gone() -> None:
    async def body() -> None:
        async with standing(wait_for_ever) as stand:
            client = await stand.client()
            client.ask(chat())
            asked = await stand.engine.next()
            client.writer.write_eof()
            await asked.hung_up()
            await stand.settle()
            assert stand.outcomes() == {"client_gone": 1}

    run(body())


def test_a_queued_client_is_served_when_the_one_before_it_leaves() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1) as stand:
            first, second = await stand.client(), await stand.client()
            first.ask(chat("first"))
            await stand.engine.next()
            second.ask(chat("second"))
            await until(lambda: stand.lane.queued == 1)
            first.leave()
            asked = await stand.engine.next(2)
            assert b"second" in asked.body

    run(body())


def test_an_engine_is_read_no_faster_than_its_client_reads() -> None:
    sent = 0

    async def flood(asked: Asked) -> None:
        nonlocal sent
        asked.open_stream()
        while True:
            asked.send(event("x" * 10_000))
            sent += 10_000
            await asked.writer.drain()

    async def body() -> None:
        async with standing(flood) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            last = -1
            while sent != last:  # ends when nothing moves any more: the engine has been held back
                last = sent
                await asyncio.sleep(0.2)
            assert sent < 20_000_000
            for _ in range(20):
                await client.chunk()
            client.leave()
            await (await stand.engine.next()).hung_up()

    run(body())
