"""What goes wrong with an engine, on a timetable: loss, drift, stall, and storms of refusals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millgate.core.events import EngineDown, EngineUp, Event
from millgate.engine.profile import EngineProfile, scaled
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.loop import ENGINES, Loop

# A gateway notices a dead engine by its next failed request or its next health check (once a second).
NOTICE_S = 1.0
_DRIFT_STEPS = 10


@dataclass(frozen=True, slots=True)
class EngineTrouble:
    """One trouble of one engine, from `at_s` for `for_s`.

    `loss` crashes it and brings it back; `stall` lets it stand still; `drift` slows it down to `factor` times its
    step times, in ten even steps, and leaves it there; `refusals` lets it refuse the share `factor` of what it is
    sent.
    """

    kind: Literal["loss", "stall", "drift", "refusals"]
    engine: str
    at_s: float
    for_s: float
    factor: float = 1.0


def schedule(
    trouble: EngineTrouble,
    station: BatchedStation,
    profile: EngineProfile,
    loop: Loop,
    post: Callable[[Event], None],
) -> None:
    """Let this trouble happen to this station, and tell the governor what its health checks would."""
    begin, end, at = trouble.at_s, trouble.at_s + trouble.for_s, loop.at
    if trouble.kind == "loss":
        at(begin, lambda _: station.crash(), None, ENGINES)
        at(begin + NOTICE_S, post, EngineDown(station.name), ENGINES)
        at(end, lambda _: station.restart(), None, ENGINES)
        at(end + NOTICE_S, post, EngineUp(station.name), ENGINES)
    elif trouble.kind == "stall":
        at(begin, station.stall, trouble.for_s, ENGINES)
    elif trouble.kind == "drift":
        for step in range(1, _DRIFT_STEPS + 1):
            share = step / _DRIFT_STEPS
            model = scaled(profile, 1.0 / (1.0 + share * (trouble.factor - 1.0))).step_model()
            at(begin + share * trouble.for_s, station.change_model, model, ENGINES)
    else:
        at(begin, lambda _: setattr(station, "refused_share", trouble.factor), None, ENGINES)
        at(end, lambda _: setattr(station, "refused_share", 0.0), None, ENGINES)
