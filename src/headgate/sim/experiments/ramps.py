"""early_warning: load climbs through capacity before a gate that only observes. When is it called, and how early?

Five minutes of calm between 0.7 and 0.8 of capacity, then a ramp to 1.3. Nothing is refused, so that what follows
is what the alarm is for: *lead* is from the alarm to the first request that waits longer than its objective.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from headgate.core.governor import Governor
from headgate.core.settings import LaneSettings
from headgate.engine.profile import find_profile
from headgate.sim.bounds.work import capacity_per_s
from headgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from headgate.sim.experiments.accounts import Account, Accounts
from headgate.sim.experiments.contract import Arm, Experiment, Measured, Place
from headgate.sim.fleet import Fleet, uniform_fleet
from headgate.sim.loop import WATCHES, Loop
from headgate.sim.randomness import Streams
from headgate.sim.records import NoBooks
from headgate.sim.traces.synthetic import LENGTHS, Rate, changing, jobs
from headgate.sim.world import World
from headgate.wiring.governor import build_governor

CALM_S, _TOP_LOAD, _AFTER_S = 300.0, 1.3, 25.0
_SLO_S, _DEADLINE_S = 2.0, 10.0
_RAMPS_S = (60.0, 30.0, 10.0)
_LENGTHS = LENGTHS["azure_conversation"]
_PROFILE = find_profile("llama3-8b_h100_tp1")


def _calm_load(seed: int) -> float:
    return 0.7 + 0.025 * (seed % 5)


def climb(ramp_s: float, seed: int, engines: int = 1) -> Mapping[str, float]:
    """Return seconds from load 1.0 to the alarm (`delay`), from it to the first miss (`lead`), and false alarms."""
    calm = _calm_load(seed)
    until_s = CALM_S + ramp_s + _AFTER_S
    alarms, accounts = _watch(
        lambda now: min(_TOP_LOAD, calm + (_TOP_LOAD - calm) * max(0.0, now - CALM_S) / ramp_s),
        seed,
        engines,
        until_s,
    )
    full_at = CALM_S + ramp_s * (1.0 - calm) / (_TOP_LOAD - calm)
    called_at = min([at for at in alarms if at >= CALM_S], default=until_s)
    return {
        "delay_s": called_at - full_at,
        "lead_s": _first_miss_at(accounts, until_s) - called_at,
        "false_alarms_per_h": sum(at < CALM_S for at in alarms) * 3600.0 / CALM_S,
    }


def _watch(load: Rate, seed: int, engines: int, until_s: float) -> tuple[list[float], Sequence[Account]]:
    lane = LaneSettings(
        "interactive", ttft_slo_s=_SLO_S, deadline_s=_DEADLINE_S, order="short_first", fair=True
    )
    plain = uniform_fleet(_PROFILE, engines, [lane])
    fleet = Fleet(replace(plain.settings, observe=True), plain.profiles)
    governor = build_governor(fleet.settings, 0.0)
    loop, core, streams = Loop(), Accounts(governor), Streams(seed)
    world = World(core, loop, NoBooks())
    fleet.populate(world, streams)
    world.start_watch()
    capacity = engines * capacity_per_s(_PROFILE, _LENGTHS, _PROFILE.max_num_seqs)
    times = changing(lambda now: capacity * load(now), capacity * _TOP_LOAD, streams)
    OpenLoop(world, Crowd(world, Manners(), streams), jobs(times, _LENGTHS, streams, until_s=until_s))
    watch = _AlarmWatch(governor, loop, until_s)
    loop.run(until_s + _DEADLINE_S)
    return watch.raised_at, core.closed


class _AlarmWatch:
    """Looks at the alarm once a second and notes when one begins."""

    def __init__(self, governor: Governor, loop: Loop, until_s: float) -> None:
        self._governor = governor
        self._loop = loop
        self._until_s = until_s
        self._is_on = False
        self.raised_at: list[float] = []
        loop.at(1.0, self._look, None, WATCHES)

    def _look(self, _nothing: None) -> None:
        now = self._loop.now
        is_on = self._governor.snapshot(now).pools[0].alarm is not None
        if is_on and not self._is_on:
            self.raised_at.append(now)
        self._is_on = is_on
        if now < self._until_s:
            self._loop.at(now + 1.0, self._look, None, WATCHES)


def _first_miss_at(accounts: Sequence[Account], until_s: float) -> float:
    waits = [(each.arrived_at, inf if each.ttft_s is None else each.ttft_s) for each in accounts]
    late = [arrived_at + _SLO_S for arrived_at, wait_s in waits if arrived_at >= CALM_S and wait_s > _SLO_S]
    return min(late, default=until_s)


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    return [(arm.x, climb(arm.x, seed, int(arm.series.split()[0])))]


def _facts(places: Sequence[Place]) -> Mapping[str, float]:
    return {"false alarms an hour": median(place.metrics["false_alarms_per_h"].mean for place in places)}


EARLY_WARNING = Experiment(
    name="early_warning",
    question="Load climbs through capacity: how long before the first miss is it called?",
    arms=tuple(Arm(f"{engines} engines", ramp_s) for engines in (1, 4) for ramp_s in _RAMPS_S),
    run=_run,
    metric="lead_s",
    x_label="length of the ramp, seconds",
    y_label="seconds from the alarm to the first miss",
    seeds=20,
    facts=_facts,
)
