"""`python -m bench.instructions`: instructions of the gate per JSON request, yield or delivered chunk, and where they go.

`envoy` counts the external processor, for a JSON request through Envoy.

The gate runs under `valgrind --tool=callgrind`, which counts what the process executes and not what the kernel does for it,
so a busy machine changes little but for timers, of which a slower request has more. Each unit has a gate of its own: as many unmeasured units first, then the counted ones.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import load
from bench.load import BenchError
from bench.processes import Process, Stage, choose_cores, free_port
from bench.rounds import fresh
from bench.wire import CHUNKS_PER_STREAM

USERS = 8
_TIMEOUT_S = 600.0
_SPACING_MS = 50.0
"""Between the chunks of a stream, so that a gate that runs fifty times slower than usual gets each alone."""
_YIELDS_PER_S = 80.0
"""Yields come at a fixed pace: what a wait is reckoned from is made anew by time, and a slow round tells more clients to return."""


class Unit(NamedTuple):
    """What is counted: how many units make one measurement, and the gate that they need."""

    counted: int
    flags: tuple[str, ...]
    status: bytes = b"200"
    stream: bool = False
    per_s: float | None = None


UNITS = {
    "json": Unit(1_000, ("--max-inflight", "256")),
    "yield": Unit(2_000, ("--max-inflight", "1", "--max-queue", "0"), b"503", per_s=_YIELDS_PER_S),
    "envoy": Unit(1_000, ("--max-inflight", "256")),
    "chunk": Unit(32 * CHUNKS_PER_STREAM, ("--max-inflight", "256"), stream=True),
}


class _Counted(Stage):
    """Starts gates under callgrind; their profiles go to the run's folder."""

    def counted(self, engine: Process, name: str, *flags: str) -> tuple[Process, Process]:
        """Start a gate that is not shed for the slowness of its counting; return it, and the process that clients ask."""
        under = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self._folder / name}.out"]
        own = (*flags, "--set", "limits.loop_lag=10s")
        if (
            name == "envoy"
        ):  # counted from the start: where counting begins it stands still, for longer than Envoy waits
            return self.processor(engine.port, *own, under=under, timeout_s=_TIMEOUT_S)
        under.append("--instr-atstart=no")
        port, url = free_port(), f"http://127.0.0.1:{engine.port}"
        command = [*under, sys.executable, "-m", "millgate", "serve", "--upstream", url, "--port", str(port)]
        command += ["--admin-port", str(free_port()), *own]
        gate = self._start(name, command, port, self._cores.proxy, timeout_s=_TIMEOUT_S)
        return gate, gate

    def profile(self, name: str) -> Path:
        """Return the profile that the last dump of this gate wrote."""
        return self._folder / f"{name}.out.1"


async def _send(gate: Process, unit: Unit) -> None:
    requests = unit.counted // CHUNKS_PER_STREAM if unit.stream else unit.counted
    await load.send(
        gate.port,
        fresh(requests),
        users=USERS,
        stream=unit.stream,
        status=unit.status,
        per_s=unit.per_s,
        within_s=_TIMEOUT_S,
    )


def _control(gate: Process, verb: str) -> None:
    """Have callgrind zero its counts or dump them."""
    subprocess.run(["callgrind_control", verb, str(gate.pid)], check=True, capture_output=True)


async def _count(stage: _Counted, name: str, unit: Unit) -> Path:
    engine = stage.engine(_SPACING_MS)
    gate, door = stage.counted(engine, name, *unit.flags)
    holder = load.Holder()
    if name == "yield":
        await holder.arrive(door.port)
    await _send(door, unit)
    _control(gate, "--zero" if name == "envoy" else "--instr=on")
    await _send(door, unit)
    _control(gate, "--dump")
    if name == "yield":
        holder.leave()
    stage.close()
    return stage.profile(name)


def _total(profile: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", profile.read_text(), re.MULTILINE)
    if found is None:
        raise BenchError(f"{profile} has no total")
    return int(found[1])


def _functions(profile: Path, *, inclusive: bool) -> list[tuple[int, str]]:
    """Return instructions and name of each function, the largest first."""
    asked = ["callgrind_annotate", f"--inclusive={'yes' if inclusive else 'no'}", "--auto=no", str(profile)]
    printed = subprocess.run([*asked, "--threshold=100"], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^ *([\d,]+) \([ \d.]+%\) +\S*?:(.+)$", printed, re.MULTILINE)
    return [(int(count.replace(",", "")), _short(name)) for count, name in rows]


def _short(name: str) -> str:
    """Return a function's name without the library and the marks of the compiler."""
    name = re.sub(r" \[.*/([^/\]]+)\]$", r" [\1]", name)
    return name.replace("CPyDef_", "").replace("millgate___", "")


def _print(name: str, unit: Unit, profile: Path, top: int) -> None:
    print(f"{name}: {_total(profile) / unit.counted:,.0f} instructions")
    for inclusive in (False, True) if top else ():
        print(f"  {'inclusive' if inclusive else 'exclusive'}")
        for count, function in _functions(profile, inclusive=inclusive)[:top]:
            print(f"{count / unit.counted:>12,.0f}  {function}")


def main() -> None:
    """Count what is asked for, one gate after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("units", nargs="*", choices=[*UNITS, []], help="json, yield, envoy, chunk (all)")
    parser.add_argument(
        "--top", type=int, default=30, help="how many functions are listed, in and exclusive (30)"
    )
    parser.add_argument("--keep", type=Path, help="folder for the profiles; without it they go")
    asked = parser.parse_args()
    cores = choose_cores()
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as folder:
        for name in asked.units or UNITS:
            stage = _Counted(asked.keep or Path(folder), cores, pins=False)
            try:
                _print(name, UNITS[name], uvloop.run(_count(stage, name, UNITS[name])), asked.top)
            finally:
                stage.close()


if __name__ == "__main__":
    main()
