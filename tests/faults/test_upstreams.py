"""Rows 38-43: engines that are not there, stall, break off or talk nonsense; no part is ever shown as a whole."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from lab.upstream import FakeUpstream, Script, ScriptedConnection, answer_politely, answers

from faults.asking import BEGUN, STREAM_HEAD, ask, broken_off, failed, say
from faults.baseline import unchanged
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import Answer, chat
from millgate.testing import FaultProxy, Faults

# ---- row 38


def test_row_38_a_name_that_does_not_exist_is_502(start: Starter) -> None:
    gate = start("http://engine.invalid:8000")
    unreachable(gate, ask(gate))


def test_row_38_a_black_hole_is_502_after_the_connect_deadline(start: Starter) -> None:
    with full_backlog() as port:
        gate = start(f"http://127.0.0.1:{port}")
        unreachable(gate, ask(gate))


def unreachable(gate: GateProcess, answer: Answer) -> None:
    failed(answer, 502, "upstream_unreachable")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert gate.ended() == {"engine_failed/connect": 1}


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """Open a port that neither accepts nor refuses: its backlog is full, so further SYNs are dropped."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


def test_row_38_a_refused_connection_is_502_and_an_engine_that_comes_back_is_used_again(
    start: Starter,
) -> None:
    engine = FakeUpstream()
    with engine:
        gate = start(engine.url)
        assert ask(gate).status == 200
        assert gate.ended() == {"good": 1}
    gate.begin()
    unreachable(gate, ask(gate))
    with engine:  # on the same port again
        until(lambda: ask(gate).status == 200)


# ---- bodies of what runs

LARGE = "x" * 3_000_000
"""Five of them fill the budget of these gates, and each is well within their limit for one body."""


@pytest.mark.parametrize("stream", [True, False])
def test_bodies_of_answers_that_have_begun_fill_neither_the_budget_nor_the_memory(
    gate: GateProcess, upstream: FakeUpstream, stream: bool
) -> None:
    """The eight together are half as large again as the budget."""

    async def endless(line: ScriptedConnection) -> None:
        await line.send(
            BEGUN if stream else answers.head(200, answers.JSON) + answers.chunks(b"{" + b" " * 70_000)
        )
        while True:
            await line.send(answers.chunks(answers.event("b") if stream else b" " * 4))
            await line.wait(0.1)

    upstream.script = endless
    before = gate.resident_bytes
    for _client in range(8):  # one after the other: a connection that says nothing for a second is closed
        talk = gate.connect()
        talk.ask(chat(LARGE, stream=stream))
        assert talk.head().status == 200
        talk.chunk()
    assert gate.resident_bytes < before + 12_000_000
    assert upstream.answering == 8
    upstream.script = answer_politely
    gate.hang_up()
    assert gate.ended() == {"client_gone/decode" if stream else "client_gone/prefill": 8}


