"""Every way in which a request over two engines can go wrong: what the client gets, and that nothing stays taken.

The rows are those of vLLM's NIXL connector: an engine that reads and is gone, one that answers and will not take what was handed over,
a lease that ends, a client that leaves. Scripts misbehave where an embedded engine would not.
"""

import asyncio
import json
from typing import Any

import pytest

from gateway.harness import DONE, Answer, Asked, FakeEngine, event, run, until
from gateway.test_two_engines import asking, prompt_read, reads, writes
from gateway.two_engines import (
    TwoEngines,
    ask,
    begins_and_dies,
    begins_and_goes_on,
    core,
    embedded,
    gating,
    scripted,
)
from millgate.core.words import Outcome
from millgate.servers.emulator import RunningEngine
from millgate.servers.emulator.handoffs import Handoff

STREAMS = pytest.mark.parametrize("stream", [False, True])
TOKENS = 8


def is_read_alone(asked: Asked) -> bool:
    return b"kv_transfer_params" not in asked.body


def is_good(found: Answer) -> bool:
    return found.status == 200 and found.whole and b"hel" in found.body


def outcomes(two: TwoEngines) -> dict[Outcome, int]:
    lane = two.gateway.driver.snapshot().lanes[0]
    return {outcome: count for outcome, count in lane.outcomes if count}


# ---- the engine that reads


@STREAMS
def test_p_dies_before_its_answer(stream: bool) -> None:
    async def dies(asked: Asked) -> None:
        asked.cut()

    async def story() -> None:
        async with scripted(dies, writes) as (two, first, second):
            assert is_good(await asking(two, ask(stream=stream)))
            assert len(second.asked) == 1
            assert second.asked[0].body == ask(stream=stream) or stream
            assert is_read_alone(second.asked[0])
            assert first.asked
            await two.idle()
            assert two.legs()[:4] == (1, 0, 1, 0)

    run(story())


@STREAMS
def test_p_is_not_there(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, second):
            await first.stop()
            assert is_good(await asking(two, ask(stream=stream)))
            assert is_read_alone(second.asked[0])
            await two.idle()

    run(story())


@STREAMS
@pytest.mark.parametrize("status", [429, 500, 503])
def test_p_is_overloaded_or_broken(status: int, stream: bool) -> None:
    async def refuses(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no"}}', status)

    async def story() -> None:
        async with scripted(refuses, writes) as (two, _first, second):
            assert is_good(await asking(two, ask(stream=stream)))
            assert is_read_alone(second.asked[0])
            await two.idle()

    run(story())


@STREAMS
@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_p_says_of_the_request_is_the_answer(status: int, stream: bool) -> None:
    async def declines(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"too long for this model"}}', status)

    async def story() -> None:
        async with scripted(declines, writes) as (two, _first, second):
            found = await asking(two, ask(stream=stream))
            assert (found.status, found.error["message"]) == (status, "too long for this model")
            assert not second.asked
            await two.idle()
            assert outcomes(two) == {Outcome.BAD_REQUEST: 1}

    run(story())


@pytest.mark.parametrize(
    "said",
    [
        prompt_read(params=None),
        prompt_read(params="none"),
        prompt_read(finish="abort"),
        b"{",
        b"[]",
        b'{"kv_transfer_params":{"a":1},"choices":[]}',
    ],
    ids=["no object", "no object but a word", "aborted", "no JSON", "no answer", "no choice"],
)
def test_p_answers_and_hands_nothing_over(said: bytes) -> None:
    async def says(asked: Asked) -> None:
        asked.reply(said)

    async def story() -> None:
        async with scripted(says, writes) as (two, _first, second):
            assert is_good(await asking(two, ask()))
            assert is_read_alone(second.asked[0])
            await two.idle()
            assert two.legs().lost == 1

    run(story())


@STREAMS
def test_p_dies_after_its_answer(stream: bool) -> None:
    async def story() -> None:
        async with embedded(lease_s=1.0) as (two, first, second):
            await settled_with(two, first, second, stream=stream)

    run(story())


async def settled_with(two: TwoEngines, first: RunningEngine, second: RunningEngine, *, stream: bool) -> None:
    """Let the first engine forget what it keeps between the legs: the answer comes all the same, read by the second."""
    handoffs = first.application._handoffs
    kept = handoffs.keep

    def forgets(handoff: Handoff, *given: Any) -> None:
        kept(handoff, *given)
        handoffs.read(json.dumps({"id": handoff.key}).encode())

    handoffs.keep = forgets  # type: ignore[assignment]
    found = await asking(two, ask(stream=stream))
    assert (found.status, found.whole, found.body.count(b" tok")) == (200, True, TOKENS)
    assert second.application.meters.kv_failed == 1
    assert two.legs().lost == 1
    await two.idle()


@STREAMS
def test_p_restarts_and_knows_nothing_of_what_it_kept(stream: bool) -> None:
    async def story() -> None:
        async with embedded() as (_two, restarted, second):
            params = {
                "do_remote_prefill": True,
                "remote_request_id": "prefill-00000001",
                "remote_host": restarted.host,
                "remote_port": restarted.port,
            }

            async def said_before(asked: Asked) -> None:
                asked.reply(prompt_read(params=params))

            engine = FakeEngine(said_before)
            await engine.start()
            ports = (("reads", engine.port), ("writes", second.port))
            async with gating(ports, core(lease_s=1.0), lease_s=1.0) as two:
                found = await asking(two, ask(stream=stream))
                assert (found.status, found.whole, found.body.count(b" tok")) == (200, True, TOKENS)
                assert second.application.meters.kv_failed == 1
                await two.idle()
            await engine.stop()

    run(story())


