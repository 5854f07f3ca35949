"""`python -m bench.observers`: what metrics, the log of attempts, recorded decisions and traces cost per request.

One gate gets the same load again and again, watched in every other round (with `--watches traces`: traced, and watched without traces), and its CPU is compared pair by pair. It is
one process, because two of the same build already differ by several per cent.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import load
from bench.processes import Process, Stage, choose_cores, free_port
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings, serve
from millgate.observe.observers import Observers, ObserverSettings
from millgate.observe.ring import KEPT_ATTEMPTS
from millgate.observe.tracing import TracingSettings
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

_USERS = 32
_WARM = 4_000
_TURN_S = 0.05
_LAG_S = 10.0
"""A gate that must wait for a busy machine refuses nothing: the bench would be over."""
_PARTS = ("metrics", "why", "log", "everything", "traces")
"""Metrics are in each of them; traces come on top of what `why` has."""
_numbers = itertools.count(1)


class Round(NamedTuple):
    """CPU microseconds per whole JSON request while the gate is watched, and while it is not."""

    watched: float
    blind: float


async def _gate(port: int, engine_port: int, watches: str, log: str) -> None:
    """Serve one gate without watchers; SIGUSR1 opens and closes the observers that are asked for."""
    core = Settings((LaneSettings("interactive"),), (EngineSettings("engine", 256),))
    door = DoorSettings(loop_lag_s=_LAG_S)
    settings = GatewaySettings((EngineAddress("engine", "127.0.0.1", engine_port),), port=port, door=door)
    path = log if watches in {"log", "everything"} else None
    kept = KEPT_ATTEMPTS if watches in {"why", "everything", "traces"} else 0
    tracing = TracingSettings(log) if watches == "traces" else None
    watching = Observers(ObserverSettings(path, kept, tracing), boot="bench", first_lane="interactive")

    def prepare(gateway: Gateway) -> None:
        observers = gateway.driver.observers
        if tracing is None:
            observers.clear()
        plain, untraced = list(observers), (gateway.door.on_begun, gateway.door.traced)

        def turn() -> None:
            if observers == plain:
                observers[:] = [watching.accounting]
                if watching.traces is not None:
                    gateway.door.on_begun = watching.accounting.begun
                    gateway.door.traced = watching.traces.onward
            else:
                observers[:] = plain
                gateway.door.on_begun, gateway.door.traced = untraced

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, turn)

    await serve(build_governor(core, time.monotonic()), settings, on_ready=prepare)
    watching.close()


class _Stage(Stage):
    """Starts gates that watch as they are told."""

    def gate(self, engine: Process, watches: str, collector: str) -> Process:
        """Start one beside the other proxies; its log goes to the run's folder, its spans to the collector."""
        name, port = f"gate-{watches}", free_port()
        log = collector if watches == "traces" else str(self._folder / f"{watches}.attempts")
        command = [
            sys.executable,
            "-m",
            "bench.observers",
            "--gate",
            watches,
            str(port),
            str(engine.port),
            log,
        ]
        return self._start(name, command, port, self._cores.proxy)


async def _collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take every export."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    writer.close()


async def _cost(gate: Process, requests: int) -> float:
    start = next(_numbers) * 1_000_000
    before = gate.cpu_s()
    served = await load.send(gate.port, range(start, start + requests), users=_USERS, stream=False)
    return (gate.cpu_s() - before) * 1e6 / served.answers


async def _measure(stage: _Stage, watches: str, rounds: int, requests: int) -> list[Round]:
    """Return pairs of rounds; which comes first alternates, so that a drift of the machine falls on both."""
    collector = await asyncio.start_server(_collect, "127.0.0.1", port := free_port())
    gate = stage.gate(stage.engine(1.0), watches, f"http://127.0.0.1:{port}/v1/traces")
    await _cost(gate, _WARM)
    watched, found = False, []
    for _ in range(rounds):
        costs = {watched: await _cost(gate, requests)}
        watched = not watched
        os.kill(gate.pid, signal.SIGUSR1)
        await asyncio.sleep(_TURN_S)
        costs[watched] = await _cost(gate, requests)
        found.append(Round(costs[True], costs[False]))
    collector.close()
    return found


def _show(watches: str, found: list[Round]) -> None:
    ratios = [each.watched / each.blind for each in found]
    spread = f"pairs {min(ratios):.3f}..{max(ratios):.3f}"
    base, bound = ("why", 1.15) if watches == "traces" else ("nothing", 1.10)
    print(f"{watches} over {base}: {statistics.median(ratios):.3f} (at most {bound:.2f}), {spread}")
    columns = [statistics.median(column) for column in zip(*found, strict=True)]
    print("CPU us per JSON request: {:.1f} against {:.1f}".format(*columns))


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.observers", description=__doc__)
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
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as name:
        stage = _Stage(Path(name), cores)
        try:
            found = uvloop.run(_measure(stage, asked.watches, asked.rounds, asked.requests))
        finally:
            stage.close()
    _show(asked.watches, found)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