def test_a_large_body_is_sent_again_when_a_kept_connection_turns_out_dead(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    async def fickle(line: ScriptedConnection) -> None:
        if len(upstream.received) == 2:
            line.reset()
        else:
            await line.send(answers.whole(answers.completion("hello")))

    upstream.script = fickle
    assert ask(gate).status == 200
    answer = ask(gate, padding=LARGE)
    assert (answer.status, len(upstream.received)) == (200, 3)
    assert upstream.received[1].body == upstream.received[2].body
    assert len(upstream.received[2].body) > len(LARGE)
    assert gate.ended() == {"good": 2}


def test_a_large_body_is_sent_again_without_what_the_engine_does_not_know(
    start: Starter, upstream: FakeUpstream
) -> None:
    gate = start(upstream.url)

    async def old(line: ScriptedConnection) -> None:
        if b"stream_options" in line.request.body:
            await line.send(answers.whole(answers.error(400, "unknown field stream_options"), 400))
        else:
            await answer_politely(line)

    upstream.script = old
    sent = chat(LARGE, stream=True)
    talk = gate.connect()
    talk.ask(sent)
    assert talk.answer().whole
    assert [len(each.body) > len(sent) for each in upstream.received] == [True, False]
    assert upstream.received[1].body == sent
    assert gate.ended() == {"good": 1}


# ---- rows 39 and 40


@pytest.fixture(scope="module")
def the_untaught(
    the_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GateProcess]:
    starter = Starter(tmp_path_factory.mktemp("untaught"))
    yield starter(the_upstream.url)
    starter.stop()


@pytest.fixture
def untaught(the_untaught: GateProcess, upstream: FakeUpstream) -> Iterator[GateProcess]:
    """A gateway that has never had an answer.

    The shared one learns how slow the machine is, and where that is slow it rightly refuses a client that waits for
    less than a second.
    """
    with unchanged(the_untaught, upstream):
        yield the_untaught


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("headed", [True, False])
def test_row_39_an_engine_that_never_answers_is_504_at_the_clients_deadline(
    untaught: GateProcess, upstream: FakeUpstream, stream: bool, headed: bool
) -> None:
    kind = answers.EVENT_STREAM if stream else answers.JSON
    upstream.script = say(*[answers.head(200, kind)] * headed, end="stall")
    answer = ask(untaught, "x-millgate-deadline-ms: 300", stream=stream)
    failed(answer, 504, "upstream_timeout")
    until(lambda: upstream.aborted == 1)
    assert untaught.ended() == {"engine_failed/timeout": 1}


def test_row_39_keep_alive_comments_are_no_answer(untaught: GateProcess, upstream: FakeUpstream) -> None:
    async def chatter(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD)
        while True:
            await line.send(answers.chunks(b": ping\n\n"))
            await line.wait(0.05)

    upstream.script = chatter
    failed(ask(untaught, "x-millgate-deadline-ms: 300", stream=True), 504, "upstream_timeout")
    assert untaught.ended() == {"engine_failed/timeout": 1}


def test_row_40_silence_within_a_stream_ends_it_with_an_error_event(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    upstream.script = say(BEGUN, end="stall")
    broken_off(ask(gate, stream=True))
    until(lambda: upstream.aborted == 1)
    assert gate.ended() == {"engine_failed/timeout": 1}


def test_row_40_silence_within_a_whole_answer_is_504(gate: GateProcess, upstream: FakeUpstream) -> None:
    upstream.script = say(answers.head(200, answers.JSON) + answers.chunks(b'{"choices":'), end="stall")
    failed(ask(gate), 504, "upstream_timeout")
    assert gate.ended() == {"engine_failed/timeout": 1}


# ---- row 41


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_row_41_a_stream_that_breaks_off_ends_with_an_error_event_and_a_cut(
    gate: GateProcess, upstream: FakeUpstream, end: str
) -> None:
    upstream.script = say(BEGUN, end=end)
    broken_off(ask(gate, stream=True))
    assert len(upstream.received) == 1, "never sent again after the first byte"
    assert gate.ended() == {"engine_failed/broken": 1}


@pytest.mark.parametrize("framing", ["chunks", "close"])
def test_row_41_a_stream_without_its_terminal_event_is_broken(
    gate: GateProcess, upstream: FakeUpstream, framing: str
) -> None:
    events = answers.event("") + answers.event("a")
    if framing == "chunks":
        upstream.script = say(STREAM_HEAD + answers.chunks(events) + answers.LAST_CHUNK)
    else:
        upstream.script = say(answers.head(200, answers.EVENT_STREAM, chunked=False) + events, end="fin")
    broken_off(ask(gate, stream=True))
    assert gate.ended() == {"engine_failed/broken": 1}


def named(kind: str, **fields: Any) -> bytes:
    """Return an event as Anthropic and the Responses API write it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


MESSAGES = [
    named("message_start", message={"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
]
RESPONSE = [
    named("response.created", response={"id": "resp_1", "status": "in_progress"}),
    named("response.output_text.delta", delta="a"),
]


@pytest.mark.parametrize("end", ["fin", "reset", "no terminal event"])
@pytest.mark.parametrize(
    ("path", "asked", "events", "ended"),
    [
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
            MESSAGES,
            b"message_stop",
        ),
        ("/v1/responses", {"input": "hi"}, RESPONSE, b"response.completed"),
    ],
    ids=["messages", "responses"],
)
def test_row_41_a_stream_that_breaks_off_says_so_in_its_own_dialect(
    gate: GateProcess,
    upstream: FakeUpstream,
    path: str,
    asked: dict[str, Any],
    events: list[bytes],
    ended: bytes,
    end: str,
) -> None:
    rest = answers.LAST_CHUNK if end == "no terminal event" else b""
    upstream.script = say(STREAM_HEAD + answers.chunks(*events) + rest, end=end)
    talk = gate.connect()
    talk.ask(json.dumps({"model": "m", "stream": True, **asked}).encode(), path=path)
    answer = talk.answer()
    said, _, last = answer.body.rstrip().rpartition(b"\n\n")
    assert said == b"".join(events).rstrip(), "what came before passes unchanged"
    assert not answer.whole
    assert ended not in answer.body
    assert last.startswith(b"event: error\ndata: ")
    error = json.loads(last.partition(b"data: ")[2])
    assert (error["type"], bool(error["error"]["message"])) == ("error", True)
    assert len(upstream.received) == 1, "never sent again after the first byte"
    assert gate.ended() == {"engine_failed/broken": 1}


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_row_41_a_whole_answer_that_breaks_off_is_502(
    gate: GateProcess, upstream: FakeUpstream, end: str
) -> None:
    upstream.script = say(answers.whole(answers.completion("a"))[:-5], end=end)
    failed(ask(gate), 502, "upstream_broken")
    assert gate.ended() == {"engine_failed/broken": 1}


def test_row_41_an_engine_that_closes_without_an_answer_is_502(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    upstream.script = say(end="fin")
    failed(ask(gate), 502, "upstream_broken")
    assert gate.ended() == {"engine_failed/broken": 1}


@pytest.fixture(scope="module")
def the_proxied(
    the_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GateProcess, FaultProxy]]:
    starter = Starter(tmp_path_factory.mktemp("proxied"))
    with FaultProxy(the_upstream.port) as proxy:
        # Its health page would be cut as its answers are, and on a busy machine twice before a test is over.
        yield starter(proxy.url, settings={"engines.*.health": "null"}), proxy
        starter.stop()


@pytest.fixture
def proxied(
    the_proxied: tuple[GateProcess, FaultProxy], upstream: FakeUpstream
) -> Iterator[tuple[GateProcess, FaultProxy]]:
    """A gateway whose way to the engine leads through the fault proxy."""
    gate, proxy = the_proxied
    proxy.heal()
    with unchanged(gate, upstream):
        yield gate, proxy


def test_row_41_a_cut_at_any_byte_of_a_stream_never_looks_like_an_end(
    proxied: tuple[GateProcess, FaultProxy], upstream: FakeUpstream
) -> None:
    gate, proxy = proxied
    events = [
        answers.event(""),
        answers.event("a"),
        answers.event("b"),
        answers.event(finish="stop"),
        answers.DONE,
    ]
    answer = STREAM_HEAD + answers.chunks(*events) + answers.LAST_CHUNK
    upstream.script = say(answer)
    whole = 0
    for cut in [*range(1, len(answer), 37), len(answer) - 1, len(answer)]:
        for faults in (Faults(reset_after_bytes=cut), Faults(limit_bytes=cut)):
            proxy.to_client = faults
            got = ask(gate, stream=True)
            if got.status == 200 and got.whole:
                whole += 1
                assert answers.DONE in got.body or b'"finish_reason":"stop"' in got.body
            elif got.status == 200:
                assert got.last_event["error"]
            else:
                assert got.status == 502
            proxy.on_loop(proxy.cut)
    assert whole >= 1
    ended = gate.ended()
    assert sum(ended.values()) == 2 * len([*range(1, len(answer), 37), 0, 0])
    assert set(ended) <= {"good", "engine_failed/broken"}


def test_row_41_slow_sliced_and_late_streams_arrive_unchanged(
    proxied: tuple[GateProcess, FaultProxy], upstream: FakeUpstream
) -> None:
    gate, proxy = proxied
    expected = ask(gate, stream=True, stream_options={"include_usage": True}).body
    for faults in (Faults(slice_bytes=1), Faults(slice_bytes=7, latency_s=0.05), Faults(bytes_per_s=20_000)):
        proxy.to_client = faults
        got = ask(gate, stream=True, stream_options={"include_usage": True})
        assert (got.body, got.whole) == (expected, True)
    assert gate.ended() == {"good": 4}


# ---- row 42


def test_row_42_a_kept_connection_found_dead_is_replaced_once_and_nobody_notices(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    async def second_time_dead(line: ScriptedConnection) -> None:
        if seen.get(line.number):
            line.reset()
        else:
            seen[line.number] = True
            await line.send(answers.whole(answers.completion("alive")))

    seen: dict[int, bool] = {}
    upstream.script = second_time_dead
    for _ in range(4):
        assert ask(gate).status == 200
    assert gate.ended() == {"good": 4}
    assert len(upstream.received) == 7  # three of them twice: on a dead connection, then on a fresh one


def test_row_42_a_fresh_connection_that_dies_is_not_tried_again(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    upstream.script = say(end="reset")
    failed(ask(gate), 502, "upstream_broken")
    assert len(upstream.received) == 1


# ---- row 43

NONSENSE: dict[str, Script] = {
    "garbage status line": say(b"HTTP/1.1 banana\r\n\r\n"),
    "status 99": say(b"HTTP/1.1 99 Odd\r\nContent-Length: 0\r\n\r\n"),
    "status 1000": say(b"HTTP/1.1 1000 Odd\r\nContent-Length: 0\r\n\r\n"),
    "no HTTP": say(b"SSH-2.0-engine\r\n\r\n"),
    "HTTP/0.9": say(b"<html>hello</html>\r\n\r\n", end="fin"),
    "HTTP/2.0": say(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "binary": say(bytes(range(256))),
    "length and chunks": say(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} "),
    "length -1": say(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
    "unknown coding": say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunk size zz": say(answers.head(200, answers.JSON) + b"zz\r\n{}\r\n0\r\n\r\n"),
    "chunk too long": say(answers.head(200, answers.JSON) + b"1\r\n{}\r\n0\r\n\r\n"),
    "bare LF": say(b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}"),
    "folded field": say(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 2\r\n\r\n{}"),
    "NUL in a field": say(b"HTTP/1.1 200 OK\r\nA: \x00\r\nContent-Length: 2\r\n\r\n{}"),
    "CR in a field": say(b"HTTP/1.1 200 OK\r\nA: b\rc: d\r\nContent-Length: 2\r\n\r\n{}"),
    "field without a name": say(b"HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 2\r\n\r\n{}"),
    "field of 10 MB": say(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 10_000_000 + b"\r\n\r\n"),
    "endless fields": say(b"HTTP/1.1 200 OK\r\n" + b"A: bbbbbbbb\r\n" * 500_000),
    "endless 1xx": say(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200_000),
    "switching protocols": say(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_row_43_what_is_no_answer_is_502_and_its_connection_is_not_used_again(
    gate: GateProcess, upstream: FakeUpstream, name: str
) -> None:
    upstream.script = NONSENSE[name]
    failed(ask(gate), 502, "upstream_protocol_error")
    upstream.script = say(answers.whole(answers.completion("fine")))
    assert ask(gate).status == 200
    assert upstream.received[0].connection != upstream.received[-1].connection
    assert gate.ended() == {"engine_failed/protocol": 1, "good": 1}


def test_row_43_one_interim_answer_is_skipped(gate: GateProcess, upstream: FakeUpstream) -> None:
    upstream.script = say(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        answers.whole(answers.completion("fine")),
    )
    answer = ask(gate)
    assert answer.status == 200
    assert "link" not in answer.headers


def test_row_43_interim_answers_do_not_hold_a_request_beyond_its_deadline(
    untaught: GateProcess, upstream: FakeUpstream
) -> None:
    async def hints(line: ScriptedConnection) -> None:
        while True:
            await line.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await line.wait(0.05)

    upstream.script = hints
    answer = ask(untaught, "x-millgate-deadline-ms: 300")
    assert answer.status in {502, 504}
    assert untaught.ended() in ({"engine_failed/timeout": 1}, {"engine_failed/protocol": 1})


def test_row_43_what_follows_an_answer_unasked_is_never_given_to_the_next_client(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """Response splitting: the second answer in one segment belongs to nobody."""
    upstream.script = say(
        answers.whole(answers.completion("first")) + answers.whole(answers.completion("stray"))
    )
    assert b"first" in ask(gate).body
    upstream.script = say(answers.whole(answers.completion("second")))
    assert b"second" in ask(gate).body
    assert gate.ended() == {"good": 2}
