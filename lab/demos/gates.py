"""Gates that know their engine: its profile, scale and cap stand in their configuration."""

import json
from dataclasses import dataclass
from typing import Any

from millgate.demos.connection import GateAddress
from millgate.demos.stage import DemoStage, EngineSetup, RunningGate, StagedEngine


@dataclass(frozen=True, slots=True)
class GateSetup:
    """The gate of a run: its one lane, in real seconds. `max_queue` None is its default: what can be served in time."""

    ttft_slo_s: float
    deadline_from: str
    max_queue: int | None = None


def start_gate(stage: DemoStage, engine: StagedEngine, behind: EngineSetup, setup: GateSetup) -> RunningGate:
    """Start a gate before this engine, with the engine's own cap, and wait until it is ready."""
    text = json.dumps(gate_config(engine.address, behind, setup))
    return stage.start_gate("--config", str(stage.file(f"gate-{engine.address.port}.yaml", text)))


def gate_config(engine: GateAddress, behind: EngineSetup, setup: GateSetup) -> dict[str, Any]:
    """Write the configuration of a gate: the engine's profile, scale and cap, and one lane."""
    lane: dict[str, Any] = {
        "name": "interactive",
        "ttft_slo": f"{setup.ttft_slo_s:.6f}s",
        "deadline_from": setup.deadline_from,
    }
    if setup.max_queue is not None:
        lane["max_queue"] = setup.max_queue
    return {
        "listen": {"port": 0},
        "admin": {"port": 0},
        "engines": [
            {
                "url": f"http://{engine.host}:{engine.port}",
                "max_inflight": behind.max_num_seqs,
                "profile": behind.profile,
                "time_scale": behind.time_scale,
            }
        ],
        "lanes": [lane],
    }
