"""Engines that fail: the client learns it in its own dialect, and never takes a part for the whole (INV-10)."""

import asyncio
import gzip
import json
import socket
from email.utils import formatdate

import pytest

from gateway.harness import DONE, ROLE, Answer, Asked, Script, Stand, answer, chat, event, run, standing
from millgate.core.settings import LaneSettings
from millgate.core.words import FailureKind
from millgate.servers.http.contract import DoorSettings
from millgate.sockets.addresses import HostAddresses


def last_event(got: Answer) -> dict[str, object]:
    payload = got.body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
    decoded: dict[str, object] = json.loads(payload)
    return decoded


def failed_once(stand: Stand, kind: FailureKind) -> bool:
    return stand.outcomes() == {"engine_failed": 1} and dict(stand.lane.failures)[kind] == 1


def ask_once(
    script: Script,
    sent: bytes,
    kind: FailureKind,
    lane: LaneSettings | None = None,
    door: DoorSettings | None = None,
) -> Answer:
    """Ask once, check the one outcome, and return what the client got."""
    answers: list[Answer] = []

    async def body() -> None:
        async with standing(script, lane=lane, door=door) as stand:
            answers.append(await stand.ask(sent))
            await stand.settle()
            assert failed_once(stand, kind), (stand.outcomes(), stand.lane.failures)

    run(body())
    return answers[0]


def streamed(*pieces: bytes, end: str) -> Script:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*pieces)
        if end == "end":
            asked.end_stream()
        elif end == "fin":
            asked.writer.close()
        elif end == "reset":
            await asked.writer.drain()
            await asyncio.sleep(0.02)
            asked.cut()
        else:
            await asked.hung_up(60)

    return script


@pytest.mark.parametrize("end", ["end", "fin", "reset"])
def test_a_stream_without_its_terminal_event_ends_with_an_error_event_and_a_cut(end: str) -> None:
    got = ask_once(streamed(ROLE, event("a"), event("b"), end=end), chat(stream=True), FailureKind.BROKEN)
    assert got.status == 200
    assert got.body.startswith(ROLE + event("a") + event("b"))
    assert last_event(got)["error"]
    assert not got.whole


@pytest.mark.parametrize("end", ["end", "fin"])
def test_a_stream_that_ends_within_an_event_never_shows_half_of_it(end: str) -> None:
    """SDKs took the error event behind half an event for a part of that, and raised that it is no JSON."""
    script = streamed(ROLE, event("a"), event("b")[:40], end=end)
    got = ask_once(script, chat(stream=True), FailureKind.BROKEN)
    assert got.body.startswith(ROLE + event("a") + b'data: {"error"')
    assert not got.whole


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_stream_that_the_engine_aborted_is_not_shown_as_finished(reason: str) -> None:
    script = streamed(ROLE, event("a"), event(finish=reason) + DONE, end="end")
    got = ask_once(script, chat(stream=True), FailureKind.ABORT)
    assert DONE not in got.body
    assert last_event(got)["error"]
    assert not got.whole


@pytest.mark.parametrize("before", [[], [b": hello\n\n"]])
def test_a_stream_that_says_that_it_is_done_and_nothing_else_is_no_answer(before: list[bytes]) -> None:
    """SDKs raise nothing for it: their user got an empty answer, and the engine more requests than one that answers."""
    got = ask_once(streamed(*before, DONE, end="end"), chat(stream=True), FailureKind.BROKEN)
    assert (got.status, got.error["code"]) == (502, "upstream_broken")


def test_a_whole_answer_that_ended_in_an_error_is_not_a_good_one() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer(finish="error"))

    got = ask_once(script, chat(), FailureKind.ABORT)
    assert (got.status, got.error["code"]) == (502, "upstream_aborted")


