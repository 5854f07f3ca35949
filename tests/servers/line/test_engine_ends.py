"""What an engine does to a job must end it, and its client must hear of that."""

import asyncio
import json
import math
from typing import Any

import pytest
from lab.interpreted import is_compiled
from lab.upstream import answers

from gateway.harness import CHAT, DONE, ROLE, Asked, Client, answer, chat, event, run, until, usage_event
from millgate.core.words import Outcome
from millgate.dialects.line import Status
from millgate.dialects.sse import MOST_EVENT_BYTES
from millgate.servers.line import replies
from millgate.servers.requests import judgement
from servers.line.stand import chunk, upload
from servers.line.talk import Gate, LineStand, line_standing


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


def test_a_batch_outlives_a_restart_of_its_only_engine() -> None:
    """A job that no engine has had may come back: in two seconds of a restart a pipelined batch had every second job aborted."""

    async def body() -> None:
        async with line_standing(max_inflight=4) as stand:
            await stand.engine.stop()
            peer = await stand.peer()
            for number in range(3):
                peer.send(upload(chat("hello"), f"J{number}", 64))
            for _ in range(3):
                reply = await peer.final()
                assert reply.status is Status.YIELD
                assert reply.retry_hint_ms is not None
                assert 5000 <= reply.retry_hint_ms < 10000
            serving = await asyncio.start_server(stand.engine._serve, "127.0.0.1", stand.engine.port)
            async with serving:
                peer.send(chunk(chat("hello"), -(-len(chat("hello")) // 64) - 1, "J1", 9, 64))
                reply = await peer.final()
                assert (reply.status, reply.job) == (Status.DONE, "J1")
                assert len(stand.engine.asked) == 1
                peer.leave()
                await stand.settle()

    run(body())


def test_an_answer_that_does_not_fit_into_the_budget_is_not_held_against_its_engine() -> None:
    """The client was told that the engine's answer had broken off, and after three of them the page named the engine."""

    async def body() -> None:
        async with line_standing(Gate(work_s=0.0, content="x" * 500_000)) as stand:
            stand.gateway.server.budget.limit_bytes = 400_000
            peer = await stand.peer()
            peer.send(upload(chat("hello"), "J", 64, want_result=True))
            reply = await peer.final()
            assert (reply.status, reply.need) == (Status.ABORT, "payload_too_large")
            assert "limits.byte_budget" in reply.message
            await stand.settle()
            (lane,) = [each for each in stand.snapshot.lanes if each.name == "line"]
            assert dict(lane.outcomes) == {Outcome.CLIENT_GONE: 1}

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
            await until(lambda: attempt._judge._size)  # type: ignore[attr-defined]
            call = attempt._call  # type: ignore[attr-defined]
            assert call.deadline < math.inf
            call.expire_at(soon)
            reply = await peer.final()
            assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
            await stand.settle()

    run(body())


def error_event(status: int) -> bytes:
    return b"data: " + answers.error(status) + b"\n\n"


SAID_500 = "the engine answered 500: scripted error"
BROKE_OFF = "the engine's answer broke off"
NOT_ASKED_FOR = "the engine's answer is not what was asked for"
STOP = event(finish="stop")
BROKEN: dict[str, tuple[bytes, str]] = {
    "an error event after content": (ROLE + event("a") + error_event(500) + DONE, SAID_500),
    "an error event at first": (error_event(500), SAID_500),
    "an error event after much content": (
        event("a") + error_event(500) + event("b") * 2_000 + DONE,
        SAID_500,
    ),
    "no terminal event and no finish": (ROLE + event("a"), BROKE_OFF),
    "nothing": (b"", BROKE_OFF),
    "comments alone": (b": waiting\n\n" * 3, BROKE_OFF),
    "the engine gave up": (event("a") + event(finish="abort") + DONE, "the engine gave up on the request"),
    "an event without end": (b"data: " + b"x" * MOST_EVENT_BYTES, NOT_ASKED_FOR),
}
NO_ANSWERS: dict[str, tuple[bytes, int, str]] = {
    "a page": (b"<html>", 200, "text/html"),
    "a page that says it is JSON": (b"<html>", 200, "application/json"),
    "an empty answer": (b"", 200, "application/json"),
    "half an answer": (answer()[:-9], 200, "application/json"),
    "a stream that was not asked for": (event("a") + DONE, 200, "text/event-stream"),
    "a redirect": (b"{}", 302, "application/json"),
    "an error with status 200": (answers.error(500), 200, "application/json"),
}


async def both_doors_fail(stand: LineStand, body: bytes) -> str:
    """Ask at both doors, see that both count a failure, and return the words of the line door."""
    http = Client(*await asyncio.open_connection("127.0.0.1", stand.gateway.port))
    http.ask(body, CHAT)
    told = await http.answer()
    assert told.status >= 500 or not told.whole
    http.leave()
    peer = await stand.peer()
    peer.send(upload(body, "J", 4096, want_result=True))
    reply = await peer.final()
    assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
    await stand.settle()
    for lane in stand.snapshot.lanes:
        assert {kind for kind, count in lane.outcomes if count} == {Outcome.ENGINE_FAILED}
    return reply.message


@pytest.mark.parametrize("name", BROKEN)
def test_inv_10_a_stream_that_the_http_door_cuts_is_no_job_done(name: str) -> None:
    events, words = BROKEN[name]

    async def script(asked: Asked) -> None:
        asked.open_stream()
        for begin in range(0, len(events), 50_000):
            asked.send(events[begin : begin + 50_000])
            await asked.writer.drain()
        asked.end_stream()

    async def body() -> None:
        async with line_standing(script) as stand:
            assert await both_doors_fail(stand, chat(stream=True)) == words

    run(body())


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_inv_10_what_is_no_answer_over_http_is_none_on_the_line(name: str) -> None:
    data, status, kind = NO_ANSWERS[name]

    async def script(asked: Asked) -> None:
        asked.reply(data, status, kind)

    async def body() -> None:
        async with line_standing(script) as stand:
            words = SAID_500 if b"error" in data else NOT_ASKED_FOR
            assert await both_doors_fail(stand, chat()) == words

    run(body())


@pytest.mark.parametrize("events", [error_event(503), event("a") + error_event(429)])
def test_a_full_engine_that_says_so_in_a_stream_yields_the_job(events: bytes) -> None:
    said = iter([[events], [ROLE, event("a"), STOP, DONE]])

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*next(said))
        asked.end_stream()

    async def body() -> None:
        async with line_standing(script) as stand:
            payload = chat(stream=True)
            peer = await stand.peer()
            peer.send(upload(payload, "J", 4096, want_result=True))
            assert (await peer.final()).status is Status.YIELD
            assert stand.door.yielded == 1
            peer.send(chunk(payload, 0, "J", 9, 4096))
            assert (await peer.final()).status is Status.DONE
            await stand.settle()

    run(body())


def test_a_stream_is_done_with_its_terminal_event_and_its_engine_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that went on with comments kept the job, and its permit, for as long as it did."""
    monkeypatch.setattr(judgement, "ENDING_S", 0.2)

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"), STOP, usage_event(5, 7), DONE)
        while not asked.gone:
            asked.send(b": still here\n\n")
            await asyncio.sleep(0.01)

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(upload(chat(stream=True), "J", 4096))
            assert (await peer.final()).status is Status.DONE
            assert stand.snapshot.good_output_tokens == 7
            await (await stand.engine.next()).hung_up()
            await stand.settle()

    run(body())


@pytest.mark.parametrize("last", [DONE, STOP])
def test_a_stream_without_usage_counts_its_events(last: bytes) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(b": waiting\n\n", ROLE, event("a"), event("b"), last)
        asked.end_stream()

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(upload(chat(stream=True), "J", 4096))
            assert (await peer.final()).status is Status.DONE
            assert stand.snapshot.good_output_tokens == (2 if last is DONE else 3)

    run(body())
