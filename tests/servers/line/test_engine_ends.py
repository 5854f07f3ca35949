"""What an engine does to a job must end it, and its client must hear of that."""

import asyncio
import json
import math
from typing import Any

import pytest
from lab.interpreted import is_compiled

from gateway.harness import Asked, answer, chat, run, until
from millgate.dialects.line import Status
from millgate.servers.line import replies
from servers.line.stand import upload
from servers.line.talk import line_standing


def line_upload() -> bytes:
    return upload(chat("hello"), "J", 64)


@pytest.mark.parametrize(
    ("told", "hint_ms"), [("9" * 400, 1000), ("9" * 15, 60_000), ("0", 100), ("-1", 1000), ("soon", 1000)]
)
def test_an_absurd_hint_of_an_engine_is_a_sane_one_for_the_job(told: str, hint_ms: int) -> None:
    """Of four hundred digits no reply could be made: the job was kept alive for ever, and no engine worked on it."""
    statuses = iter([503, 200])

    async def script(asked: Asked) -> None:
        asked.reply(answer(), next(statuses), retry_after=told)

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload())
            reply = await peer.final()
            assert (reply.status, reply.retry_hint_ms) == (Status.YIELD, hint_ms)
            await until(lambda: stand.snapshot.engines[0].running == 0)

    run(body())


def test_a_job_whose_account_has_no_credit_is_given_up_with_the_providers_words() -> None:
    """No later time mends it: a yield would bring the job back again and again."""

    async def script(asked: Asked) -> None:
        error = {"message": "You exceeded your current quota.", "type": "insufficient_quota"}
        asked.reply(json.dumps({"error": error}).encode(), 429, retry_after="1")

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload())
            reply = await peer.final()
            assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
            assert reply.message == "the engine answered 429: You exceeded your current quota."
            await stand.settle()

    run(body())


@pytest.mark.skipif(is_compiled(), reason="a compiled method cannot be replaced")
def test_a_job_whose_client_cannot_be_told_its_end_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def done(*_: Any) -> bytes:
        raise ZeroDivisionError

    async def body() -> None:
        logged: list[object] = []
        async with line_standing() as stand:
            asyncio.get_running_loop().set_exception_handler(
                lambda _loop, context: logged.append(type(context.get("exception")))
            )
            monkeypatch.setattr(replies, "done", done)
            peer = await stand.peer()
            peer.send(line_upload())
            await peer.until_closed()
            await stand.settle()
            assert logged == [ZeroDivisionError]

    run(body())


def test_a_whole_answer_that_dribbles_for_ever_is_given_up_when_its_time_is_over() -> None:
    """Its first byte took the deadline away, and a byte in each minute kept the job and its permit for good."""

    async def dribble(asked: Asked) -> None:
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        while not asked.gone:
            asked.send(b" ")
            await asyncio.sleep(0.01)

    async def body() -> None:
        async with line_standing(dribble) as stand:
            peer = await stand.peer()
            peer.send(line_upload())
            await stand.engine.next()
            soon = asyncio.get_running_loop().time() + 0.3
            (attempt,) = stand.gateway.driver._listeners.values()
            await until(lambda: attempt._begun)  # type: ignore[attr-defined]
            call = attempt._call  # type: ignore[attr-defined]
            assert call.deadline < math.inf
            call.expire_at(soon)
            reply = await peer.final()
            assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
            await stand.settle()

    run(body())
