"""`python -m bench.lines`: what thousands of line connections cost the HTTP door, and what each of them costs.

One gate gets the same paced JSON load again and again. In every other round there is a crowd on its line port: most
of it idle, the others with one small job after another. A third kind of round has that crowd alone, so that its CPU can be
taken off. The rounds are interleaved, A-B-C-A-B-C; nothing is judged.
"""

import argparse
import asyncio
import gc
import hashlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from array import array
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import uvloop

from bench import load, wire
from bench.crowds import quantile
from bench.load import BenchError
from bench.processes import Process, Stage, choose_cores, cpu_s, free_port
from millgate.dialects.line import write_request
from millgate.dialects.line_requests import LineChunk, LineRequest, Manifest, Verb

IDLE = 2_000
ACTIVE = 200
_JOB_EVERY_S = 2.0
"""Of one active connection: 100 jobs a second over 200 of them."""
_PER_S = 2_000.0
"""JSON requests a second: a quarter of one core of a compiled gate, so that no round is about queueing for it."""
_ROUND_S = 5.0
_USERS = 64
_TICK_S = 0.001
_SETTLE_S = 1.0
_ANSWER_WITHIN_S = 10.0
_numbers = itertools.count(1)


class Round(NamedTuple):
    """One round: latencies in ms, CPU of the gate in seconds, requests and jobs that were answered, memory in MB."""

    p50_ms: float
    p99_ms: float
    gate_cpu_s: float
    bench_cpu_s: float
    requests: int
    jobs: int
    rss_mb: float


# ---- the HTTP side


class _User(asyncio.Protocol):
    """One kept connection that is lent to one request at a time."""

    def __init__(self, pace: "_Pace") -> None:
        self._pace = pace
        self._answer = b""
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the pace says when to ask."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass

    def ask(self, due_s: float) -> None:
        """Send the next request; its latency counts from when it was due."""
        self._due_s = due_s
        self.transport.write(self._pace.request.numbered(next(_numbers)))

    def data_received(self, data: bytes) -> None:
        """Note the latency when the answer is whole, and take what waits."""
        data = self._answer + data
        end, at = data.find(b"\r\n\r\n"), data.find(b"ength: ")
        if end < 0 or not 0 < at < end or len(data) < end + 4 + int(data[at + 7 : data.find(b"\r", at)]):
            self._answer = data
            return
        self._answer = b""
        self._pace.take(self, data, time.perf_counter() - self._due_s)


class _Pace:
    """An open loop: requests become due at a fixed rate, whatever comes back, and wait for a free connection."""

    def __init__(self, per_s: float) -> None:
        self.request = wire.chat_request(stream=False)
        self.latencies_s = array("d")
        self.failed = b""
        self._per_s = per_s
        self._free: deque[_User] = deque()
        self._due: deque[float] = deque()

    async def run(self, port: int, seconds: float) -> None:
        """Ask for so long and wait for the last answers; raises BenchError when one is missing or not 200."""
        loop = asyncio.get_running_loop()
        users = [
            (await loop.create_connection(lambda: _User(self), "127.0.0.1", port))[1] for _ in range(_USERS)
        ]
        self._free.extend(users)
        began_s, made, count = time.perf_counter(), 0, int(seconds * self._per_s)
        while made < count:
            now_s = time.perf_counter()
            due = min(count, int((now_s - began_s) * self._per_s))
            self._due.extend([now_s] * (due - made))
            made = due
            self._go_on()
            await asyncio.sleep(_TICK_S)
        await _until(lambda: len(self.latencies_s) == count or bool(self.failed), "an answer is missing")
        for user in users:
            user.transport.abort()
        if self.failed:
            raise BenchError(f"expected status 200, got: {self.failed!r}")

    def take(self, user: _User, answer: bytes, latency_s: float) -> None:
        """Count a whole answer; its connection is free again."""
        if answer[9:12] != b"200":
            self.failed = answer[:300]
        self.latencies_s.append(latency_s)
        self._free.append(user)
        self._go_on()

    def _go_on(self) -> None:
        while self._due and self._free:
            self._free.popleft().ask(self._due.popleft())


# ---- the line side


