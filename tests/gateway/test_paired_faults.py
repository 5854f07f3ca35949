"""Every way in which a request on two of SGLang's engines can go wrong: what the client gets, that the other engine is left at once, and
that nothing stays taken.

The rows: an engine that reads and dies before, while and after its prompt goes over, or waits past its bootstrap timeout; one that
answers and refuses or dies; a client that leaves in each phase. Neither engine is ever asked alone.
"""

import asyncio
import json
from collections.abc import Mapping

import pytest

from gateway.harness import DONE, ROLE, Asked, FakeEngine, Script, event, run, until
from gateway.paired_engines import embedded, scripted, waits
from gateway.test_handoff_faults import is_good, outcomes
from gateway.test_paired_engines import STREAMS, met_in, reads
from gateway.test_two_engines import asking, writes
from gateway.two_engines import TwoEngines, ask, begins_and_dies, begins_and_goes_on
from millgate.core.words import Outcome

SOON_S = 2.0
"""An engine that is left alone is left within this, long before any timeout."""


async def opens_and_waits(asked: Asked) -> None:
    if json.loads(asked.body).get("stream"):
        asked.open_stream()
    await asked.hung_up()


def once_met(other: FakeEngine, then: Script) -> Script:
    """Return a script that waits for the other engine to come to the room and then does this."""

    async def script(asked: Asked) -> None:
        await until(lambda: met_in(asked) in [met_in(each) for each in other.asked])
        await then(asked)

    return script


async def met_last(engine: FakeEngine, other: FakeEngine) -> None:
    """The two have met in a room; where this one had been asked before, that was another room, which it was told to leave."""
    *before, last = engine.asked
    assert met_in(last) == met_in(other.asked[0])
    for asked in before:
        assert met_in(asked)[2] != met_in(last)[2]
        await asked.hung_up(SOON_S)


async def ended(two: TwoEngines, engines: Mapping[str, FakeEngine], outcome: Outcome) -> None:
    """Nothing stays taken, there was this one outcome, and every request had a room."""
    await two.idle()
    assert outcomes(two) == {outcome: 1}
    for engine in engines.values():
        for asked in engine.asked:
            assert met_in(asked)


# ---- the engine that reads


@STREAMS
@pytest.mark.parametrize("after_s", [0.0, 0.1], ids=["before the transfer", "while it goes over"])
def test_p_dies_before_its_answer(after_s: float, stream: bool) -> None:
    async def dies(asked: Asked) -> None:
        await asyncio.sleep(after_s)
        asked.cut()

    async def story() -> None:
        async with scripted(reads=dies, writes=opens_and_waits) as (two, engines):
            found = await asking(two, ask(stream=stream))
            assert found.status == 502
            await engines["writes"].asked[0].hung_up(SOON_S)
            assert len(engines["writes"].asked) == 1, "it is not asked alone"
            await ended(two, engines, Outcome.ENGINE_FAILED)
            assert two.legs()[:4] == (1, 0, 1, 0)

    run(story())


