"""Is overload called in time, and only then? A gate that observes and refuses nothing, so that an alarm has its follow.

`early_warning`: five minutes of calm between 0.5 and 0.7 of capacity, then a ramp to between 1.3 and 1.5. *Delay* is the
time from load 1.0 to the alarm, *lead* from the alarm to the first request that waits longer than its objective.
`false_alarms`: a load that stays where it is, requests coming one by one or in bursts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean

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
from headgate.sim.traces.synthetic import LENGTHS, changing, jobs, steady
from headgate.sim.world import World
from headgate.wiring.governor import build_governor

CALM_S, _AFTER_S = 300.0, 25.0
_SLO_S, _DEADLINE_S = 2.0, 10.0
_RAMPS_S = (60.0, 30.0, 10.0)
_CALM_LOADS = (0.5, 0.7, 0.8, 0.9)
# Coefficients of variation of the gaps between arrivals: Poisson, and bursts.
_VARIATIONS = {"one by one": 1.0, "in bursts": 2.0}
_HOURS = 0.5
_LENGTHS = LENGTHS["azure_conversation"]
_PROFILE = "llama3-8b_h100_tp1"


def climb(ramp_s: float, seed: int, engines: int = 1, profile: str = _PROFILE) -> Mapping[str, float]:
    """Return seconds from load 1.0 to the alarm (`delay`), from it to the first miss (`lead`), and false alarms."""
    calm, top = 0.5 + 0.05 * (seed % 5), 1.3 + 0.05 * (seed // 5 % 5)
    until_s = CALM_S + ramp_s + _AFTER_S

    def times(capacity: float, streams: Streams) -> Iterator[float]:
        def rate(now: float) -> float:
            return capacity * min(top, calm + (top - calm) * max(0.0, now - CALM_S) / ramp_s)

        return changing(rate, capacity * top, streams)

    alarms, accounts = _watch(times, seed, engines, profile, until_s)
    full_at = CALM_S + ramp_s * (1.0 - calm) / (top - calm)
    called_at = min([at for at in alarms if at >= CALM_S], default=until_s)
    return {
        "delay_s": called_at - full_at,
        "lead_s": _first_miss_at(accounts, until_s) - called_at,
        "false_alarms_per_h": sum(at < CALM_S for at in alarms) * 3600.0 / CALM_S,
    }


def stay(
    load: float, variation: float, seed: int, hours: float = _HOURS, engines: int = 1, profile: str = _PROFILE
) -> Mapping[str, float]:
    """Return the alarms an hour of a load that stays; `variation` is that of the gaps between arrivals."""
    alarms, _ = _watch(
        lambda capacity, streams: steady(capacity * load, streams, variation),
        seed,
        engines,
        profile,
        hours * 3600.0,
    )
    return {"false_alarms_per_h": len(alarms) / hours}


def _watch(
    times: Callable[[float, Streams], Iterator[float]],
    seed: int,
    engines: int,
    profile_name: str,
    until_s: float,
) -> tuple[list[float], Sequence[Account]]:
    """Return when alarms were raised, and what became of everybody; `times` is told the requests a second of capacity."""
    lane = LaneSettings(
        "interactive", ttft_slo_s=_SLO_S, deadline_s=_DEADLINE_S, order="short_first", fair=True
    )
    profile = find_profile(profile_name)
    plain = uniform_fleet(profile, engines, [lane])
    fleet = Fleet(replace(plain.settings, observe=True), plain.profiles)
    governor = build_governor(fleet.settings, 0.0)
    loop, core, streams = Loop(), Accounts(governor), Streams(seed)
    world = World(core, loop, NoBooks())
    fleet.populate(world, streams)
    world.start_watch()
    capacity = engines * capacity_per_s(profile, _LENGTHS, profile.max_num_seqs)
    arrivals = jobs(times(capacity, streams), _LENGTHS, streams, until_s=until_s)
    OpenLoop(world, Crowd(world, Manners(), streams), arrivals)
    watch = _AlarmWatch(governor, loop, until_s)
    loop.run(until_s + _DEADLINE_S)
    return watch.raised_at, core.closed


class _AlarmWatch:
    """Looks at the alarm once a second and notes when one has begun."""

    def __init__(self, governor: Governor, loop: Loop, until_s: float) -> None:
        self._governor = governor
        self._loop = loop
        self._until_s = until_s
        self._is_on = False
        self.raised_at: list[float] = []
        loop.at(1.0, self._look, None, WATCHES)

    def _look(self, _nothing: None) -> None:
        now = self._loop.now
        alarm = self._governor.snapshot(now).pools[0].alarm
        if alarm is not None and not self._is_on:
            self.raised_at.append(alarm.raised_at)
        self._is_on = alarm is not None
        if now < self._until_s:
            self._loop.at(now + 1.0, self._look, None, WATCHES)


def _first_miss_at(accounts: Sequence[Account], until_s: float) -> float:
    waits = [(each.arrived_at, inf if each.ttft_s is None else each.ttft_s) for each in accounts]
    late = [arrived_at + _SLO_S for arrived_at, wait_s in waits if arrived_at >= CALM_S and wait_s > _SLO_S]
    return min(late, default=until_s)


def _climb(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    return [(arm.x, climb(arm.x, seed, int(arm.series.split()[0])))]


def _stay(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    return [(arm.x, stay(arm.x, _VARIATIONS[arm.series], seed))]


def _alarms(places: Sequence[Place]) -> Mapping[str, float]:
    return {"false alarms an hour": fmean(place.metrics["false_alarms_per_h"].mean for place in places)}


EARLY_WARNING = Experiment(
    name="early_warning",
    question="Load climbs through capacity: how long before the first miss is it called?",
    arms=tuple(Arm(f"{engines} engines", ramp_s) for engines in (1, 4) for ramp_s in _RAMPS_S),
    run=_climb,
    metric="lead_s",
    x_label="length of the ramp, seconds",
    y_label="seconds from the alarm to the first miss",
    seeds=20,
    facts=_alarms,
)

FALSE_ALARMS = Experiment(
    name="false_alarms",
    question="The load stays where it is: how often is overload called all the same?",
    arms=tuple(Arm(series, load) for series in _VARIATIONS for load in _CALM_LOADS),
    run=_stay,
    metric="false_alarms_per_h",
    x_label="load, of capacity",
    y_label="alarms an hour",
    facts=_alarms,
)