def job_lines() -> bytes:
    """Return the two frames of one job: its manifest and its only chunk, a chat completion request."""
    payload = wire.chat_request(stream=False).numbered(0).partition(b"\r\n\r\n")[2]
    digest = hashlib.sha256(payload).hexdigest()
    manifest = Manifest("p", "application/json", "", "", len(payload), len(payload), 1, digest, False)
    chunk = LineChunk("p", 0, 0, digest, b64encode(payload).decode())
    return write_request(LineRequest(Verb.SHARE, "J", 1, 0, manifest, None, "")) + write_request(
        LineRequest(Verb.SHARE, "J", 2, 0, None, chunk, "")
    )


_JOB = job_lines()
_DONE = b'"status":"done"'
_WORKS = (b'"status":"ok"', _DONE)


class _Line(asyncio.Protocol):
    """One line connection; an active one sends a job, waits until it is done, and pauses."""

    def __init__(self, crowd: "_Lines") -> None:
        self._crowd = crowd
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass

    def ask(self) -> None:
        """Send the next job."""
        if not self.transport.is_closing():
            self.transport.write(_JOB)

    def data_received(self, data: bytes) -> None:
        """Count jobs that are done, and ask again after the pause."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if _DONE in line:
                self._crowd.jobs += 1
                asyncio.get_running_loop().call_later(_JOB_EVERY_S, self.ask)
            elif not any(word in line for word in _WORKS):
                self._crowd.failed = line

    def connection_lost(self, _exc: Exception | None) -> None:
        """An end before the crowd's own spoils the round."""
        if not self._crowd.over:
            self._crowd.failed = b"a line connection was closed early"


class _Lines:
    """All clients on the line port."""

    def __init__(self, port: int, idle: int, active: int) -> None:
        self.jobs = 0
        self.failed = b""
        self.over = False
        self._port = port
        self._idle = idle
        self._active = active
        self._lines: list[_Line] = []

    async def __aenter__(self) -> Self:
        """Connect all clients, and start the active ones spread over one pause."""
        loop = asyncio.get_running_loop()
        for number in range(self._idle + self._active):
            _, line = await loop.create_connection(lambda: _Line(self), "127.0.0.1", self._port)
            self._lines.append(line)
            if number < self._active:
                loop.call_later(_JOB_EVERY_S * number / self._active, line.ask)
        await asyncio.sleep(_SETTLE_S + _JOB_EVERY_S)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Leave, all at once."""
        self.over = True
        for line in self._lines:
            line.transport.abort()
        await asyncio.sleep(_SETTLE_S)
        if self.failed:
            raise BenchError(f"on the line port: {self.failed!r}")


async def _until(truth: Callable[[], bool], otherwise: str) -> None:
    by_s = time.perf_counter() + _ANSWER_WITHIN_S
    while not truth():
        if time.perf_counter() > by_s:
            raise BenchError(otherwise)
        await asyncio.sleep(0.01)


# ---- the rounds


class Figures(NamedTuple):
    """All rounds of one run by kind, the gate's memory before line connections and when they were open, and how many."""

    alone: list[Round]
    beside: list[Round]
    lines: list[Round]
    opened_mb: list[tuple[float, float]]
    connections: int


class _Bench:
    """One gate with a line port, and the rounds on it."""

    def __init__(self, stage: Stage, idle: int, active: int, per_s: float) -> None:
        self._engine = stage.engine(1.0)
        self._line_port = free_port()
        flags = ("--line-port", str(self._line_port), "--max-inflight", "512")
        self._gate: Process = stage.millgate(self._engine, "millgate", *flags)
        self._sizes = (idle, active)
        self._per_s = per_s

    async def run(self, count: int) -> Figures:
        """Warm the gate, then run so many rounds of each kind."""
        await load.send(self._gate.port, range(2_000), users=32, stream=False)
        await self._round(lines=None, asks=True)
        figures = Figures([], [], [], [], sum(self._sizes))
        for _ in range(count):
            figures.alone.append(await self._round(lines=None, asks=True))
            before_mb = self._gate.rss_mb()
            async with _Lines(self._line_port, *self._sizes) as lines:
                figures.opened_mb.append((before_mb, self._gate.rss_mb()))
                figures.beside.append(await self._round(lines=lines, asks=True))
                figures.lines.append(await self._round(lines=lines, asks=False))
        return figures

    async def _round(self, *, lines: _Lines | None, asks: bool) -> Round:
        gc.collect()
        pace = _Pace(self._per_s)
        jobs = lines.jobs if lines else 0
        before = self._cpu_s()
        if asks:
            await pace.run(self._gate.port, _ROUND_S)
        else:
            await asyncio.sleep(_ROUND_S)
        gate_s, bench_s = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        found = sorted(pace.latencies_s) or [0.0]
        delays_ms = (quantile(found, 0.5) * 1e3, quantile(found, 0.99) * 1e3)
        jobs = lines.jobs - jobs if lines else 0
        return Round(*delays_ms, gate_s, bench_s, len(pace.latencies_s), jobs, self._gate.rss_mb())

    def _cpu_s(self) -> tuple[float, float]:
        return self._gate.cpu_s(), self._engine.cpu_s() + cpu_s(os.getpid())


