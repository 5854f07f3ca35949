"""Rows 30-35 and 37: clients that leave, half-leave, do not read, or will not wait."""

import asyncio
import time

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers
from openai import APITimeoutError, InternalServerError, OpenAI

from faults import stalled
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import Talk, chat

MAX_INFLIGHT = 8

KIB = 1024


async def stall(line: ScriptedConnection) -> None:
    await line.stall()


async def decode(line: ScriptedConnection) -> None:
    """Begin to answer, as asked, and never end."""
    streamed = line.request.json().get("stream")
    if streamed:
        await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(answers.event("a")))
    else:
        await line.send(answers.head(200, answers.JSON) + answers.chunks(answers.completion("a")[:-20]))
    await line.stall()


def running(gate: GateProcess) -> int:
    return sum(engine["running"] for engine in gate.state()["engines"])


def queued(gate: GateProcess) -> int:
    return sum(lane["queued"] for lane in gate.state()["lanes"])


def fill(gate: GateProcess, upstream: FakeUpstream) -> list[Talk]:
    """Occupy every slot with requests that the engine does not answer."""
    upstream.script = stall
    talks = [gate.connect() for _ in range(MAX_INFLIGHT)]
    for talk in talks:
        talk.ask(chat(stream=True))
    until(lambda: upstream.answering == MAX_INFLIGHT)
    return talks


def unasked(upstream: FakeUpstream) -> int:
    """Return how many connections to the engine have never carried a request."""
    return sum(not hasattr(line, "request") for line in tuple(upstream.lines))


# ---- row 30


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_row_30_who_leaves_the_queue_never_touches_an_engine(
    gate: GateProcess, upstream: FakeUpstream, leave: str
) -> None:
    fill(gate, upstream)
    waiting = gate.connect()
    waiting.ask(chat("waiting"))
    until(lambda: queued(gate) == 1)
    getattr(waiting, leave)()
    until(lambda: queued(gate) == 0)
    assert len(upstream.received) == MAX_INFLIGHT
    until(lambda: not unasked(upstream))  # the watch of the metrics may just be connecting
    gate.hang_up()
    assert gate.ended() == {"client_gone/queued": 1, "client_gone/prefill": MAX_INFLIGHT}


def test_row_30_the_place_of_who_has_left_goes_to_the_next(gate: GateProcess, upstream: FakeUpstream) -> None:
    first, *_others = fill(gate, upstream)
    waiting, next_one = gate.connect(), gate.connect()
    waiting.ask(chat("waiting"))
    until(lambda: queued(gate) == 1)
    next_one.ask(chat("next"))
    until(lambda: queued(gate) == 2)
    waiting.close()
    until(lambda: queued(gate) == 1)
    first.close()
    until(lambda: len(upstream.received) == MAX_INFLIGHT + 1)
    assert b"next" in upstream.received[-1].body


AT_ONCE_S = 10.0
"""Nothing else would end these waits within six times as long."""

# ---- rows 31 and 32


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["close", "reset"])
def test_row_31_a_hang_up_before_the_answer_reaches_the_engine_at_once(
    gate: GateProcess, upstream: FakeUpstream, stream: bool, leave: str
) -> None:
    upstream.script = stall
    talk = gate.connect()
    talk.ask(chat(stream=stream))
    until(lambda: upstream.answering == 1)
    began = time.monotonic()
    getattr(talk, leave)()
    until(lambda: upstream.aborted == 1)
    # Promised within 100 ms; the bound leaves room for a machine that does other things.
    assert time.monotonic() - began < AT_ONCE_S
    assert gate.ended() == {"client_gone/prefill": 1}


@pytest.mark.parametrize("stream", [True, False])
def test_row_32_a_hang_up_within_the_answer_reaches_the_engine_at_once(
    gate: GateProcess, upstream: FakeUpstream, stream: bool
) -> None:
    upstream.script = decode
    talk = gate.connect()
    talk.ask(chat(stream=stream))
    if stream:
        assert talk.head().status == 200
        assert b'"content":"a"' in talk.chunk()
    else:
        # Not by bytes: the health page, asked once a second, has some too.
        until(lambda: upstream.answering == 1)
    began = time.monotonic()
    talk.close()
    until(lambda: upstream.aborted == 1)
    assert time.monotonic() - began < AT_ONCE_S
    assert gate.ended() == {"client_gone/decode" if stream else "client_gone/prefill": 1}