# ---- the engine that answers


@STREAMS
@pytest.mark.parametrize("status", [400, 500, 503])
def test_d_refuses_the_handoff(status: int, stream: bool) -> None:
    async def refuses(asked: Asked) -> None:
        if is_read_alone(asked):
            await writes(asked)
        else:
            asked.reply(b'{"error":{"message":"the KV cannot be loaded"}}', status)

    async def story() -> None:
        async with scripted(reads, refuses, lease_s=1.0) as (two, first, second):
            assert is_good(await asking(two, ask(stream=stream)))
            assert (len(first.asked), len(second.asked)) == (1, 2)
            assert two.legs().lost == 1
            await two.idle()
            assert two.legs().expired == 1

    run(story())


@pytest.mark.parametrize(
    "said",
    [
        b'data: {"error":{"message":"the KV cannot be loaded","code":500}}\n\n',
        event("", finish="error"),
    ],
    ids=["an error event", "a finish reason"],
)
def test_d_begins_its_stream_with_the_news_that_the_handoff_failed(said: bytes) -> None:
    async def fails(asked: Asked) -> None:
        if is_read_alone(asked):
            await writes(asked)
            return
        asked.open_stream()
        asked.send(said, DONE)
        asked.end_stream()

    async def story() -> None:
        async with scripted(reads, fails, lease_s=1.0) as (two, _first, _second):
            found = await asking(two, ask(stream=True))
            assert is_good(found)
            assert b"error" not in found.body
            await two.idle()

    run(story())


@STREAMS
def test_d_refuses_everything(stream: bool) -> None:
    async def refuses(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no"}}', 500)

    async def story() -> None:
        async with scripted(reads, refuses, lease_s=1.0) as (two, _first, second):
            assert (await asking(two, ask(stream=stream))).status == 500
            assert len(second.asked) == 2, "it is not read a third time"
            await two.idle()
            assert outcomes(two) == {Outcome.ENGINE_FAILED: 1}

    run(story())


@STREAMS
def test_d_is_not_there_and_another_is(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads, writes, lease_s=1.0, also_writes=writes) as (two, _first, second):
            await second.stop()
            assert is_good(await asking(two, ask(stream=stream)))
            await two.idle()
            assert sum(outcomes(two).values()) == 1

    run(story())


def test_d_is_slow_past_the_lease() -> None:
    async def sleeps(asked: Asked) -> None:
        if is_read_alone(asked):
            await writes(asked)
        else:
            asked.open_stream()
            await asked.hung_up()

    async def story() -> None:
        async with scripted(reads, sleeps, lease_s=1.0) as (two, _first, second):
            assert is_good(await asking(two, ask(stream=True)))
            await second.asked[0].hung_up()
            assert two.legs().lost == 1
            await two.idle()
            assert two.legs().expired == 1

    run(story())


@STREAMS
def test_d_dies_within_its_answer(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads, begins_and_dies, lease_s=1.0) as (two, _first, _second):
            found = await asking(two, ask(stream=stream))
            assert not found.whole or found.status == 502 or b'"error"' in found.body
            assert b"[DONE]" not in found.body
            await two.idle()
            assert outcomes(two) == {Outcome.ENGINE_FAILED: 1}

    run(story())


# ---- the client


@STREAMS
def test_a_client_leaves_while_its_prompt_is_read(stream: bool) -> None:
    async def sleeps(asked: Asked) -> None:
        await asked.hung_up()

    async def story() -> None:
        async with scripted(sleeps, writes) as (two, first, second):
            client = await two.client()
            client.ask(ask(stream=stream))
            asked = await first.next()
            client.leave()
            await asked.hung_up()
            await two.idle()
            assert not second.asked
            assert outcomes(two) == {Outcome.CLIENT_GONE: 1}

    run(story())


@STREAMS
def test_a_client_leaves_before_its_answer_begins(stream: bool) -> None:
    async def sleeps(asked: Asked) -> None:
        await asked.hung_up()

    async def story() -> None:
        async with scripted(reads, sleeps, lease_s=1.0) as (two, _first, second):
            client = await two.client()
            client.ask(ask(stream=stream))
            asked = await second.next()
            client.leave()
            await asked.hung_up()
            await until(lambda: two.seen("writes").running == 0)
            assert two.seen("reads").kv_tokens > 0, "what is kept is taken until the lease ends"
            await two.idle()
            assert two.legs().expired == 1

    run(story())


def test_a_client_leaves_within_its_answer() -> None:
    async def story() -> None:
        async with scripted(reads, begins_and_goes_on) as (two, _first, second):
            client = await two.client()
            client.ask(ask(stream=True))
            await client.head()
            await client.chunk()
            client.leave()
            await (await second.next()).hung_up()
            await two.idle()
            assert two.legs()[:4] == (1, 1, 0, 0)

    run(story())


def test_a_client_leaves_an_embedded_engine_which_aborts() -> None:
    async def story() -> None:
        async with embedded(reads={"time_scale": 0.1}) as (two, first, _second):
            client = await two.client()
            client.ask(ask("word " * 4000))
            await until(lambda: two.seen("reads").running == 1)
            await asyncio.sleep(0.05)
            client.leave()
            await until(lambda: first.application.meters.client_gone == 1)
            await two.idle()
            assert two.legs().fetched == 0

    run(story())
