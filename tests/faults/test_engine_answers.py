"""Rows 44-50: redirects, refusals, errors within streams, other kinds of answers, full and silent engines."""

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.asking import BEGUN, STREAM_HEAD, ask, broken_off, failed, say
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import chat
from millgate.dialects.sse import MOST_EVENT_BYTES

# ---- row 44


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
@pytest.mark.parametrize("stream", [True, False])
def test_row_44_a_redirect_is_not_followed(
    gate: GateProcess, upstream: FakeUpstream, status: int, stream: bool
) -> None:
    with FakeUpstream() as decoy:
        location = f"location: {decoy.url}/latest/meta-data/"
        upstream.script = say(answers.whole(b"", status, answers.JSON, location))
        answer = ask(gate, stream=stream)
        failed(answer, 502, "upstream_protocol_error")
        assert "location" not in answer.headers
        assert decoy.connected == 0
    assert gate.ended() == {"engine_failed/protocol": 1}


# ---- a status that is none


@pytest.mark.parametrize("status", [0, 99, 600, 777, 999])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_of_a_status_that_no_client_knows_is_502(
    gate: GateProcess, upstream: FakeUpstream, status: int, stream: bool
) -> None:
    upstream.script = say(
        answers.whole(answers.error(500), status).replace(b" %d " % status, b" %03d " % status, 1)
    )
    failed(ask(gate, stream=stream), 502, "upstream_protocol_error")
    assert gate.ended() == {"engine_failed/protocol": 1}


# ---- row 45 (the limit's part belongs to the adaptive limits)


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("hint", "passed_on"),
    [("7", 7), ("0", 1), ("86400", 60), ("0.2", 1), ("soon", None), ("-5", None), (None, None)],
)
def test_row_45_a_refusal_of_the_engine_is_passed_on_with_its_hint_clamped(
    gate: GateProcess, upstream: FakeUpstream, status: int, hint: str | None, passed_on: int | None
) -> None:
    lines = [] if hint is None else [f"retry-after: {hint}"]
    upstream.script = say(
        answers.whole(answers.error(status), status, answers.JSON, "x-should-retry: true", *lines)
    )
    answer = ask(gate)
    assert (answer.status, answer.error["message"]) == (status, "scripted error")
    if passed_on is not None:
        assert int(answer.headers["retry-after"]) == passed_on
    elif "retry-after" in answer.headers:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert gate.ended() == {"engine_failed/refused": 1}


# ---- row 46

EARLY_ERROR = b"data: " + answers.error(503, "too many queued") + b"\n\n"


@pytest.mark.parametrize("before", [b"", b": ping\n\n", b"\n\n", b": a\r\n\r\n: b\n\n"])
@pytest.mark.parametrize("piece_bytes", [1, 10_000])
def test_row_46_an_error_as_the_first_event_becomes_a_real_status(
    gate: GateProcess, upstream: FakeUpstream, before: bytes, piece_bytes: int
) -> None:
    async def script(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD)
        events = before + EARLY_ERROR + answers.DONE
        for begin in range(0, len(events), piece_bytes):
            await line.send(answers.chunks(events[begin : begin + piece_bytes]))
        await line.send(answers.LAST_CHUNK)

    upstream.script = script
    answer = ask(gate, stream=True)
    assert (answer.status, answer.error["message"]) == (503, "too many queued")
    assert answer.headers["content-type"] == "application/json"
    assert gate.ended() == {"engine_failed/refused": 1}


def test_row_46_a_429_in_the_first_event_becomes_a_429(gate: GateProcess, upstream: FakeUpstream) -> None:
    upstream.script = say(STREAM_HEAD + answers.chunks(b"data: " + answers.error(429) + b"\n\n"), end="stall")
    assert ask(gate, stream=True).status == 429
    until(lambda: upstream.aborted == 1)