def test_p_dies_while_the_other_engine_sends_comments_only() -> None:
    commented = asyncio.Event()

    async def dies_then(asked: Asked) -> None:
        await commented.wait()
        await asyncio.sleep(0.05)
        asked.cut()

    async def comments(asked: Asked) -> None:
        asked.open_stream()
        asked.send(b": waiting\n\n")
        commented.set()
        await asked.hung_up()

    async def story() -> None:
        async with scripted(reads=dies_then, writes=comments) as (two, engines):
            assert (await asking(two, ask(stream=True))).status == 502
            await engines["writes"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


@STREAMS
def test_p_dies_after_the_prompt_has_gone_over(stream: bool) -> None:
    over = asyncio.Event()

    async def dies_then(asked: Asked) -> None:
        await over.wait()
        asked.cut()

    async def answers_slowly(asked: Asked) -> None:
        if stream:
            asked.open_stream()
            asked.send(ROLE, event("hel"))
            over.set()
            await asyncio.sleep(0.2)
            asked.send(event("lo", finish="stop"), DONE)
            asked.end_stream()
        else:
            await writes(asked)
            over.set()

    async def story() -> None:
        async with scripted(reads=dies_then, writes=answers_slowly) as (two, engines):
            assert is_good(await asking(two, ask(stream=stream)))
            await ended(two, engines, Outcome.GOOD)

    run(story())


@STREAMS
def test_p_is_not_there(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=opens_and_waits) as (two, engines):
            await engines["reads"].stop()
            assert (await asking(two, ask(stream=stream))).status in {502, 503}
            for asked in engines["writes"].asked:  # if it was reached at all
                await asked.hung_up(SOON_S)
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


@STREAMS
def test_p_is_not_there_and_another_is(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=reads, also_reads=reads, writes=opens_and_waits) as (two, engines):
            await engines["reads"].stop()
            engines["writes"].script = once_met(engines["also_reads"], writes)
            assert is_good(await asking(two, ask(stream=stream)))
            await met_last(engines["writes"], engines["also_reads"])
            await ended(two, engines, Outcome.GOOD)

    run(story())


@STREAMS
@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.BAD_REQUEST),
        (413, Outcome.BAD_REQUEST),
        (422, Outcome.BAD_REQUEST),
        (500, Outcome.ENGINE_FAILED),
        (503, Outcome.ENGINE_FAILED),
    ],
)
def test_what_p_refuses_is_the_answer(status: int, outcome: Outcome, stream: bool) -> None:
    async def declines(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no, because"}}', status)

    async def story() -> None:
        async with scripted(reads=declines, writes=opens_and_waits) as (two, engines):
            found = await asking(two, ask(stream=stream))
            assert (found.status, found.error["message"]) == (status, "no, because")
            await engines["writes"].asked[0].hung_up(SOON_S)
            await ended(two, engines, outcome)

    run(story())


@STREAMS
@pytest.mark.parametrize(
    "said",
    [b'data: {"error":{"message":"KVPoll.Bootstrapping","code":500}}\n\n', event("", finish="abort")],
    ids=["an error event", "an abort"],
)
def test_p_says_with_a_good_status_that_it_has_waited_too_long(said: bytes, stream: bool) -> None:
    async def gives_up(asked: Asked) -> None:
        asked.open_stream()
        await asyncio.sleep(0.05)
        asked.send(said, DONE)
        asked.end_stream()

    async def story() -> None:
        async with scripted(reads=gives_up, writes=opens_and_waits) as (two, engines):
            found = await asking(two, ask(stream=stream))
            assert found.status >= 500
            await engines["writes"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


@STREAMS
def test_p_is_slow_past_the_bootstrap_timeout(stream: bool) -> None:
    async def story() -> None:
        slow = {"time_scale": 0.01}
        async with embedded(timeout_s=0.2, reads=slow) as (two, first, second):
            found = await asking(two, ask(stream=stream))
            assert found.status >= 500, (
                "the engine that answers has given up, and no part of an answer was sent"
            )
            assert second.application.meters.kv_failed == 1
            await until(lambda: first.application.meters.client_gone == 1)
            await two.idle()
            assert outcomes(two) == {Outcome.ENGINE_FAILED: 1}

    run(story())


# ---- the engine that answers


@STREAMS
@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, Outcome.BAD_REQUEST), (500, Outcome.ENGINE_FAILED), (503, Outcome.ENGINE_FAILED)],
)
def test_what_d_refuses_is_the_answer(status: int, outcome: Outcome, stream: bool) -> None:
    async def refuses(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no, because"}}', status)

    async def story() -> None:
        async with scripted(reads=waits, writes=refuses) as (two, engines):
            found = await asking(two, ask(stream=stream))
            assert (found.status, found.error["message"]) == (status, "no, because")
            await engines["reads"].asked[0].hung_up(SOON_S)
            assert (len(engines["reads"].asked), len(engines["writes"].asked)) == (1, 1)
            await ended(two, engines, outcome)

    run(story())


def test_d_begins_its_stream_with_the_news_that_nothing_came_over() -> None:
    async def fails(asked: Asked) -> None:
        asked.open_stream()
        asked.send(b'data: {"error":{"message":"KVTransferError","code":500}}\n\n', DONE)
        asked.end_stream()

    async def story() -> None:
        async with scripted(reads=waits, writes=fails) as (two, engines):
            found = await asking(two, ask(stream=True))
            assert found.status >= 500
            await engines["reads"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


@STREAMS
def test_d_is_not_there_and_another_is(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=waits, writes=writes, also_writes=writes) as (two, engines):
            await engines["writes"].stop()
            engines["reads"].script = once_met(engines["also_writes"], reads)
            assert is_good(await asking(two, ask(stream=stream)))
            await met_last(engines["reads"], engines["also_writes"])
            await ended(two, engines, Outcome.GOOD)

    run(story())


@STREAMS
def test_d_dies_before_its_answer(stream: bool) -> None:
    async def dies(asked: Asked) -> None:
        if stream:
            asked.open_stream()
        await asyncio.sleep(0.05)
        asked.cut()

    async def story() -> None:
        async with scripted(reads=waits, writes=dies) as (two, engines):
            assert (await asking(two, ask(stream=stream))).status == 502
            await engines["reads"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


@STREAMS
def test_d_dies_within_its_answer(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=begins_and_dies) as (two, engines):
            found = await asking(two, ask(stream=stream))
            assert not found.whole or found.status == 502 or b'"error"' in found.body
            assert b"[DONE]" not in found.body
            await ended(two, engines, Outcome.ENGINE_FAILED)

    run(story())


# ---- the client


@STREAMS
def test_a_client_leaves_while_neither_engine_has_answered(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=waits, writes=opens_and_waits) as (two, engines):
            client = await two.client()
            client.ask(ask(stream=stream))
            both = [await engine.next() for engine in engines.values()]
            client.leave()
            for asked in both:
                await asked.hung_up(SOON_S)
            await ended(two, engines, Outcome.CLIENT_GONE)

    run(story())


@STREAMS
def test_a_client_leaves_when_its_prompt_is_read(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=opens_and_waits) as (two, engines):
            client = await two.client()
            client.ask(ask(stream=stream))
            await until(lambda: two.legs().fetched == 1)
            assert two.seen("reads").kv_tokens == 0
            client.leave()
            await engines["writes"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.CLIENT_GONE)

    run(story())


def test_a_client_leaves_within_its_answer() -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=begins_and_goes_on) as (two, engines):
            client = await two.client()
            client.ask(ask(stream=True))
            await client.head()
            await client.chunk()
            client.leave()
            await engines["writes"].asked[0].hung_up(SOON_S)
            await ended(two, engines, Outcome.CLIENT_GONE)

    run(story())


def test_a_client_leaves_embedded_engines_which_both_abort() -> None:
    async def story() -> None:
        async with embedded(reads={"time_scale": 0.1}) as (two, first, second):
            client = await two.client()
            client.ask(ask("word " * 4000))
            await until(lambda: two.seen("reads").running == 1)
            await asyncio.sleep(0.05)
            client.leave()
            await until(lambda: first.application.meters.client_gone == 1)
            await until(lambda: second.application.meters.client_gone == 1)
            await two.idle()
            assert two.legs().fetched == 0

    run(story())
