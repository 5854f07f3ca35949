"""`python -m bench.steps`: what observers take for one JSON request, without a socket.

The steps of an admitted request (its arrival with the admission, the end of its answer, the release of its permit) are recorded once and
shown again and again. CPU is that of all threads. Spans are made and not sent: no collector listens. With `--once KIND` they are shown twice, and
callgrind dumps the instructions of the second time.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.processes import free_port
from millgate.core.decisions import Decision
from millgate.core.events import Arrived, Event, Finished, Released
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.observe.observers import Observers, ObserverSettings
from millgate.observe.ring import KEPT_ATTEMPTS
from millgate.observe.tracing import TracingSettings
from millgate.wiring.governor import build_governor

_KINDS = ("metrics", "why", "everything", "traces")
"""As in `bench.observers`; everything is without traces, which come on top of `why`."""
_UNDER_WAY = 8
_APART_S = 0.0001
_LINES = b"x-stainless-lang: python\r\n" * 20

Step = tuple[Event, tuple[Decision, ...], float]


def _steps(requests: int) -> Iterator[Step]:
    """Yield what a driver would show of so many requests, of which some are under way together."""
    now = time.monotonic()
    governor = build_governor(Settings((LaneSettings("interactive"),), (EngineSettings("engine", 256),)), now)
    running: deque[int] = deque()
    for number in range(1, requests + 1):
        events: list[Event] = [
            Arrived(number, model="bench", prompt_bytes=900, body_bytes=1200, max_tokens=64, stream=False)
        ]
        running.append(number)
        if len(running) > _UNDER_WAY:
            over = running.popleft()
            events += [Finished(over, 300, 60), Released(over)]
        for event in events:
            now += _APART_S
            yield event, governor.handle(event, now), now


def _observers(kind: str, folder: str) -> Observers:
    log = str(Path(folder, "attempts")) if kind == "everything" else None
    tracing = TracingSettings(f"http://127.0.0.1:{free_port()}/") if kind == "traces" else None
    kept = 0 if kind == "metrics" else KEPT_ATTEMPTS
    return Observers(ObserverSettings(log, kept, tracing), boot="bench", first_lane="interactive")


def _show(observers: Observers, steps: list[Step]) -> None:
    """Show every step, and begin and pass on a trace for each arrival where there are traces."""
    on_step, begun, traces = observers.accounting.on_step, observers.accounting.begun, observers.traces
    for event, decisions, now in steps:
        if traces is not None and type(event) is Arrived:
            begun(event.attempt, None)
            traces.onward(event.attempt, _LINES)
        on_step(event, decisions, now)


def _cost_s(kind: str, folder: str, steps: list[Step]) -> float:
    observers = _observers(kind, folder)
    before = time.process_time()
    _show(observers, steps)
    observers.close()
    return time.process_time() - before


def _count(kind: str, folder: str, steps: list[Step]) -> None:
    """Show the steps once for warmth, and once while callgrind counts (`--instr-atstart=no`)."""
    control = ["callgrind_control", str(os.getpid())]
    _cost_s(kind, folder, steps)
    subprocess.run([*control, "--instr=on"], check=True)
    _cost_s(kind, folder, steps)
    subprocess.run([*control, "--dump"], check=True)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9, help="the least of so many is told (9)")
    parser.add_argument("--once", choices=_KINDS, metavar="KIND", help="for callgrind")
    asked: Any = parser.parse_args()
    steps = list(_steps(asked.requests))
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as folder:
        if asked.once:
            _count(asked.once, folder, steps)
            return 0
        for kind in _KINDS:
            least_s = min(_cost_s(kind, folder, steps) for _ in range(asked.rounds))
            print(f"{kind}: {least_s * 1e6 / asked.requests:.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