@pytest.mark.parametrize("last", [event(finish="length"), event(finish="length")[:-1], DONE[:-1]])
def test_a_stream_with_a_finish_reason_and_a_framed_end_is_whole_without_done(last: bytes) -> None:
    async def body() -> None:
        async with standing(streamed(ROLE, event("a"), last, end="end")) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.whole, got.body) == (True, ROLE + event("a") + last)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def test_a_close_delimited_stream_is_whole_only_with_done() -> None:
    async def script(asked: Asked) -> None:
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        asked.raw(ROLE + event("a") + event(finish="stop"))
        if b"finishes" in asked.body:
            asked.raw(DONE)
        asked.writer.close()

    async def body() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(chat("finishes", stream=True))).whole
            assert not (await stand.ask(chat("breaks off", stream=True))).whole
            await stand.settle()
            assert stand.outcomes() == {"good": 1, "engine_failed": 1}

    run(body())


ERROR = b'data: {"error":{"message":"too many queued","type":"Service Unavailable","code":503}}\n\n'


@pytest.mark.parametrize("before", [b"", b": ping\n\n"])
def test_an_error_as_the_first_event_becomes_an_error_status(before: bytes) -> None:
    script = streamed(*filter(None, [before]), ERROR, DONE, end="end")
    got = ask_once(script, chat(stream=True), FailureKind.REFUSED)
    assert (got.status, got.error["message"]) == (503, "too many queued")
    assert got.headers["content-type"] == "application/json"


def test_an_error_event_within_a_stream_is_passed_on_and_the_stream_cut() -> None:
    broken = b'data: {"error":{"message":"engine dead","code":500}}\n\n'

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await asked.writer.drain()
        await asyncio.sleep(0.02)
        asked.send(broken, DONE)
        asked.end_stream()

    got = ask_once(script, chat(stream=True), FailureKind.ERROR_EVENT)
    assert got.body == ROLE + event("a") + broken
    assert not got.whole


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("talks", ["nothing", "head"])
def test_an_engine_that_says_nothing_in_time_is_a_timeout_and_hung_up_on(stream: bool, talks: str) -> None:
    async def script(asked: Asked) -> None:
        if talks == "head" and stream:
            asked.open_stream()
            asked.send(b": ping\n\n")
        await asked.hung_up(10)

    impatient = LaneSettings("interactive", ttft_slo_s=0.3, deadline_s=0.3)
    # A whole answer is waited for as long as its engine lives, unless the operator bounds it.
    door = DoorSettings(first_event_s=None if stream else 0.5)
    got = ask_once(script, chat(stream=stream, max_tokens=1), FailureKind.TIMEOUT, impatient, door)
    assert (got.status, got.error["code"]) == (504, "upstream_timeout")
    assert got.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (503, FailureKind.REFUSED),
        (429, FailureKind.REFUSED),
        (500, FailureKind.STATUS),
        (404, FailureKind.STATUS),
    ],
)
def test_an_engines_error_status_is_passed_on_with_clamped_advice(
    stream: bool, status: int, kind: FailureKind
) -> None:
    complaint = b'{"error":{"message":"no","type":"x","param":null,"code":null}}'

    async def script(asked: Asked) -> None:
        asked.reply(complaint, status, retry_after="900", x_should_retry="true")

    got = ask_once(script, chat(stream=stream), kind)
    assert (got.status, got.body) == (status, complaint)
    assert got.headers.get("retry-after") == ("60" if status in {429, 503} else None)
    assert "x-should-retry" not in got.headers


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("said", [b"", b"busy\n", b'{"error":{"message":"no"}}', b'{"error":{"mess'])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, FailureKind.REFUSED), (503, FailureKind.REFUSED), (404, FailureKind.STATUS)],
)
def test_an_error_that_ends_with_its_connection_keeps_its_status_and_its_hint(
    stream: bool, said: bytes, status: int, kind: FailureKind
) -> None:
    """Servers in front of engines say so little: whether all of it has come changes nothing for who is to come back."""

    async def script(asked: Asked) -> None:
        lines = b"content-type: text/plain\r\nretry-after: 7\r\nconnection: close\r\n\r\n"
        asked.raw(b"HTTP/1.1 %d X\r\n%b%b" % (status, lines, said))
        asked.writer.close()

    got = ask_once(script, chat(stream=stream), kind)
    assert (got.status, got.body, got.whole) == (status, said, True)
    assert got.headers.get("retry-after") == (None if status == 404 else "7")


