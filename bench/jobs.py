"""`python -m bench.jobs`: the CPU of the gate for one job at the line door, beside one JSON request in the same run.

A job is a manifest and one chunk, both carry the same chat completion request, and the engine answers at once. Rounds of
both kinds follow each other on one gate, so that what slows the machine slows both; nothing is judged.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import cast

import uvloop

from bench import load
from bench.lines import job_lines
from bench.load import BenchError
from bench.processes import Process, Stage, choose_cores, free_port

USERS = 32
UNITS = 5_000
"""Jobs, or requests, of one round: a second or two of one core."""
_WARM_UNITS = 1_000
_ROUND_TIMEOUT_S = 120.0
_JOB = job_lines()
_DONE = b'"status":"done"'


class _Peer(asyncio.Protocol):
    """One line connection that sends a job, waits until it is done, and sends the next while some are left."""

    def __init__(self, crowd: "_Crowd") -> None:
        self._crowd = crowd
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first job."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass
        self.transport.write(_JOB)

    def data_received(self, data: bytes) -> None:
        """Count jobs that are done, and ask again."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if _DONE in line:
                self._crowd.done()
                self.transport.write(_JOB)
            elif b'"status":"ok"' not in line:
                self._crowd.fail(line)

    def connection_lost(self, _exc: Exception | None) -> None:
        """A connection that ends before the round spoils it."""
        self._crowd.fail(b"a line connection was closed early")


class _Crowd:
    """So many jobs over all peers."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._over = asyncio.get_running_loop().create_future()

    async def run(self, port: int) -> None:
        """Connect the peers and wait for the last job; raises BenchError when one is not done."""
        loop = asyncio.get_running_loop()
        peers = [
            (await loop.create_connection(lambda: _Peer(self), "127.0.0.1", port))[1] for _ in range(USERS)
        ]
        await asyncio.wait_for(self._over, _ROUND_TIMEOUT_S)
        for peer in peers:
            peer.transport.abort()

    def done(self) -> None:
        """Count a job."""
        self._left -= 1
        if not self._left:
            self._over.set_result(None)

    def fail(self, line: bytes) -> None:
        """End the round; after its end it means nothing."""
        if not self._over.done():
            self._over.set_exception(BenchError(f"on the line port: {line!r}"))


async def _measure(stage: Stage, count: int) -> tuple[list[float], list[float]]:
    """Return CPU microseconds per JSON request and per job, one of each a round."""
    line_port = free_port()
    gate: Process = stage.millgate(
        stage.engine(1.0), "millgate", "--line-port", str(line_port), "--max-inflight", "512"
    )
    requests_us, jobs_us = [], []
    for number in range(count + 1):
        units = UNITS if number else _WARM_UNITS
        before_s = gate.cpu_s()
        await load.send(gate.port, range(number * UNITS, number * UNITS + units), users=USERS, stream=False)
        between_s = gate.cpu_s()
        await _Crowd(units).run(line_port)
        if number:
            requests_us.append((between_s - before_s) * 1e6 / units)
            jobs_us.append((gate.cpu_s() - between_s) * 1e6 / units)
    return requests_us, jobs_us


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (5)")
    asked = parser.parse_args()
    cores = choose_cores()
    os.sched_setaffinity(0, {cores.others})
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as folder:
        stage = Stage(Path(folder), cores)
        try:
            requests_us, jobs_us = uvloop.run(_measure(stage, asked.rounds))
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            stage.close()
    found = {
        "cpu_us_per_json_request": statistics.median(requests_us),
        "cpu_us_per_job": statistics.median(jobs_us),
        "job_to_json_request": statistics.median(
            job / request for job, request in zip(jobs_us, requests_us, strict=True)
        ),
    }
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