def summary(figures: Figures) -> dict[str, Any]:
    """Return ratios and costs as medians over rounds, and every round as it was."""
    pairs = list(zip(figures.alone, figures.beside, strict=True))
    triples = list(zip(figures.alone, figures.beside, figures.lines, strict=True))
    # What later rounds open lies in memory that the first one has left behind.
    before_mb, opened_mb = figures.opened_mb[0]
    return {
        "p50_beside_over_alone": _median([beside.p50_ms / alone.p50_ms for alone, beside in pairs]),
        "p99_beside_over_alone": _median([beside.p99_ms / alone.p99_ms for alone, beside in pairs]),
        "cpu_per_request_beside_over_alone": _median(
            [
                (beside.gate_cpu_s - lines.gate_cpu_s) / beside.requests / (alone.gate_cpu_s / alone.requests)
                for alone, beside, lines in triples
            ]
        ),
        "cpu_us_per_request_alone": _median(
            [1e6 * each.gate_cpu_s / each.requests for each in figures.alone]
        ),
        "cpu_us_per_job": _median([1e6 * each.gate_cpu_s / max(1, each.jobs) for each in figures.lines]),
        "kb_per_connection": round((opened_mb - before_mb) * 1e3 / figures.connections, 2),
        "opened_mb": figures.opened_mb,
        "connections": figures.connections,
        **{
            kind: [each._asdict() for each in getattr(figures, kind)] for kind in ("alone", "beside", "lines")
        },
    }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


def _show(found: dict[str, Any]) -> None:
    print(f"beside {found['connections']:,} line connections, over alone:")
    for name in ("p50", "p99", "cpu_per_request"):
        print(f"  {name + '_beside_over_alone':<36}{found[name + '_beside_over_alone']:>8.2f}")
    print("the gate:")
    for name in ("cpu_us_per_request_alone", "cpu_us_per_job", "kb_per_connection"):
        print(f"  {name:<36}{found[name]:>8.1f}")
    print(
        f"\n{'round':<10}{'p50 ms':>8}{'p99 ms':>8}{'gate CPU s':>12}{'bench CPU s':>12}{'requests':>10}{'jobs':>6}{'MB':>7}"
    )
    for kind, number in itertools.product(("alone", "beside", "lines"), range(len(found["alone"]))):
        each = Round(**found[kind][number])
        print(
            f"{kind:<10}{each.p50_ms:>8.2f}{each.p99_ms:>8.2f}{each.gate_cpu_s:>12.3f}{each.bench_cpu_s:>12.3f}"
            f"{each.requests:>10}{each.jobs:>6}{each.rss_mb:>7.1f}"
        )


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lines", description=__doc__)
    parser.add_argument("--idle", type=int, default=IDLE, help=f"idle line connections ({IDLE})")
    parser.add_argument("--active", type=int, default=ACTIVE, help=f"those with jobs ({ACTIVE})")
    parser.add_argument("--per-s", type=float, default=_PER_S, help=f"JSON requests a second ({_PER_S:g})")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (5)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    asked = parser.parse_args()
    cores = choose_cores()
    os.sched_setaffinity(0, {cores.others})
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as folder:
        stage = Stage(Path(folder), cores)
        try:
            bench = _Bench(stage, asked.idle, asked.active, asked.per_s)
            found = summary(uvloop.run(bench.run(asked.rounds)))
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            stage.close()
    if asked.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