def test_a_400_that_ends_with_its_connection_is_the_requests_fault() -> None:
    async def script(asked: Asked) -> None:
        asked.raw(b"HTTP/1.1 400 X\r\ncontent-type: text/plain\r\n\r\nno such field")
        asked.writer.close()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat())
            assert (got.status, got.body) == (400, b"no such field")
            await stand.settle()
            assert stand.outcomes() == {"bad_request": 1}

    run(body())


def test_a_long_error_that_ends_with_its_connection_is_cut() -> None:
    """It has begun at the client, where an end would say that it is whole (INV-10)."""

    async def script(asked: Asked) -> None:
        asked.raw(b"HTTP/1.1 503 X\r\ncontent-type: text/plain\r\n\r\n" + b"x" * 200_000)
        asked.writer.close()

    got = ask_once(script, chat(), FailureKind.BROKEN)
    assert (got.status, got.whole) == (503, False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"retry_after": "1", "retry_after_ms": "1400"}, ("2", "1400")),
        ({"retry_after": "1.2"}, ("2", "1200")),
        ({"retry_after": formatdate(0.0, usegmt=True)}, ("1", "100")),
    ],
)
def test_an_engines_hint_is_passed_on_exactly_and_in_whole_seconds_that_are_not_too_early(
    given: dict[str, str], told: tuple[str, str]
) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b"{}", 429, **given)

    got = ask_once(script, chat(), FailureKind.REFUSED)
    assert (got.headers["retry-after"], got.headers["retry-after-ms"]) == told


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (
            b"HTTP/1.1 302 X\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            "upstream_protocol_error",
        ),
        (
            b"HTTP/1.1 200 X\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\n<p",
            "upstream_protocol_error",
        ),
        (b"ICY 200 OK\r\n\r\n", "upstream_protocol_error"),
        (b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "upstream_protocol_error"),
        (
            b"HTTP/1.1 200 X\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
            "upstream_protocol_error",
        ),
    ],
)
def test_an_answer_that_is_no_answer_is_a_bad_gateway(raw: bytes, code: str) -> None:
    async def script(asked: Asked) -> None:
        asked.raw(raw)
        await asked.hung_up(60)

    got = ask_once(script, chat(), FailureKind.PROTOCOL)
    assert (got.status, got.error["code"]) == (502, code)


def test_a_stream_that_is_compressed_though_none_asked_for_it_is_given_up_at_its_head() -> None:
    """Its events cannot be read. At its end it was told as broken off, and the engine had run for nothing."""

    async def script(asked: Asked) -> None:
        asked.open_stream("text/event-stream\r\ncontent-encoding: gzip")
        asked.send(gzip.compress(ROLE))
        await asked.hung_up()

    got = ask_once(script, chat(stream=True), FailureKind.PROTOCOL)
    assert (got.status, got.error["code"]) == (502, "upstream_protocol_error")


def test_a_json_answer_that_breaks_off_is_a_bad_gateway() -> None:
    async def script(asked: Asked) -> None:
        asked.raw(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        asked.writer.close()

    got = ask_once(script, chat(), FailureKind.BROKEN)
    assert (got.status, got.error["code"]) == (502, "upstream_broken")


def test_a_json_answer_that_the_engine_aborted_is_a_bad_gateway() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer(finish="abort"))

    got = ask_once(script, chat(), FailureKind.ABORT)
    assert got.status == 502


def test_an_engine_that_cannot_be_reached_is_a_bad_gateway_with_advice() -> None:
    async def body() -> None:
        async with standing() as stand:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            nowhere = HostAddresses("127.0.0.1", port).connect
            stand.gateway.door.engines["engine"].upstream._connect = nowhere  # type: ignore[attr-defined]
            got = await stand.ask(chat())
            assert (got.status, got.error["code"]) == (502, "upstream_unreachable")
            assert 5 <= int(got.headers["retry-after"]) <= 10
            await stand.settle()
            assert failed_once(stand, FailureKind.CONNECT)
            (told,) = stand.gateway.observers.why("1")
            assert told.steps[-1].words.endswith("Connection refused")

    run(body())


