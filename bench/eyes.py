"""`python -m bench.eyes`: what metrics, the log of attempts and recorded decisions cost per request.

Two gates of one build, one with everything that watches and one with nothing, get the same load in turn, and their CPU
is compared pair by pair. Everything else is the same process, so that the ratio means something on a busy machine.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import load
from bench.processes import Process, Stage, choose_cores, free_port
from headgate.core.settings import EngineSettings, LaneSettings, Settings
from headgate.gateway import EngineAddress, Gateway, GatewaySettings, serve
from headgate.observe.eyes import Eyes, EyesSettings
from headgate.observe.why import KEPT_ATTEMPTS
from headgate.wiring.governor import build_governor

_USERS = 32
_WARM = 4_000
_PARTS = ("metrics", "why", "log", "everything")
"""Metrics are in each of them."""
_numbers = itertools.count(1)


class Round(NamedTuple):
    """CPU microseconds per whole JSON request of the gate that watches, and of the one that does not."""

    watching: float
    blind: float


async def _gate(port: int, engine_port: int, watches: str, log: str) -> None:
    """Serve one gate whose observers are exactly those that are asked for."""
    core = Settings((LaneSettings("interactive"),), (EngineSettings("engine", 256),))
    settings = GatewaySettings((EngineAddress("engine", "127.0.0.1", engine_port),), port=port)
    governor = build_governor(core, time.monotonic())

    def open_eyes(gateway: Gateway) -> None:
        gateway.driver.observers.clear()
        if watches != "nothing":
            path = log if watches in {"log", "everything"} else None
            kept = KEPT_ATTEMPTS if watches in {"why", "everything"} else 0
            eyes = Eyes(EyesSettings(path, kept), boot="bench", first_lane="interactive")
            gateway.driver.observers.append(eyes.witness)

    await serve(governor, settings, on_ready=open_eyes)


class _Stage(Stage):
    """Starts gates that watch as they are told."""

    def gate(self, engine: Process, watches: str) -> Process:
        """Start one beside the other proxies; its log goes to the run's folder."""
        name, port = f"gate-{watches}", free_port()
        log = str(self._folder / f"{watches}.attempts")
        command = [sys.executable, "-m", "bench.eyes", "--gate", watches, str(port), str(engine.port), log]
        return self._start(name, command, port, self._cores.proxy)


async def _cost(gate: Process, requests: int) -> float:
    start = next(_numbers) * 1_000_000
    before = gate.cpu_s()
    served = await load.send(gate.port, range(start, start + requests), users=_USERS, stream=False)
    return (gate.cpu_s() - before) * 1e6 / served.answers


async def _measure(stage: _Stage, watches: str, rounds: int, requests: int) -> list[Round]:
    """Return pairs of rounds; which gate comes first alternates, so that a drift of the machine falls on both."""
    engine = stage.engine(1.0)
    watching, blind = stage.gate(engine, watches), stage.gate(engine, "nothing")
    for gate in (watching, blind):
        await _cost(gate, _WARM)
    found = []
    for number in range(rounds):
        pair = (watching, blind) if number % 2 else (blind, watching)
        costs = {gate.name: await _cost(gate, requests) for gate in pair}
        found.append(Round(costs[watching.name], costs[blind.name]))
    return found


def _show(watches: str, found: list[Round]) -> None:
    ratios = [each.watching / each.blind for each in found]
    print(
        f"{watches} over nothing: {statistics.median(ratios):.3f} (at most 1.10), pairs {min(ratios):.3f}..{max(ratios):.3f}"
    )
    columns = [statistics.median(column) for column in zip(*found, strict=True)]
    print("CPU us per JSON request: {:.1f} against {:.1f}".format(*columns))


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.eyes", description=__doc__)
    parser.add_argument("--gate", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--watches", choices=_PARTS, default="everything", help="what the watching gate has")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of rounds (7)")
    parser.add_argument("--requests", type=int, default=6_000, help="requests in a round (6000)")
    asked: Any = parser.parse_args()
    if asked.gate:
        watches, port, engine_port, log = asked.gate
        uvloop.run(_gate(int(port), int(engine_port), watches, log))
        return 0
    cores = choose_cores()
    os.sched_setaffinity(0, {cores.others})
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        stage = _Stage(Path(name), cores)
        try:
            found = uvloop.run(_measure(stage, asked.watches, asked.rounds, asked.requests))
        finally:
            stage.close()
    _show(asked.watches, found)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
