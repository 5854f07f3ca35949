"""`python -m bench.workers`: what a second worker adds, in answers a second and in CPU for each answer.

The same JSON requests go in turn to a gate of one process and to one of two, 1-2-1-2. The gates have two cores. On a machine with four
the engine has the third and the load the fourth; on a smaller one they share those two with the gates. `x` is the ratio of answers a
second: on a machine that does other things a ratio of what was left, and on one of two cores never
more than load and engine leave of them (`bench us` is their CPU for an answer).
`x by CPU` does not depend on that: twice the CPU of an answer with one process over that with two, supervisor included. It is the ratio
that two cores give where nothing else wants them, as long as the load keeps both workers busy.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import load
from bench.processes import Cores, Process, Stage, cpu_s

USERS = 128
"""So many that each of two workers has enough connections, however the kernel spreads them, and finds several ready in one turn of its
loop, as the one process does."""
REQUESTS = 6_000
_WARM_REQUESTS = 3_000
_SHARES_S = 3.0
"""Until every worker has its lease, and a share of the other's."""


_APART = 4
"""So many cores let load and engine have one each, beside the gates' two."""


class WorkersRound(NamedTuple):
    """One round: answers a second, CPU microseconds of the gate's processes for each, the busiest worker's part, and the bench's own."""

    per_s: float
    cpu_us: float
    busiest: float
    bench_us: float


def processes_of(gate: Process) -> list[int]:
    """Return the gate's processes: itself, and its workers where it has some."""
    children = Path(f"/proc/{gate.pid}/task/{gate.pid}/children").read_text().split()
    return [gate.pid, *map(int, children)]


async def measure(gate: Process, engine: Process, first: int) -> WorkersRound:
    """Send one round of requests, numbered from `first`."""
    processes = [*processes_of(gate), engine.pid, os.getpid()]
    before, started_s = [cpu_s(each) for each in processes], time.perf_counter()
    served = await load.send(gate.port, range(first, first + REQUESTS), users=USERS, stream=False)
    took_s = time.perf_counter() - started_s
    spent = [cpu_s(each) - then for each, then in zip(processes, before, strict=True)]
    *gates, of_engine, of_load = (1e6 * each / served.answers for each in spent)
    workers = gates[1:] or gates
    return WorkersRound(served.answers / took_s, sum(gates), max(workers) / sum(workers), of_engine + of_load)


def choose_places() -> tuple[list[int], Cores]:
    """Return the gates' two cores, and the engine's beside that of the load."""
    allowed = sorted(os.sched_getaffinity(0))
    pair = allowed[:2]
    if len(allowed) < _APART:
        return pair, Cores(pair[0], pair[-1])
    os.sched_setaffinity(0, allowed[3:4])
    return pair, Cores(pair[0], allowed[2])


async def compare(
    stage: Stage, rounds: int, pair: Sequence[int]
) -> tuple[list[WorkersRound], list[WorkersRound]]:
    """Return the rounds of one process and of two, each pair one after the other."""
    engine = stage.engine(5.0)
    gates = [stage.workers(engine, count, pair) for count in (1, 2)]
    await asyncio.sleep(_SHARES_S)
    for gate in gates:
        await load.send(gate.port, range(_WARM_REQUESTS), users=USERS, stream=False)
    found: tuple[list[WorkersRound], list[WorkersRound]] = ([], [])
    for number in range(1, rounds + 1):
        for place, gate in enumerate(gates):
            found[place].append(await measure(gate, engine, (2 * number + place) * 1_000_000))
        print(f"bench: round {number} of {rounds} done", file=sys.stderr, flush=True)
    return found


def report(one: Sequence[WorkersRound], two: Sequence[WorkersRound]) -> str:
    """Return the table, and the ratios below it."""
    lines = ["| processes | answers/s | CPU us | busiest worker | bench us |", "|---|---|---|---|---|"]
    for name, rounds in (("1", one), ("2", two)):
        per_s, cpu_us, busiest, bench_us = (statistics.median(column) for column in zip(*rounds, strict=True))
        lines.append(f"| {name} | {per_s:.0f} | {cpu_us:.1f} | {100.0 * busiest:.0f} % | {bench_us:.1f} |")
    pairs = list(zip(one, two, strict=True))
    by_time = statistics.median(b.per_s / a.per_s for a, b in pairs)
    by_cpu = statistics.median(2.0 * a.cpu_us / b.cpu_us for a, b in pairs)
    return "\n".join([*lines, "", f"x {by_time:.2f}, x by CPU {by_cpu:.2f}"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        pair, cores = choose_places()
        stage = Stage(Path(folder), cores)
        try:
            print(report(*runner.run(compare(stage, rounds, pair))))
        finally:
            stage.close()


if __name__ == "__main__":
    main()