def test_row_32_hang_ups_at_every_moment_leave_nothing_behind(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """Clients that leave at any point of a request's life; each attempt that began has one outcome."""

    async def slow_stream(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM))
        await line.send_slowly(
            answers.chunks(*[answers.event("a")] * 20) + answers.chunks(answers.DONE), 100, 0.001
        )
        await line.send(answers.LAST_CHUNK)

    upstream.script = slow_stream
    for number in range(30):
        talk = gate.connect()
        talk.ask(chat(stream=True))
        time.sleep(number * 0.002)
        talk.reset()
    ended = gate.ended()
    assert sum(ended.values()) <= 30
    assert set(ended) <= {"good", "client_gone/queued", "client_gone/prefill", "client_gone/decode"}


# ---- row 33


@pytest.mark.parametrize("script", [stall, decode])
def test_row_33_a_half_close_counts_as_a_hang_up(
    gate: GateProcess, upstream: FakeUpstream, script: object
) -> None:
    upstream.script = script  # type: ignore[assignment]
    talk = gate.connect()
    talk.ask(chat(stream=True))
    until(lambda: upstream.answering == 1)
    talk.half_close()
    until(lambda: upstream.aborted == 1)
    talk.rest()
    (outcome,) = gate.ended()
    assert outcome.startswith("client_gone/")


# ---- rows 34 and 35


def flood(events: int, event: bytes = answers.event("x" * 1000)) -> object:
    """Return a script that streams as fast as it is read; the last event ends the answer."""
    piece = answers.chunks(event * 50)

    async def script(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM))
        for _ in range(events // 50):
            await line.send(piece)
        await line.send(answers.chunks(answers.event(finish="stop") + answers.DONE) + answers.LAST_CHUNK)

    return script


def test_row_34_a_client_that_stops_reading_200_mb_holds_kilobytes_and_is_cut(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    upstream.script = flood(200_000)  # type: ignore[assignment]
    before = gate.resident_bytes
    gate.forget_peak()
    talk = gate.connect(receive_bytes=4 * KIB)
    talk.ask(chat(stream=True))
    assert talk.head().status == 200
    until(lambda: upstream.aborted == 1)
    assert upstream.sent_bytes < 12_000 * KIB  # most of it in the kernel's buffers between engine and gateway
    assert gate.peak_bytes - before < 1024 * KIB
    assert gate.ended() == {"client_gone/decode": 1}


def test_row_34_a_slow_client_gets_everything(gate: GateProcess, upstream: FakeUpstream) -> None:
    upstream.script = flood(5_000)  # type: ignore[assignment]
    talk = gate.connect(receive_bytes=4 * KIB)
    talk.ask(chat(stream=True))
    assert talk.head().status == 200
    time.sleep(0.3)
    body = b"".join(iter(talk.chunk, b""))
    assert body.count(b"data: ") == 5_002
    assert body.endswith(answers.DONE)
    assert gate.ended() == {"good": 1}


def test_row_35_stalled_readers_cost_a_bound_of_memory_and_nobody_else(
    start: Starter, upstream: FakeUpstream
) -> None:
    """The row says 5,000: `make soak` has so many, for more than ten seconds of CPU; here are a thousand."""
    with stalled.allowed(1_000) as readers:
        gate = start(upstream.url, max_inflight=readers + 1, settings=stalled.SETTINGS)
        found = stalled.measure(gate, upstream, readers)
    assert found.readers >= 300
    assert list(stalled.findings(found)) == []
    until(lambda: upstream.aborted == readers)


# ---- row 37


def test_row_37_who_cannot_wait_is_refused_early_instead_of_dying_in_the_queue(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """The SDK tells its read timeout; a wait that is longer is refused at the door, at once."""

    async def slow(line: ScriptedConnection) -> None:
        await asyncio.sleep(0.3)
        await line.send(answers.whole(answers.completion("slow", output_tokens=20)))

    upstream.script = slow
    talks = [gate.connect() for _ in range(MAX_INFLIGHT)]
    for talk in talks:
        talk.ask(chat())
    for talk in talks:
        assert talk.answer().status == 200
    fill(gate, upstream)
    waiting = [gate.connect() for _ in range(30)]
    for talk in waiting:
        talk.ask(chat())
    until(lambda: queued(gate) == 30)
    impatient = gate.connect()
    began = time.monotonic()
    impatient.ask(chat(), "x-stainless-read-timeout: 0.2")
    answer = impatient.answer()
    assert time.monotonic() - began < AT_ONCE_S
    assert answer.status == 503
    assert answer.headers["x-millgate-reason"] in {"too_late", "expired"}
    assert len(upstream.received) == 2 * MAX_INFLIGHT


def test_row_37_the_openai_sdk_hears_a_refusal_before_its_own_timeout(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    fill(gate, upstream)
    client = OpenAI(base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="x", timeout=3.0, max_retries=0)
    with pytest.raises((InternalServerError, APITimeoutError)) as raised:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    client.close()
    assert isinstance(raised.value, InternalServerError), "it timed out in the queue"
    assert raised.value.status_code == 503
