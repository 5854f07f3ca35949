"""Mutated answers of an engine: the gate must not hang, die, answer 500, or keep anything when they are over.

Each answer comes from the seeds of this page, changed by a few deterministic mutations, and is said whole, in pieces,
early (before anything was asked), late (behind an answer that was whole), or is broken off. Clients ask on every surface
and read to the end. After every batch nothing is in flight and no byte of a body is queued.
"""

import asyncio
import base64
import contextlib
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.findings import Finding
from faults.mutation import mutated
from faults.process import GateProcess, until
from faults.talk import Talk, chat, request
from servers.line.stand import upload

BATCH = 64
JOBS = 6
"""Of each batch for the line door."""
HUNG_AFTER_S = 12.0
"""A client allows 2 s, a silent engine is given up after 1 s, and a machine may be busy."""
WITH_LINE = {"line.port": "0"}
PLACES_WITHIN_S = 75.0
"""The longest hint is 60 s, and a place is kept a tenth longer."""
_ALLOWED = "x-millgate-deadline-ms: 2000"

STREAM = answers.head(200, answers.EVENT_STREAM)
STRAY = answers.whole(answers.completion("stray"))
_MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_RESPONSE = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1",'
    b'"usage":{"input_tokens":5,"output_tokens":2}}}\n\n'
)
_EMBEDDING = (
    b'{"object":"list","data":[{"index":0,"embedding":[0.1]}],"usage":{"prompt_tokens":5,"total_tokens":5}}'
)
_DEEP = b'{"id":"a","choices":[],"usage":{"x":%b}}' % (b"[" * 3000 + b"]" * 3000)
_NO_TEXT = b'{"id":"resp_\xff","status":"completed","usage":{"input_tokens":5,"output_tokens":2}}'
HOSTILE: Sequence[bytes] = [
    answers.whole(_DEEP),
    answers.whole(_NO_TEXT),
    *(
        STREAM + answers.chunks(b"data: %b\n\n" % body, answers.DONE) + answers.LAST_CHUNK
        for body in (_DEEP, _NO_TEXT)
    ),
    STREAM + answers.chunks(_RESPONSE.replace(b"resp_1", b"resp_\xff")) + answers.LAST_CHUNK,
    STREAM + answers.chunks(answers.stream("a") + answers.stream("b")) + answers.LAST_CHUNK,
    answers.whole(answers.completion("mine")) + STRAY,
]
"""Well framed, so that it is read to the end."""
SEEDS: Sequence[bytes] = [
    *HOSTILE,
    answers.whole(answers.completion("h\u00e9llo")),
    answers.whole(_EMBEDDING),
    answers.whole(b'{"id":"resp_1","status":"completed","usage":{"input_tokens":5,"output_tokens":2}}'),
    answers.whole(answers.completion("x" * 70_000)),
    answers.head(200, answers.JSON) + answers.chunks(answers.completion("chunked")) + answers.LAST_CHUNK,
    *(answers.whole(answers.error(status), status) for status in (400, 404, 429, 500, 503)),
    *(
        STREAM + answers.chunks(*events.split(b"\n\n")[:-1], b"\n\n") + answers.LAST_CHUNK
        for events in (answers.stream("a", "b"), _MESSAGE, _RESPONSE)
    ),
    *(
        STREAM + answers.chunks(events) + answers.LAST_CHUNK
        for events in (answers.stream("a", "b", usage=True), _MESSAGE, _RESPONSE)
    ),
    STREAM
    + answers.chunks(answers.stream("a"), b"data: " + answers.error(503) + b"\n\n")
    + answers.LAST_CHUNK,
    answers.head(200, answers.EVENT_STREAM, chunked=False) + answers.stream("a", "b"),
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answers.whole(answers.completion("hinted")),
    b"HTTP/1.1 204 No Content\r\n\r\n",
]
TOKENS: Sequence[bytes] = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\n\n",
    b"\x00",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b" ",
    b":",
    b",",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 099 A\r\n\r\n",
    b"HTTP/1.1 600 B\r\n",
    b"HTTP/1.1 999 C\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 304 N\r\n\r\n",
    b"content-length: 5\r\n",
    b"content-length: 0\r\n",
    b"Content_Length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip\r\n",
    b"connection: close\r\n",
    b"connection: x-a\r\n",
    b"proxy-connection: close\r\n",
    b"content-encoding: gzip\r\n",
    b"retry-after: -1\r\n",
    b"retry-after: " + b"9" * 400 + b"\r\n",
    b"retry-after: 999999999999999\r\n",
    b"x: " + b"y" * 9000 + b"\r\n",
    b"[" * 3000,
    b'{"a":' * 3000,
    b'"usage":{"x":' + b"[" * 3000,
    b'"id":"\xff",',
    b'"usage":{"prompt_tokens":-5,"completion_tokens":1e400},',
    b'"finish_reason":"abort"',
    answers.DONE,
    answers.event("more"),
    b"data: " + answers.error(429) + b"\n\n",
    b": comment\n\n",
    b"data: {\n\n",
    STRAY,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
)
ASKED: Sequence[bytes] = [
    *(request(chat(stream=stream), _ALLOWED, "Connection: close") for stream in (True, True, False)),
    *(
        request(body, _ALLOWED, "Connection: close", path=path)
        for path, body in (
            ("/v1/embeddings", b'{"model":"m","input":"hi"}'),
            ("/v1/rerank", b'{"model":"m","query":"hi","documents":["a"]}'),
            ("/v1/responses", b'{"model":"m","input":"hi"}'),
            ("/v1/responses", b'{"model":"m","input":"hi","stream":true}'),
            ("/v1/messages", chat(max_tokens=9, stream=True)),
            ("/v1/messages", chat(max_tokens=9)),
            ("/v1/completions", b'{"model":"m","prompt":"hi"}'),
        )
    ),
    request(b"", "Connection: close", path="/v1/models", method="GET", kind=""),
]


