"""found_cap: what does a gate without any setting make of an engine whose batch it does not know?

Engines that run 16, 64 or 200 at once are asked for 2.7 times their capacity. The gate has the defaults of `millgate
serve --upstream URL`: the cap comes from the engine's KV tokens where it tells them, else it is 256. Below it the limit
follows the engine's own queue where it shows one. Beside it fixed caps are tried, the engine's own batch among them: the best
of them is the bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from millgate.config.schema import Config
from millgate.engine.profile import find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.world import World
from millgate.wiring.chosen import EngineFacts
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import build_settings

PROFILE: Final = "llama3-8b_h100_tp1"
_LENGTHS: Final = "azure_conversation"
_LOAD: Final = 2.7
_FROM_S, _UNTIL_S, _AFTERMATH_S = 60.0, 240.0, 120.0
_BATCHES: Final = (16, 64, 200)
# Of the engine's batch; far below it an engine is idle, far above it nothing changes any more.
_SHARES: Final = (0.75, 1.0, 1.25, 1.5)
_TOLD, _SILENT = "no settings, gauges", "no settings, no gauges"
_BEST: Final = "best fixed cap"


def play(
    batch: int,
    seed: int,
    *,
    cap: int | None = None,
    gauges: bool = True,
    profile: str = PROFILE,
    lengths: str = _LENGTHS,
    ttft_slo: str = "10s",
) -> Metrics:
    """Return good requests over the engine's capacity, the mean first token of answers, and the limit at the end.

    The engine runs `batch` sequences. `cap` None leaves everything to the gate; without `gauges` the engine shows
    neither its KV tokens nor what runs and waits.
    """
    engine = replace(find_profile(profile), max_num_seqs=batch)
    named = {"name": "engine", "url": "http://127.0.0.1:1"} | ({} if cap is None else {"max_inflight": cap})
    lane = {"name": "interactive", "ttft_slo": ttft_slo}
    config = Config.model_validate({"engines": [named], "lanes": [lane]})
    facts = {"engine": EngineFacts(kv_tokens=engine.kv_tokens if gauges else None)}
    fleet = SimulatedFleet(build_settings(config, facts).settings, {"engine": engine})
    loop, streams = Loop(), Streams(seed)
    governor = build_governor(fleet.settings, 0.0)
    recorder = Recorder(fleet.settings.lanes, from_s=_FROM_S)
    world = World(governor, loop, recorder)
    fleet.populate(world, streams)
    if gauges:
        world.start_watch()
    law = LENGTHS[lengths]
    capacity = capacity_per_s(engine, law, batch)
    asked = jobs(steady(_LOAD * capacity, streams), law, streams, until_s=_UNTIL_S)
    OpenLoop(world, Crowd(world, Manners(), streams), asked)
    loop.run(_UNTIL_S + _AFTERMATH_S)
    summary = world.summary(recorder)
    return {
        "good": summary.goodput_per_s / capacity,
        "ttft_mean_s": summary.ttft_s.mean,
        "limit": float(governor.snapshot(loop.now).engines[0].limit),
    }


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    batch = int(arm.x)
    if arm.series == _BEST:
        tried = [play(batch, seed, cap=round(share * batch)) for share in _SHARES]
        return [(arm.x, max(tried, key=lambda metrics: metrics["good"]))]
    return [(arm.x, play(batch, seed, gauges=arm.series == _TOLD))]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return what either reaches of the best fixed cap, at the engine where it is least."""
    good = {(place.series, place.x): place.metrics["good"].mean for place in places}
    return {
        f"{series}: least share of the best": min(
            good[series, float(batch)] / good[_BEST, float(batch)] for batch in _BATCHES
        )
        for series in (_TOLD, _SILENT)
    }


FOUND_CAP = Experiment(
    name="found_cap",
    question="What does a gate without settings make of an engine whose batch it does not know?",
    arms=tuple(Arm(series, float(batch)) for series in (_BEST, _TOLD, _SILENT) for batch in _BATCHES),
    run=_run,
    metric="good",
    x_label="sequences that the engine runs",
    y_label="good requests, over the engine's capacity",
    facts=_facts,
)