def test_row_46_an_error_event_within_a_stream_is_passed_on_and_the_stream_cut(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    async def late_error(line: ScriptedConnection) -> None:
        await line.send(BEGUN)
        await line.wait(0.1)  # in one segment with the first events it would still become a status
        await line.send(answers.chunks(EARLY_ERROR, answers.DONE) + answers.LAST_CHUNK)

    upstream.script = late_error
    answer = ask(gate, stream=True)
    assert answer.last_event["error"]["message"] == "too many queued"
    assert not answer.whole
    (outcome,) = gate.ended()
    assert outcome.startswith("engine_failed/")


# ---- what comes behind the end

SECOND = answers.event("of another answer")


@pytest.mark.parametrize("behind", [SECOND, EARLY_ERROR, SECOND + answers.DONE, b"data: {\n\n"])
@pytest.mark.parametrize("read_apart", [True, False])
def test_events_behind_the_end_of_a_stream_are_cut_and_the_connection_is_closed(
    gate: GateProcess, upstream: FakeUpstream, behind: bytes, read_apart: bool
) -> None:
    mine = answers.stream("a", "b")

    async def talkative(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD + answers.chunks(answers.event("")))
        await line.send(answers.chunks(mine[len(answers.event("")) :], *[] if read_apart else [behind]))
        if read_apart:
            await line.wait(0.1)
            await line.send(answers.chunks(behind))
        await line.stall()

    upstream.script = talkative
    answer = ask(gate, stream=True)
    assert (answer.body, answer.whole) == (mine, True)
    until(lambda: upstream.aborted == 1)
    assert gate.ended() == {"good": 1}


@pytest.mark.parametrize("behind", [b"\n\n", b": bye\n\n", answers.DONE])
def test_what_engines_add_behind_the_end_of_a_stream_is_passed_on(
    gate: GateProcess, upstream: FakeUpstream, behind: bytes
) -> None:
    events = answers.stream("a", "b") + behind
    upstream.script = say(STREAM_HEAD + answers.chunks(events) + answers.LAST_CHUNK)
    answer = ask(gate, stream=True)
    assert (answer.body, answer.whole) == (events, True)
    assert gate.ended() == {"good": 1}


def test_a_second_answer_in_the_same_read_is_not_delivered_as_part_of_the_first(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    first, second = answers.completion("mine"), answers.whole(answers.completion("stray"))
    upstream.script = say(answers.whole(first) + second)
    connected = upstream.connected
    for _again in range(2):
        answer = ask(gate)
        assert (answer.status, answer.body) == (200, first)
    assert upstream.connected >= connected + 1
    assert gate.ended() == {"good": 2}


# ---- row 47


@pytest.mark.parametrize(
    "answer",
    [
        answers.whole(b"<html>login</html>", 200, "text/html"),
        answers.whole(b"hello", 200, "text/plain"),
        answers.whole(b"", 200, "application/octet-stream"),
        answers.whole(b"{}", 200, "").replace(b"content-type: \r\n", b""),
        answers.whole(b"", 204, answers.JSON).replace(b"content-length: 0\r\n", b""),
    ],
    ids=["html", "text", "binary", "untyped", "no content"],
)
@pytest.mark.parametrize("stream", [True, False])
def test_row_47_an_answer_of_another_kind_is_502(
    gate: GateProcess, upstream: FakeUpstream, answer: bytes, stream: bool
) -> None:
    upstream.script = say(answer)
    failed(ask(gate, stream=stream), 502, "upstream_protocol_error")
    assert gate.ended() == {"engine_failed/protocol": 1}


@pytest.mark.parametrize("body", [b"<html>", b"not json", b'{"choices": [', b""])
def test_row_47_json_that_is_none_is_never_counted_as_good(
    gate: GateProcess, upstream: FakeUpstream, body: bytes
) -> None:
    upstream.script = say(answers.whole(body))
    failed(ask(gate), 502, "upstream_protocol_error")
    assert gate.ended() == {"engine_failed/protocol": 1}


# ---- row 48


def test_row_48_an_endless_line_in_a_stream_ends_at_a_bound(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    async def endless(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD + answers.chunks(answers.event("a")))
        piece = answers.chunks(b"data: " + b"x" * 65_536)
        for _ in range(1600):
            await line.send(piece)

    upstream.script = endless
    before = gate.resident_bytes
    gate.forget_peak()
    cpu_s = gate.cpu_s
    broken_off(ask(gate, stream=True))
    assert gate.peak_bytes - before < 2 * MOST_EVENT_BYTES
    assert gate.cpu_s - cpu_s < 1.0
    assert gate.ended() == {"engine_failed/protocol": 1}


def test_row_48_a_stream_in_pieces_of_one_byte_arrives_unchanged(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    events = answers.stream("a", "b", "c")

    async def bytewise(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD)
        await line.send_slowly(b"".join(answers.chunks(bytes((byte,))) for byte in events), 6)
        await line.send(answers.LAST_CHUNK)

    upstream.script = bytewise
    answer = ask(gate, stream=True)
    assert (answer.body, answer.whole) == (events, True)
    assert gate.ended() == {"good": 1}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_row_48_every_line_end_of_the_standard_is_understood(
    gate: GateProcess, upstream: FakeUpstream, line_end: bytes
) -> None:
    events = answers.stream("a", "b").replace(b"\n", line_end)
    upstream.script = say(STREAM_HEAD + answers.chunks(events) + answers.LAST_CHUNK)
    answer = ask(gate, stream=True)
    assert (answer.body, answer.whole) == (events, True)
    assert gate.ended() == {"good": 1}


def test_row_48_a_large_event_costs_linear_time(gate: GateProcess, upstream: FakeUpstream) -> None:
    """Half a megabyte in pieces of a hundred bytes: looked at once, not once per piece."""
    large = answers.event("x" * 500_000)

    async def pieces(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD)
        framed = b"".join(answers.chunks(large[at : at + 100]) for at in range(0, len(large), 100))
        await line.send(framed)
        await line.send(answers.chunks(answers.event(finish="stop") + answers.DONE) + answers.LAST_CHUNK)

    upstream.script = pieces
    cpu_s = gate.cpu_s
    assert ask(gate, stream=True).whole
    assert gate.cpu_s - cpu_s < 1.0


# ---- row 49 (of several engines so far only their bounds; ejection and probation come with their health)


def test_row_49_when_every_engine_is_full_the_queue_is_bounded(
    start: Starter, upstream: FakeUpstream
) -> None:
    upstream.script = say(end="stall")
    with FakeUpstream(say(end="stall")) as other:
        gate = start(upstream.url, other.url, max_inflight=2, settings={"lanes.*.max_queue": "3"})
        talks = [gate.connect() for _ in range(20)]
        for talk in talks:
            talk.ask(chat(stream=True))
        until(lambda: sum(sum(lane["yields"].values()) for lane in gate.state()["lanes"]) == 13)
        refused = [talk.answer() for talk in talks if talk.heard(0.01)]
        assert [answer.status for answer in refused] == [503] * 13
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert (len(upstream.received), len(other.received)) == (2, 2)
        gate.hang_up()
        ended = gate.ended()
        assert (ended["client_gone/prefill"], ended["client_gone/queued"]) == (4, 3)
        assert sum(count for cause, count in ended.items() if cause.startswith("yielded/")) == 13


# ---- row 50

GAUGES: dict[str, bytes] = {
    "renamed": b"engine_requests_active 3\n",
    "NaN": b"vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n",
    "infinite or negative": b"vllm:num_requests_running +Inf\nvllm:num_requests_waiting -1\n",
    "no numbers": b"vllm:num_requests_running many\nvllm:num_requests_waiting {}\n",
    "binary": bytes(range(256)) * 10,
    "huge": b"# HELP x y\n" * 1_000_000,
    "a line without an end": b"vllm:num_requests_running" + b"0" * 1_000_000,
}


@pytest.mark.parametrize("name", GAUGES)
def test_row_50_gauges_that_cannot_be_read_are_unknown_and_nothing_else_changes(
    gate: GateProcess, upstream: FakeUpstream, name: str
) -> None:
    upstream.on_scrape = say(answers.whole(GAUGES[name], 200, "text/plain"))
    until(lambda: upstream.scrapes >= 1)
    assert ask(gate).status == 200
    engine = gate.state()["engines"][0]
    assert engine["up"]
    assert engine["seen_running"] is None
    assert engine["seen_waiting"] is None


def test_row_50_gauges_go_stale_when_the_page_stops_answering(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    page = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
    upstream.on_scrape = say(answers.whole(page, 200, "text/plain"))
    until(lambda: _seen(gate) == (2, 1))
    upstream.on_scrape = say(end="stall")
    until(lambda: _seen(gate) == (None, None))
    assert ask(gate).status == 200


def _seen(gate: GateProcess) -> tuple[int | None, int | None]:
    engine = gate.state()["engines"][0]
    return engine["seen_running"], engine["seen_waiting"]