_JSON = re.compile(rb"\s*[{\[].*[}\]]\s*\Z", re.DOTALL)
"""What an answer that is no stream begins and ends with."""


class AnswerRun:
    """One gate whose engine says anything; `findings` are what must not be, each with the answers of its batch."""

    def __init__(self, gate: GateProcess, upstream: FakeUpstream, dice: random.Random) -> None:
        self._gate = gate
        self._upstream = upstream
        self._dice = dice
        self._said: list[bytes] = []
        self.sent = 0
        self.statuses: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.is_over = False

    def batch(self) -> None:
        """Let a few clients ask, and look at what came of the answers."""
        self._said = []
        self._upstream.script = self._say
        self._upstream.on_connect = self._say_early
        asked = [self._dice.choice(ASKED) for _ in range(BATCH)]
        talks = [self._gate.connect() for _ in asked]
        for talk, each in zip(talks, asked, strict=True):
            talk.try_send(each)
        jobs = [self._begin_job(number) for number in range(JOBS)]
        for talk in talks:
            self._listen(talk)
        self._account_for(jobs)
        self.sent += len(asked)
        self._gate.hang_up()
        self._upstream.on_loop(self._upstream.cut)
        self.account()

    # ---- the engine's side

    def _answer(self) -> bytes:
        answer = mutated(self._dice.choice(SEEDS), self._dice, SEEDS, TOKENS, most_changes=2)
        self._said.append(answer)
        return answer

    async def _say_early(self, line: ScriptedConnection) -> None:
        """Now and then answer a request that has not come yet."""
        if self._dice.random() < 0.05:
            await line.send(self._answer())

    async def _say(self, line: ScriptedConnection) -> None:
        answer = self._answer()
        size = self._dice.choice(
            (len(answer) or 1, len(answer) or 1, 1 + len(answer) // 3, 1 + len(answer) // 40)
        )
        await line.send_slowly(answer, size)
        match self._dice.randrange(8):
            case 0:
                line.close()
            case 1:
                line.reset()
            case 2:
                await line.stall()
            case 3:
                await asyncio.sleep(0.05)  # late: behind an answer that was whole
                await line.send(self._answer())

    # ---- the clients' side

    def _begin_job(self, number: int) -> socket.socket:
        port = int(self._gate.ready["line_address"].rpartition(":")[2])
        line = socket.create_connection(("127.0.0.1", port), HUNG_AFTER_S)
        payload = chat(f"job {number}", stream=number < JOBS // 2)
        line.sendall(upload(payload, f"J{number}", 4096, want_result=bool(number % 3)))
        return line

    def _account_for(self, jobs: Sequence[socket.socket]) -> None:
        """See that a job whose client has heard no end still waits or works: signs of life alone are no end."""
        waiting = list(jobs)

        def is_each_at_work() -> bool:
            waiting[:] = [line for line in waiting if b"conn.outcome" not in _heard(line)]
            return len(waiting) <= _at_work(self._gate)

        try:
            until(is_each_at_work, what="jobs that nothing works on hear no end")
        except AssertionError as error:
            self.findings.append(Finding(str(error), tuple(self._said)))
        for number, line in enumerate(jobs):
            if (found := _looks_whole(_heard(line), is_stream=number < JOBS // 2)) is not None:
                self.findings.append(Finding(f"a job is done with {found[-200:]!r}", tuple(self._said)))
            line.close()

    def _listen(self, talk: Talk) -> None:
        try:
            said = talk.rest(HUNG_AFTER_S)
        except AssertionError as error:
            self.findings.append(Finding(f"a client hears no end: {error}", tuple(self._said)))
            return
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", said)
        self.statuses[found[1].decode() if found else "closed"] += 1
        if found is None or b'"internal_error"' in said:
            self.findings.append(Finding(f"answered {said[:200]!r}", tuple(self._said)))

    def account(self) -> None:
        """See whether the gate is alive and has given everything back."""
        gate, said = self._gate, tuple(self._said)
        if not gate.alive or "uncaught failure" in gate.errors():
            self._end(Finding(f"the gate has died or nearly so: {gate.errors()[-3000:]}", said))
            return
        try:
            gate.ended()
            until(lambda: queued_bytes(gate) == 0, what="bodies are queued while nothing is in flight")
        except AssertionError as error:
            self._end(Finding(str(error), said))

    def _end(self, finding: Finding) -> None:
        """Give up a gate that is of no use any more."""
        self.is_over = True
        self.findings.append(finding)


def _heard(line: socket.socket) -> bytes:
    """Return all that has been said on this connection, and leave it there; a connection that is cut has an end too."""
    try:
        return line.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT) or b"conn.outcome"
    except BlockingIOError:
        return b""
    except ConnectionError:
        return b"conn.outcome"


def _looks_whole(said: bytes, *, is_stream: bool) -> bytes | None:
    """Return the result of a job that is done although no reader could take that for a whole answer, None for all others."""
    frames = [json.loads(line) for line in said.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    results = [each["payload_chunk"]["bytes_b64"] for each in frames if each.get("payload_chunk")]
    if not results or frames[-1]["status"] != "done":
        return None
    result = b"".join(map(base64.b64decode, results))
    if is_stream and not _JSON.match(result):
        return None if re.search(rb'\[DONE\]|"finish_reason"\s*:\s*"', result) else result
    return None if _JSON.match(result) else result


def _at_work(gate: GateProcess) -> int:
    """Return how many attempts run or wait."""
    return sum(int(lane["queued"]) + int(lane["running"]) for lane in gate.state()["lanes"])


def queued_bytes(gate: GateProcess) -> float:
    """Return how many bytes of bodies the gate counts as queued."""
    return _gauge(gate, "millgate_door_body_bytes")


def places(gate: GateProcess) -> float:
    """Return how many refused clients the gate expects back."""
    return _gauge(gate, "millgate_appointments")


def _gauge(gate: GateProcess, name: str) -> float:
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", gate.ask("/metrics")[1].decode(), re.MULTILINE)
    assert values, f"no {name}"
    return sum(map(float, values))


def keeps_places(gate: GateProcess) -> Iterator[Finding]:
    """Yield a finding if appointments outlive the longest hint."""
    try:
        until(lambda: places(gate) == 0, PLACES_WITHIN_S)
    except AssertionError:
        yield Finding(f"{places(gate):g} places are kept beyond the longest hint")


def goes_on_listening(gate: GateProcess, upstream: FakeUpstream) -> Iterator[Finding]:
    """Yield a finding if an engine that goes on behind its terminal event is listened to for as long as it does."""

    async def chatter(line: ScriptedConnection) -> None:
        await line.send(STREAM + answers.chunks(answers.stream("a")))
        with contextlib.suppress(ConnectionError):
            while True:
                await line.send(answers.chunks(b": still here\n\n"))
                await asyncio.sleep(0.05)

    # No engine speaks before it is asked any more.
    upstream.script, upstream.on_connect = chatter, None
    talk = gate.connect()
    talk.send(request(chat(stream=True), _ALLOWED))
    if (head := talk.head()).status != 200:
        yield Finding(f"after all an engine that answers well is answered {head.status}: {head.headers}")
        return
    by = time.monotonic() + HUNG_AFTER_S
    while talk.chunk():
        if time.monotonic() > by:
            yield Finding(f"an engine that goes on behind its end is listened to for {HUNG_AFTER_S:g} s")
            return


def go_on(run: AnswerRun, until_s: float) -> None:
    """Run batches until this time, or until the gate is of no use."""
    while time.monotonic() < until_s and not run.is_over:
        run.batch()