def test_a_kept_connection_that_died_is_replaced_without_a_word() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer())
        asked.writer.close()

    async def body() -> None:
        async with standing(script) as stand:
            for _ in range(3):
                assert (await stand.ask(chat())).status == 200
            await stand.settle()
            assert stand.outcomes() == {"good": 3}

    run(body())


def test_an_endless_event_is_cut_at_its_bound() -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"), b"data: ")
        while not asked.gone:
            asked.send(b"x" * 60_000)
            await asked.writer.drain()
            await asyncio.sleep(0)

    got = ask_once(script, chat(stream=True), FailureKind.PROTOCOL)
    assert len(got.body) < 10_000
    assert not got.whole


def test_usage_that_makes_no_sense_is_not_believed() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":99999999999}}')

    async def body() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(chat())).status == 200
            await stand.settle()
            assert stand.snapshot.good_output_tokens < 10_000

    run(body())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_engines_4xx_is_the_requests_fault_and_not_the_engines(stream: bool, status: int) -> None:
    complaint = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'

    async def script(asked: Asked) -> None:
        asked.reply(complaint, status)

    async def body() -> None:
        async with standing(script) as stand:
            for _ in range(8):
                got = await stand.ask(chat(stream=stream))
                assert (got.status, got.body) == (status, complaint)
            await stand.settle()
            assert stand.outcomes() == {"bad_request": 8}
            assert not any(dict(stand.lane.failures).values())

    run(body())


def test_a_400_as_the_first_event_of_a_stream_is_the_requests_fault_too() -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(
            b'data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}\n\n', DONE
        )
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(chat(stream=True))).status == 400
            await stand.settle()
            assert stand.outcomes() == {"bad_request": 1}

    run(body())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_status_that_blames_our_setup_stays_visible_as_the_engines(status: int) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no","type":"x","param":null,"code":null}}', status)

    assert ask_once(script, chat(), FailureKind.STATUS).status == status


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "false"}, {"retry_after": "30"}])
@pytest.mark.parametrize("stream", [True, False])
def test_a_429_that_no_retry_mends_says_so_to_the_client(stream: bool, told: dict[str, str]) -> None:
    complaint = b'{"error":{"message":"exceeded","type":"insufficient_quota","code":"insufficient_quota"}}'

    async def script(asked: Asked) -> None:
        asked.reply(complaint, 429, **told)

    got = ask_once(script, chat(stream=stream), FailureKind.NO_CREDIT)
    assert (got.status, got.body) == (429, complaint)
    assert got.headers["x-should-retry"] == "false"
    assert "retry-after" not in got.headers


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_engines_word_that_a_retry_is_of_no_use_is_kept_for_the_client(status: int) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no"}}', status, retry_after="9", x_should_retry="false")

    kind = FailureKind.STATUS if status == 500 else FailureKind.REFUSED
    got = ask_once(script, chat(), kind)
    assert got.headers["x-should-retry"] == "false"
    assert "retry-after" not in got.headers


@pytest.mark.parametrize("name", ["x_request_id", "request_id"])
@pytest.mark.parametrize("status", [200, 400])
def test_the_providers_request_id_stands_beside_ours(name: str, status: int) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer(), status, **{name: "req_theirs", "x_upstream_request_id": "forged"})

    async def body() -> None:
        async with standing(script) as stand:
            told: list[tuple[int, bytes]] = []
            stand.gateway.door.on_upstream_named = lambda *named: told.append(named)
            got = await stand.ask(chat())
            assert got.headers["x-upstream-request-id"] == "req_theirs"
            assert got.headers["x-request-id"] != "req_theirs"
            assert told == [(1, b"req_theirs")]

    run(body())


def test_a_stream_whose_first_event_says_that_there_is_no_credit_is_not_retried() -> None:
    refusal = b'{"error":{"message":"exceeded","type":"insufficient_quota","code":429}}'

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(b"data: " + refusal + b"\n\n")
        asked.end_stream()

    got = ask_once(script, chat(stream=True), FailureKind.NO_CREDIT)
    assert (got.status, got.headers["x-should-retry"]) == (429, "false")
