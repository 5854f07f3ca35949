"""Mutated requests, then mutated answers, against the real gateway: it must not crash, hang, leak or execute twice.

    make fuzz [SECONDS=300] [SEED=1]

Every payload comes from the corpus of this folder, changed by a few deterministic mutations, and is sent whole, in
random pieces, or byte by byte. What may reach the engine is bounded by a second, independent reading of the same
bytes (`strictly_readable`): a request, or a body, that a strict reader does not see must not be executed. After every
batch the gateway must be idle; at the end its descriptors and its memory are looked at. What was sent when something
went wrong is saved, one file each, and the exit code is 1; the same seed sends the same payloads again.
"""

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lab.upstream import FakeUpstream

from faults import corpus
from faults.findings import Finding, save
from faults.fuzz_answers import WITH_LINE, AnswerRun, go_on, goes_on_listening, keeps_places
from faults.mutation import mutated
from faults.process import GateProcess, until
from faults.talk import Talk

BATCH = 48
WARM_BATCHES = 20
MOST_FINDINGS = 20
"""Then it is over before its time: each costs a wait."""
HUNG_AFTER_S = 8.0
"""A head and a body may take a second each, lingering another; beyond eight a connection hangs."""

ANSWER_WITHIN_S = 0.05
"""What is going to be answered at once is answered by then; the others wait for more bytes."""

MOST_GROWTH_BYTES = 12 * 1024 * 1024
"""The caches of header lines fill with mutated ones: 8 MB within 60,000 payloads, and flat from there on."""

REPEATED = [
    b"".join(corpus.post(b"Content-Length: %d" % len(body), body=body) for body in bodies)
    for bodies in (
        [corpus.BODY] * 3,
        [corpus.BODY, corpus.BODY[:-1] + b" }", corpus.BODY],
        [corpus.BODY, b"{}" * 60, b"{}"],
    )
]
"""The same head again and again with other lengths: what a server may be tempted to recognise without reading."""

SURFACES = [
    *(
        corpus.post(b"Content-Length: %d" % len(body), body=body, opening=b"POST %b HTTP/1.1" % path)
        for path, body in (
            (b"/pooling", b'{"model":"m","input":["one","two"]}'),
            (b"/v2/embed", b'{"model":"m","texts":["one","two"],"input_type":"search_query"}'),
            (
                b"/v1/chat/completions/batch",
                b'{"model":"m","messages":[[{"role":"user","content":"one"}],[{"role":"user","content":"two"}]]}',
            ),
            (b"/v1/responses", b'{"model":"m","input":"go on","previous_response_id":"resp_1"}'),
            (b"/v1/responses", b'{"model":"m","input":"go on","conversation":{"id":"conv_1"}}'),
            (b"/v1/responses", b'{"model":"m","input":"go on","conversation":{}}'),
            (b"/v1/messages", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'),
            (b"/v1/rerank", b'{"model":"m","documents":["a"]}'),
        )
    ),
    corpus.get(b"Host: gate", opening=b"GET /health HTTP/1.1"),
    corpus.get(b"Host: gate", opening=b"HEAD /health HTTP/1.1"),
    corpus.get(b"Host: gate", opening=b"GET /ping HTTP/1.1"),
    corpus.get(b"Host: gate", opening=b"OPTIONS %b HTTP/1.1" % corpus.PATH),
    corpus.get(b"Host: gate", opening=b"OPTIONS * HTTP/1.1"),
    corpus.post(
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
        b"Content-Length: %d" % len(corpus.BODY),
        body=corpus.BODY,
    ),
]
"""Paths and methods beside chat completions and the list of models, one request each."""

CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n"
SEEDS: Sequence[bytes] = (
    REPEATED * 16
    + [
        corpus.post(b"Transfer-Encoding: chunked", body=CHUNKED % (len(body), body)) + follower
        for body in (corpus.BODY, corpus.BODY[:-1])
        for follower in (corpus.GOOD, corpus.SMUGGLED, corpus.post(b"Content-Length: 1", body=b"}"))
    ]
    * 8
    + [case.payload for case in corpus.REFUSED if len(case.payload) < 20_000]
    + [payload for odd in corpus.ODD for payload in [odd.payload] * 8]
    + SURFACES * 8
)
TOKENS: Sequence[bytes] = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\x00",
    b" ",
    b"\t",
    b"\x0b",
    b"\xff",
    b":",
    b";",
    b",",
    b"0\r\n\r\n",
    b"0",
    b"-1",
    b"+",
    b"0x",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: gate\r\n",
    b"Host: a\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"chunked",
    b"Content-Type: application/json\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n\r\n",
    corpus.SMUGGLED,
    b"5\r\nhello\r\n",
    b"{}",
    b"a" * 300,
)


