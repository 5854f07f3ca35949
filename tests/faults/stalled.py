"""Row 35: thousands of clients that ask for a long stream and never read it, and what they cost the gate and the others.

    PYTHONPATH=tests .venv/bin/python -m faults.stalled --readers 5000

`make soak` runs the row's 5,000; a test runs fewer, because 5,000 take more than ten seconds of CPU.
"""

import argparse
import contextlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lab.upstream import FakeUpstream, ScriptedConnection, answer_politely, answers

from faults.process import GateProcess, until
from faults.talk import chat

SETTINGS = {
    "engines.*.health": "null",
    "limits.header_deadline": "1m",
    "limits.write_stall": "10m",
    "limits.upstream_connect": "1m",
    "limits.connections": "1000000",
    "lanes.*.max_queue": "1000000",
}
"""Nobody is cut before the figures are taken, and no engine is out because this machine is busy."""

MOST_BYTES = 80 * 1024
"""For each reader: the gate buffers 64 KiB of an answer; the rest is two connections and an attempt."""

MOST_OTHERS_S = 0.25
"""The median of the others' requests; one takes a millisecond where nobody else uses the machine."""

_RECEIVE_BYTES = 4096
_SPARE_FILES = 300
_WITHIN_S = 120.0
_OTHERS = 20
_PIECE = answers.chunks(answers.event("x" * 1000) * 50)
_PIECES = 3


class Stalled(NamedTuple):
    """What so many readers cost: memory of the gate for each, and the median request of somebody else, in seconds."""

    readers: int
    each_bytes: float
    alone_s: float
    beside_s: float
    ended: dict[str, int]


@contextlib.contextmanager
def allowed(wanted: int) -> Iterator[int]:
    """Return how many readers this process may have, two files each, with the limit of open files as high as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + _SPARE_FILES
    limit = max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield min(wanted, (limit - _SPARE_FILES) // 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _more_than_fits(line: ScriptedConnection) -> None:
    await line.send(answers.head(200, answers.EVENT_STREAM))
    for _ in range(_PIECES):
        await line.send(_PIECE)
    await line.stall()


def measure(gate: GateProcess, upstream: FakeUpstream, readers: int) -> Stalled:
    """Let so many readers stall, look at the gate and at others' requests, and let the readers leave."""
    alone_s = _others(gate)
    before = gate.resident_bytes
    upstream.script = _more_than_fits
    for _ in range(readers):
        gate.connect(receive_bytes=_RECEIVE_BYTES).ask(chat(stream=True))
    until(lambda: _running(gate) == readers, _WITHIN_S, "the readers have not all been admitted")
    until(lambda: upstream.answering == readers, _WITHIN_S, "the engine has not begun all streams")
    until(lambda: not _unread_tokens(gate), _WITHIN_S, "the gate has not seen the beginning of all streams")
    until(lambda: _quiet(upstream), _WITHIN_S, "bytes still move")
    each_bytes = (gate.resident_bytes - before) / readers
    upstream.script = answer_politely
    beside_s = _others(gate)
    gate.hang_up()
    until(lambda: _running(gate) == 0, _WITHIN_S, "the readers' permits are not back")
    return Stalled(readers, each_bytes, alone_s, beside_s, gate.ended())


def _others(gate: GateProcess) -> float:
    talk = gate.connect()
    times = []
    for _ in range(_OTHERS):
        began = time.monotonic()
        talk.ask(chat())
        assert talk.answer().status == 200
        times.append(time.monotonic() - began)
    return statistics.median(times)


def _running(gate: GateProcess) -> int:
    return sum(engine["running"] + engine["departing"] for engine in gate.state()["engines"])


def _unread_tokens(gate: GateProcess) -> int:
    """Return the prompt tokens of streams that have not begun, as far as the gate knows."""
    return sum(engine["prefill_tokens"] for engine in gate.state()["engines"])


def _quiet(upstream: FakeUpstream) -> bool:
    """Return whether no byte has moved for a moment."""
    sent = upstream.sent_bytes
    time.sleep(0.2)
    return upstream.sent_bytes == sent


def findings(found: Stalled) -> Iterator[str]:
    """Yield what is beyond its bound, or was not counted."""
    if found.each_bytes > MOST_BYTES:
        yield f"{found.each_bytes / 1024:.1f} KiB for each reader, {MOST_BYTES / 1024:g} at most"
    if found.beside_s > MOST_OTHERS_S:
        yield f"somebody else's request took {found.beside_s:.3f} s, {MOST_OTHERS_S:g} at most"
    if found.ended != {"good": 2 * _OTHERS, "client_gone/decode": found.readers}:
        yield f"outcomes: {found.ended}"


def main() -> int:
    """Stall `--readers`, as many as the limit of open files allows; return 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, default=5_000)
    asked = parser.parse_args()
    with (
        allowed(asked.readers) as readers,
        FakeUpstream() as upstream,
        tempfile.TemporaryDirectory(prefix="millgate-stalled-") as folder,
    ):
        errors = Path(folder) / "stderr.txt"
        gate = GateProcess(upstream.url, errors=errors, max_inflight=readers + 1, settings=SETTINGS)
        try:
            found = measure(gate, upstream, readers)
        finally:
            gate.stop()
    sys.stderr.write(
        f"{found.readers} stalled readers: {found.each_bytes / 1024:.1f} KiB each, somebody else's request "
        f"{found.beside_s * 1e3:.1f} ms beside them, {found.alone_s * 1e3:.1f} ms before\n"
    )
    wrong = list(findings(found))
    sys.stderr.write("".join(f"{text}\n" for text in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
