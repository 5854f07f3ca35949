"""`python -m lab.routing TRACE`: where requests with common prefixes go, by the gate's placement and by routers that others use.

A Mooncake trace, so many times as fast, before equal engines with prefix caches; no policy but `gate` refuses or queues anything.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

from lab.default_gate import metered
from lab.knobs import ABOVE_0, FILE, PROFILE, at_least, within
from lab.routers import RULES, RoutingCore
from millgate.core.settings import LaneSettings, LimitSettings, Settings
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.driver import DecidingCore
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.sources import between, faster, read_mooncake
from millgate.sim.traces.tables import TraceError
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

_TTFT_SLO_S, _TPOT_SLO_S = 10.0, 0.1
_WARM_UP_S, _UNTIL_S, _DRAINED_S = 60.0, 900.0, 1_500.0


def _placement_alone(settings: Settings) -> DecidingCore:
    """Return the gate without its cap, meters, limit, queue and deadlines: what is left is where it places."""
    engines = tuple(
        replace(each, max_inflight=100_000, kv_tokens=None, prefill_tokens=None, limit=LimitSettings())
        for each in settings.engines
    )
    lanes = tuple(replace(lane, deadline_s=inf) for lane in settings.lanes)
    return build_governor(replace(settings, engines=engines, lanes=lanes), 0.0)


def _gate(settings: Settings) -> DecidingCore:
    return build_governor(settings, 0.0)


POLICIES: Mapping[str, Callable[[Settings], DecidingCore]] = {
    **{name: partial(RoutingCore, rule=rule) for name, rule in RULES.items()},
    "placement alone": _placement_alone,
    "gate": _gate,
}


def fleet_of(profile: str, engines: int, kv_tokens: int) -> SimulatedFleet:
    """Return equal engines of a profile with so much memory and prefix caches, the meter of prompts, and the limit that a lane's `tpot_slo` gives them."""
    lane = LaneSettings(
        "chat",
        ttft_slo_s=_TTFT_SLO_S,
        tpot_slo_s=_TPOT_SLO_S,
        deadline_s=_TTFT_SLO_S,
        order="short_first",
    )
    known = replace(find_profile(profile), kv_tokens=kv_tokens)
    limit = LimitSettings("slo_gradient", tpot_slo_s=_TPOT_SLO_S)
    return replace(metered(uniform_fleet(known, engines, [lane], limit=limit)), prefix_caching=True)


def play(policy: str, fleet: SimulatedFleet, trace: Path, speed: float, seed: int) -> str:
    """Return one line: tokens found in caches, times, and good answers of all requests."""
    streams, loop = Streams(seed), Loop()
    recorder = Recorder(fleet.settings.lanes, from_s=_WARM_UP_S)
    world = World(POLICIES[policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    jobs = between(faster(read_mooncake(trace, streams), speed), 0.0, _UNTIL_S)
    OpenLoop(world, Crowd(world, Manners(), streams), jobs)
    loop.run(_DRAINED_S)
    told, totals = world.summary(recorder), world.totals()
    return (
        f"| {speed:g} | {policy} | {totals.hit_tokens / max(1, totals.queried_tokens):.3f} | {told.ttft_s.mean:.2f} s | "
        f"{told.ttft_s.p99:.1f} s | {1e3 * told.tpot_s.mean:.0f} ms | {told.good_share:.3f} |"
    )


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.routing", description=__doc__)
    parser.add_argument("trace", type=within(Path, FILE), help="a trace in Mooncake's format")
    parser.add_argument(
        "--speed", type=within(float, ABOVE_0), nargs="+", default=[2.0, 5.0], help="times as fast (2 5)"
    )
    parser.add_argument("--engines", type=within(int, at_least(1)), default=8, help="equal engines (8)")
    parser.add_argument(
        "--kv-tokens", type=within(int, at_least(512)), default=1_500_000, help="memory of each (1500000)"
    )
    parser.add_argument(
        "--profile", type=within(str, PROFILE), default="llama3-70b_h100_tp8", help="their profile"
    )
    parser.add_argument("--seed", type=within(int, at_least(0)), default=1)
    asked = parser.parse_args(arguments)
    print("| speed | policy | found | TTFT | p99 | TPOT | good |\n|---|---|---|---|---|---|---|")
    for speed in asked.speed:
        for policy in POLICIES:
            fleet = fleet_of(asked.profile, asked.engines, asked.kv_tokens)
            try:
                print(play(policy, fleet, asked.trace, speed, asked.seed), flush=True)
            except TraceError as error:
                parser.error(f"trace: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