# ---- the second reading

_HEAD = re.compile(
    rb"(?:\r\n)*(GET|HEAD|OPTIONS|POST) (/[!\"$-~]*) HTTP/1\.[01]\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")


class Readable(NamedTuple):
    """One request as the strict reader sees it."""

    method: bytes
    target: bytes
    body: bytes


def strictly_readable(data: bytes) -> list[Readable]:
    """Return the well-formed requests at the beginning of these bytes: all that may be executed, as they may be."""
    at, found = 0, []
    while (head := _HEAD.match(data, at)) is not None:
        values: dict[bytes, list[bytes]] = {}
        for line in head[3].split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            values.setdefault(name.lower(), []).append(value.strip(b" \t"))
        body = _body(data, head.end(), values)
        if body is None or len(values.get(b"host", [])) != 1:
            break
        # The list of models is asked for without whatever body came with the question.
        found.append(Readable(head[1], head[2], body[0] if head[1] == b"POST" else b""))
        at = body[1]
    return found


def _body(data: bytes, at: int, values: dict[bytes, list[bytes]]) -> tuple[bytes, int] | None:
    """Return the body and where it ends; None when there is no way, or more than one, to read it."""
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if codings:
        single = [each.lower() for each in codings] == [b"chunked"] and not lengths
        return _chunked_body(data, at) if single else None
    if not lengths:
        return b"", at
    if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,12}", lengths[0]):
        return None
    end = at + int(lengths[0])
    return (data[at:end], end) if end <= len(data) else None


def _chunked_body(data: bytes, at: int) -> tuple[bytes, int] | None:
    body = b""
    while (chunk := _CHUNK.match(data, at)) is not None:
        size = int(chunk[1], 16)
        if size == 0:
            trailers = _TRAILERS.match(data, chunk.end())
            return (body, trailers.end()) if trailers is not None else None
        at = chunk.end() + size + 2
        if data[at - 2 : at] != b"\r\n":
            return None
        body += data[at - 2 - size : at - 2]
    return None


# ---- the run


