"""A gate before one engine, and somebody who asks it: what tests of policies begin with."""

from typing import Any

from core.world import steady_prior
from millgate.core.events import Arrived
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.wiring.governor import build_governor

_LANE = LaneSettings("lane", deadline_s=60.0)


def gate_of(
    *lanes: LaneSettings, streams: int = 4, engine: EngineSettings | None = None, **whole: Any
) -> Governor:
    """Return a gate whose answers take 2 s."""
    engine = engine or EngineSettings("engine", streams, prior=steady_prior(2.0))
    return build_governor(Settings(lanes or (_LANE,), (engine,), **whole), 0.0)


def ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> Any:
    """Return what is decided about an attempt that asks like nobody else."""
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: attempt)
    return gate.handle(arrival._replace(**fields), now)[0]
