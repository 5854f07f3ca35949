"""Rows 8-13, 15 and 16: sizes, pace, pipelining, expectations and the number of clients."""

import gzip
import time

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answer_politely, answers

from faults.corpus import GOOD
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import CHAT, Talk, chat, chunked, request

MIB = 1024 * 1024
BODY_LIMIT = 4 * MIB


def head(*lines: str, path: str = CHAT) -> bytes:
    """Return the head of a chat request, without a body."""
    fields = ["Host: gate", "Content-Type: application/json", *lines]
    return "\r\n".join((f"POST {path} HTTP/1.1", *fields, "", "")).encode()


async def stall(line: ScriptedConnection) -> None:
    await line.stall()


# ---- row 8


def test_row_8_a_length_over_the_limit_is_refused_before_the_body_is_read(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    talk = gate.connect()
    talk.send(head(f"Content-Length: {BODY_LIMIT + 1}"))
    answer = talk.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert str(BODY_LIMIT) in answer.error["message"]
    assert talk.rest() == b""
    assert upstream.received == []


def test_row_8_chunks_over_the_limit_are_refused_at_the_limit(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    before = gate.resident_bytes
    gate.forget_peak()
    talk = gate.connect()
    talk.send(head("Transfer-Encoding: chunked"))
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0
    while sent < 10 * BODY_LIMIT and not talk.heard(0):
        talk.try_send(piece)
        sent += 65536
    answer = talk.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert sent <= 2 * BODY_LIMIT
    assert gate.peak_bytes - before <= 3 * BODY_LIMIT
    assert upstream.received == []


def test_row_8_a_body_of_exactly_the_limit_is_served(gate: GateProcess, upstream: FakeUpstream) -> None:
    body = chat("x" * (BODY_LIMIT - len(chat(""))))
    assert len(body) == BODY_LIMIT
    for payload in (request(body), chunked(*(body[at : at + 65536] for at in range(0, len(body), 65536)))):
        talk = gate.connect()
        talk.send(payload)
        assert talk.answer().status == 200
    assert [len(each.body) for each in upstream.received] == [BODY_LIMIT] * 2


# ---- row 9


def test_row_9_a_request_in_fragments_of_one_byte_is_served(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    talk = gate.connect()
    talk.drip(request(chat("bytewise")), 0)
    assert talk.answer().status == 200
    assert upstream.received[0].json()["messages"][0]["content"] == "bytewise"


def test_row_9_a_million_chunks_of_one_byte_cost_a_bounded_time(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    body = chat("x" * 1_000_000)
    payload = (
        head("Transfer-Encoding: chunked") + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    )
    before = gate.cpu_s
    talk = gate.connect()
    talk.send(payload)
    assert talk.answer().status == 200
    assert upstream.received[0].body == body
    # Six bytes on the wire each: half a microsecond per byte, with room for a slow machine.
    assert gate.cpu_s - before <= 6e6 * 1e-6


def test_row_9_framing_without_a_body_is_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    """Chunk extensions carry no body: megabytes of them are work for nothing."""
    talk = gate.connect()
    talk.try_send(head("Transfer-Encoding: chunked") + (b"1;" + b"x" * 500 + b"\r\nx\r\n") * 4000)
    assert talk.answer().status == 400
    assert upstream.received == []


# ---- row 10


def test_row_10_a_slow_head_a_slow_body_and_silence_end_at_their_deadline(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    slow_head, slow_body, silent = gate.connect(), gate.connect(), gate.connect()
    slow_body.send(head("Content-Length: 100000"))
    began = time.monotonic()
    ended: dict[Talk, float] = {}
    drops = (bytes((byte,)) for byte in head("X-Slow: " + "x" * 10_000))
    while len(ended) < 3:
        for talk in (slow_head, slow_body, silent):
            if talk not in ended and talk.heard(0.01):
                ended[talk] = time.monotonic() - began
        if slow_head not in ended:
            slow_head.try_send(next(drops))
        if slow_body not in ended:
            slow_body.try_send(b" ")
        assert time.monotonic() - began < 8, ended
    for talk in (slow_head, slow_body, silent):
        answer = talk.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"
        assert talk.rest() == b""
    assert min(ended.values()) >= 0.9
    assert upstream.received == []


def test_row_10_an_idle_connection_is_closed(gate: GateProcess) -> None:
    talk = gate.connect()
    talk.send(GOOD)
    assert talk.answer().status == 200
    began = time.monotonic()
    assert talk.rest() == b""
    assert time.monotonic() - began >= 1.8


# ---- row 11


def test_row_11_a_client_that_does_not_read_is_cut_and_its_engine_hung_up_on(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """A stream and a whole answer alike."""

    async def endless(line: ScriptedConnection) -> None:
        stream = line.request.json()["stream"]
        await line.send(answers.head(200, answers.EVENT_STREAM if stream else answers.JSON))
        while True:
            await line.send(answers.chunks(answers.event("x" * 1000) * 60 if stream else b" " * 60_000))

    upstream.script = endless
    for stream in (False, True):
        gate.connect(receive_bytes=4096).ask(chat(stream=stream))
    until(lambda: upstream.aborted == 2)
    assert sum(gate.ended().values()) == 2
    assert set(gate.ended()) <= {"client_gone/decode", "client_gone/prefill"}


# ---- row 12


def test_row_12_pipelined_requests_are_served_in_order(gate: GateProcess, upstream: FakeUpstream) -> None:
    talk = gate.connect()
    count = 300
    talk.send(b"".join(request(chat(str(number)), f"X-Request-Id: id-{number}") for number in range(count)))
    ids = [talk.answer().headers["x-request-id"] for _ in range(count)]
    assert ids == [f"id-{number}" for number in range(count)]
    assert [each.json()["messages"][0]["content"] for each in upstream.received] == [
        str(number) for number in range(count)
    ]
    assert gate.ended() == {"good": count}


def test_row_12_ten_thousand_pipelined_requests_are_never_kept(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """What is executed is answered, in order; what does not fit the bound is dropped with its connection."""
    before = gate.resident_bytes
    gate.forget_peak()
    talk = gate.connect()
    talk.try_send(b"".join(request(chat(str(number))) for number in range(10_000)))
    said = talk.rest()
    executed = [each.json()["messages"][0]["content"] for each in upstream.received]
    assert executed == [str(number) for number in range(len(executed))]
    assert said.count(b"HTTP/1.1 200") <= len(executed) <= said.count(b"HTTP/1.1 200") + 1
    assert gate.peak_bytes - before <= 2 * MIB


def test_row_12_a_flood_behind_a_running_request_costs_a_bound_of_memory(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    upstream.script = stall
    before = gate.resident_bytes
    gate.forget_peak()
    talk = gate.connect()
    talk.send(request(chat()))
    until(lambda: upstream.answering == 1)
    talk.try_send(GOOD * 200_000)
    talk.rest()
    assert len(upstream.received) == 1
    assert gate.peak_bytes - before <= 2 * MIB
    assert gate.ended() == {"client_gone/prefill": 1}


# ---- row 13


def test_row_13_expect_100_continue_is_answered_after_the_head_has_been_checked(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    talk = gate.connect()
    body = chat()
    talk.send(head(f"Content-Length: {len(body)}", "Expect: 100-continue"))
    assert talk.exactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.send(body)
    assert talk.answer().status == 200
    assert upstream.received[0].header(b"expect") is None


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (head("Content-Length: 5", "Expect: 100-continue", path="/invocations"), 404),
        (head("Content-Length: 5", "Expect: 100-continue", path="/v1/models"), 405),
        (head(f"Content-Length: {BODY_LIMIT + 1}", "Expect: 100-continue"), 413),
        (head("Content-Length: 5", "Expect: 200-ok"), 417),
    ],
    ids=["path", "method", "size", "unknown"],
)
def test_row_13_a_head_that_is_refused_gets_its_answer_and_no_100(
    gate: GateProcess, payload: bytes, status: int
) -> None:
    talk = gate.connect()
    talk.send(payload)
    assert talk.answer().status == status
    assert talk.rest() == b""


def test_row_13_no_100_when_the_byte_budget_is_spent(gate: GateProcess) -> None:
    """Twelve of sixteen megabytes may be one peer's; the fourth client with four is told at once."""
    talks = [gate.connect() for _ in range(4)]
    for talk in talks:
        talk.send(head(f"Content-Length: {BODY_LIMIT}", "Expect: 100-continue"))
        assert talk.exactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    for talk in talks[:3]:
        talk.send(b" " * (BODY_LIMIT - 1))
    until(lambda: not _continues(gate))
    late = gate.connect()
    late.send(head(f"Content-Length: {BODY_LIMIT}", "Expect: 100-continue"))
    answer = late.answer()
    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    for talk in talks:
        talk.close()
    talk = gate.connect()
    until(lambda: _continues(gate))
    talk.ask(chat("x" * MIB))
    assert talk.answer().status == 200


def _continues(gate: GateProcess) -> bool:
    talk = gate.connect()
    talk.send(head(f"Content-Length: {BODY_LIMIT}", "Expect: 100-continue"))
    answered = talk.line() == b"HTTP/1.1 100 Continue"
    talk.close()
    return answered


def test_row_13_while_draining_a_waiting_client_is_refused_without_100(
    start: Starter, upstream: FakeUpstream
) -> None:
    """A connection that was open before the drain asks during it."""
    upstream.script = stall
    gate = start(upstream.url)
    running, waiting = gate.connect(), gate.connect()
    running.ask(chat(stream=True))
    until(lambda: upstream.answering == 1)
    waiting.send(b"POST ")
    gate.process.terminate()
    until(lambda: gate.state()["draining"])
    waiting.send(head("Content-Length: 5", "Expect: 100-continue")[5:])
    answer = waiting.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    running.close()
    until(lambda: not gate.alive)


# ---- row 15


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("", "X-A: b"),
        ("text/plain", "X-A: b"),
        ("application/xml", "X-A: b"),
        ("application/jsonp", "X-A: b"),
        ("multipart/form-data; boundary=x", "X-A: b"),
        ("application/json", "Content-Encoding: gzip"),
        ("application/json", "Content-Encoding: br"),
        ("application/json", "Content-Encoding: identity, gzip"),
    ],
)
def test_row_15_other_content_types_and_codings_are_refused(
    gate: GateProcess, upstream: FakeUpstream, kind: str, line: str
) -> None:
    talk = gate.connect()
    talk.ask(gzip.compress(chat()), line, kind=kind)
    answer = talk.answer()
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert upstream.received == []


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_row_15_json_is_json_in_every_spelling(gate: GateProcess, kind: str) -> None:
    talk = gate.connect()
    talk.ask(chat(), kind=kind)
    assert talk.answer().status == 200


# ---- row 16


def test_row_16_over_the_cap_clients_get_a_prebuilt_503_and_streams_live_on(
    start: Starter, upstream: FakeUpstream
) -> None:
    gate = start(upstream.url, settings={"limits.connections": "10"})
    flooded(gate, upstream, cap=10, flood=100)


def test_row_16_the_cap_is_below_the_limit_of_open_files(start: Starter, upstream: FakeUpstream) -> None:
    gate = start(upstream.url, open_files=160)
    flooded(gate, upstream, cap=30, flood=200)


def flooded(gate: GateProcess, upstream: FakeUpstream, cap: int, flood: int) -> None:
    """Open many more connections than fit while a stream runs; the stream and the admin door do not notice."""

    async def stream(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(answers.event("a")))
        while not finish:
            await line.wait(0.01)
        await line.send(answers.chunks(answers.stream("b")) + answers.LAST_CHUNK)

    finish: list[bool] = []
    upstream.script = stream
    running = gate.connect()
    running.ask(chat(stream=True))
    assert running.head().status == 200
    talks = [gate.connect() for _ in range(flood)]
    refused = talks[cap - 1 :]
    for talk in refused:
        said = talk.rest()
        assert said.startswith(b"HTTP/1.1 503 "), said
        assert b"connection: close" in said
    assert gate.ask("/healthz")[0] == 200
    assert gate.ask("/readyz")[0] == 200
    finish.append(True)
    events = b"".join(iter(running.chunk, b""))
    assert events.endswith(answers.DONE)
    gate.hang_up()
    upstream.script = answer_politely
    until(lambda: _served(gate), what="the gate has room again")
    assert gate.ended()["good"] >= 1


def _served(gate: GateProcess) -> bool:
    talk = gate.connect()
    talk.try_send(GOOD)
    served = b" 200 " in talk.line()
    talk.close()
    return served