class Run:
    """One gateway under fire; `findings` are what must not be."""

    def __init__(self, gate: GateProcess, upstream: FakeUpstream, dice: random.Random) -> None:
        self._gate = gate
        self._upstream = upstream
        self._dice = dice
        self.sent = 0
        self.statuses: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.is_over = False

    def batch(self) -> None:
        """Send one batch and look at what came of it."""
        payloads = [mutated(self._dice.choice(SEEDS), self._dice, SEEDS, TOKENS) for _ in range(BATCH)]
        self._upstream.received.clear()
        with contextlib.suppress(
            ConnectionError
        ):  # who does not accept any more has died, and that is seen below
            self._talk(payloads)
        self._gate.hang_up()
        self.sent += BATCH
        self._account(payloads)
        self.is_over = self.is_over or len(self.findings) > MOST_FINDINGS

    def _talk(self, payloads: list[bytes]) -> None:
        talks = [self._gate.connect() for _ in payloads]
        for talk, payload in zip(talks, payloads, strict=True):
            self._send(talk, payload)
        self._leave(talks)
        for talk, payload in zip(talks, payloads, strict=True):
            self._listen(talk, payload)

    def _send(self, talk: Talk, payload: bytes) -> None:
        size = self._dice.choice((len(payload) or 1, len(payload) or 1, 1 + len(payload) // 3, 7))
        if size == 7 and len(payload) > 600:
            size = 200
        for begin in range(0, len(payload), size):
            talk.try_send(payload[begin : begin + size])

    def _leave(self, talks: list[Talk]) -> None:
        """Give every client a moment for its answers; then nearly all say that they are done, a few just wait."""
        answered_by = time.monotonic() + ANSWER_WITHIN_S
        for talk in talks:
            talk.heard(answered_by - time.monotonic())
        for talk in talks:
            if self._dice.random() < 0.99:
                with contextlib.suppress(OSError):
                    talk.half_close()

    def _listen(self, talk: Talk, payload: bytes) -> None:
        try:
            said = talk.rest(HUNG_AFTER_S)
        except AssertionError:
            self.findings.append(Finding("hung", [payload]))
            return
        statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", said)
        self.statuses.update(status.decode() for status in statuses or [b"closed"])
        if b"500" in statuses or (said and not said.startswith(b"HTTP/1.1 ")):
            self.findings.append(Finding(f"answered {said[:200]!r}", [payload]))

    def _account(self, payloads: list[bytes]) -> None:
        if not self._gate.alive or "uncaught failure" in self._gate.errors():
            self._end(f"the gateway has died or nearly so: {self._gate.errors()[-3000:]}", payloads)
            return
        if _surplus(payloads, self._upstream):
            self._isolate(payloads)
        try:
            self._gate.ended()
        except AssertionError as error:
            self._end(str(error), payloads)

    def _end(self, text: str, payloads: list[bytes]) -> None:
        """Give up a gateway that is of no use any more."""
        self.is_over = True
        self.findings.append(Finding(text, payloads))

    def _isolate(self, payloads: list[bytes]) -> None:
        """Send each payload of a batch alone, to find the one that executes more than can be read in it."""
        for payload in payloads:
            self._upstream.received.clear()
            talk = self._gate.connect()
            talk.try_send(payload)
            talk.heard(0.2)
            with contextlib.suppress(OSError):
                talk.half_close()
            talk.rest(HUNG_AFTER_S)
            if surplus := _surplus([payload], self._upstream):
                self.findings.append(Finding(f"executed, but not readable: {surplus}", [payload]))


def _surplus(payloads: list[bytes], upstream: FakeUpstream) -> "Counter[Readable]":
    """Return what has reached the engine and cannot be read in the payloads."""
    readable = Counter(each for payload in payloads for each in strictly_readable(payload))
    return Counter(Readable(each.method, each.target, each.body) for each in upstream.received) - readable


def main() -> int:
    """Fuzz for `--seconds`; return 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--save", type=Path, default=Path("build/fuzz"), help="folder for what did harm (build/fuzz)"
    )
    asked = parser.parse_args()
    sys.stdout.write(f"seed {asked.seed}\n")
    sys.stdout.flush()
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as directory:
        for fuzz in (_fuzz, _fuzz_answers):
            with FakeUpstream() as upstream:
                gate = GateProcess(
                    upstream.url,
                    errors=Path(directory) / f"{fuzz.__name__}.txt",
                    max_inflight=BATCH,
                    settings=WITH_LINE,
                )
                try:
                    run = fuzz(gate, upstream, asked.seconds / 2, asked.seed)
                finally:
                    gate.stop()
            _show(run, asked.seed)
            findings += run.findings
    save(findings, asked.save, asked.seed)
    return 1 if findings else 0


def _fuzz(gate: GateProcess, upstream: FakeUpstream, seconds: float, seed: int) -> Run:
    """Send mutated requests."""
    run = Run(gate, upstream, random.Random(seed))
    until_s = time.monotonic() + seconds
    _go_on(run, lambda: run.sent < WARM_BATCHES * BATCH)
    _hold(gate, upstream, run, partial(_go_on, run, lambda: time.monotonic() < until_s))
    return run


def _fuzz_answers(gate: GateProcess, upstream: FakeUpstream, seconds: float, seed: int) -> AnswerRun:
    """Give mutated answers."""
    run = AnswerRun(gate, upstream, random.Random(seed))
    until_s = time.monotonic() + seconds
    go_on(run, time.monotonic() + seconds / 3)
    _hold(gate, upstream, run, partial(go_on, run, until_s))
    if gate.alive:
        run.findings += keeps_places(gate)
        run.findings += goes_on_listening(gate, upstream)
    return run


def _hold(
    gate: GateProcess, upstream: FakeUpstream, run: Run | AnswerRun, burden: Callable[[], None]
) -> None:
    """Hold the gate after the rest of the run against what it was when it was warm."""
    upstream.on_loop(upstream.cut)
    if not gate.alive:
        return
    descriptors, resident_bytes = gate.descriptors, gate.resident_bytes
    burden()
    if gate.alive:
        upstream.on_loop(upstream.cut)
        run.findings += _leaks(gate, descriptors, resident_bytes)


def _go_on(run: Run, more: Callable[[], bool]) -> None:
    while more() and not run.is_over:
        run.batch()


def _leaks(gate: GateProcess, descriptors: int, resident_bytes: int) -> Iterator[Finding]:
    """Yield what the gateway has not given back."""
    try:
        until(lambda: gate.descriptors <= descriptors + 2)
    except AssertionError:
        yield Finding(f"{gate.descriptors} descriptors, {descriptors} before")
    grown = gate.resident_bytes - resident_bytes
    sys.stdout.write(f"memory {grown / 1e6:+.1f} MB\n")
    if grown > MOST_GROWTH_BYTES:
        yield Finding(f"memory has grown by {grown / 1e6:.1f} MB")


def _show(run: Run | AnswerRun, seed: int) -> None:
    answers = dict(run.statuses.most_common())
    sys.stdout.write(f"seed {seed}: {run.sent} payloads, {len(run.findings)} findings, answers {answers}\n")
    for finding in run.findings:
        sys.stdout.write(finding.text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
