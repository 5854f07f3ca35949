"""Is overload called in time, and only then? A gate that observes and refuses nothing, so that an alarm has its follow.

`early_warning`: five minutes of calm between 0.5 and 0.7 of capacity, then a ramp to between 1.3 and 1.5. *Delay* is the
time from load 1.0 to the alarm, *lead* from the alarm to the first request that waits longer than its objective. The best
delay is that of the best possible detector on the same arrivals (`lab.bounds.detection`).
`earliest_warning`: that bound alone, for any size of system.
`false_alarms`: a load that stays where it is, requests coming one by one or in bursts, or that swings as days do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import cos, inf, pi
from statistics import fmean

import numpy as np

from lab.books import unread_books
from lab.bounds.detection import Climb, best_delays_s, counted
from lab.changing_rates import changing
from lab.experiments.accounts import Accounts, SimulatedAccount
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings
from millgate.core.snapshot import AlarmSignal
from millgate.engine.profile import find_profile
from millgate.instruments.early_warning import SAMPLE_S
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.loop import WATCHES, Loop
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

CALM_S, _AFTER_S = 300.0, 25.0
_SLO_S, _DEADLINE_S = 2.0, 10.0
_RAMPS_S = (60.0, 30.0, 10.0)
_CALM_LOADS = (0.5, 0.7, 0.8, 0.9)
# Coefficients of variation of the gaps between arrivals: Poisson, and bursts.
_VARIATIONS = {"one by one": 1.0, "in bursts": 2.0}
_HOURS = 0.5
# Days as short as the experiment: 48 times as steep as real ones.
_SWINGING, _DAY_S = "swinging", 1800.0
_LENGTHS = LENGTHS["azure_conversation"]
_PROFILE = "llama3-8b_h100_tp1"
# The bound alone: so many drawn ramps a seed, after a minute of calm, which is all that the best detector needs.
_DRAWN, _DRAWN_CALM_S = 400, 60.0
_DRAWN_LOADS = (0.5, 0.6, 0.7)
_CAPACITIES_PER_S = (4.0, 7.0, 10.0, 16.0, 23.0)

_Raised = tuple[AlarmSignal, float]
"""What raised an alarm, and when."""


def climb(ramp_s: float, seed: int, engines: int = 1, profile: str = _PROFILE) -> Mapping[str, float]:
    """Return seconds from load 1.0 to the alarm (`delay`), from it to the first miss (`lead`), and false alarms.

    `best_delay_s` is that of the best possible detector.
    """
    capacity_per_s = engines * _capacity_per_s(profile)
    climb = Climb(0.5 + 0.05 * (seed % 5), 1.3 + 0.05 * (seed // 5 % 5), ramp_s, capacity_per_s)
    until_s = CALM_S + ramp_s + _AFTER_S
    alarms, accounts = _watch(partial(_climbing, climb), seed, engines, profile, until_s)
    full_at = CALM_S + climb.full_s
    called_at = min([at for _, at in alarms if at >= CALM_S], default=until_s)
    calm = [(signal, at) for signal, at in alarms if at < CALM_S]
    return {
        "delay_s": called_at - full_at,
        "best_delay_s": _best_delay_s(climb, seed, until_s),
        "lead_s": _first_miss_at(accounts, until_s) - called_at,
        **{f"{signal}_delay_s": _first(alarms, signal, until_s) - full_at for signal in AlarmSignal},
        **_per_hour(calm, CALM_S / 3600.0),
    }


def earliest(climb: Climb, seed: int) -> Mapping[str, float]:
    """Return the best possible detector's delays on drawn arrivals: the median, and the 90th percentile."""
    looks = int((_DRAWN_CALM_S + climb.ramp_s + _AFTER_S) / SAMPLE_S)
    ages_s = (np.arange(looks, dtype=np.float64) + 0.5) * SAMPLE_S - _DRAWN_CALM_S
    means = climb.loads(ages_s) * climb.capacity_per_s * SAMPLE_S
    arrived = Streams(seed).generator("arrivals").poisson(means[:, None], (looks, _DRAWN))
    delays_s = best_delays_s(climb, arrived, _DRAWN_CALM_S)
    return {
        "best_delay_s": float(np.median(delays_s)),
        "best_delay_p90_s": float(np.quantile(delays_s, 0.9)),
    }


def stay(
    load: float, variation: float, seed: int, hours: float = _HOURS, engines: int = 1, profile: str = _PROFILE
) -> Mapping[str, float]:
    """Return the alarms an hour of a load that stays; `variation` is that of the gaps between arrivals."""
    rate_per_s = load * engines * _capacity_per_s(profile)
    alarms, _ = _watch(
        lambda streams: steady(rate_per_s, streams, variation), seed, engines, profile, hours * 3600.0
    )
    return _per_hour(alarms, hours)


def swing(
    load: float, seed: int, hours: float = _HOURS, engines: int = 1, profile: str = _PROFILE
) -> Mapping[str, float]:
    """Return the alarms an hour of a load that swings between 0.4 of `load` and `load`, as days do: once in `_DAY_S`."""
    top_per_s = load * engines * _capacity_per_s(profile)

    def rate(now: float) -> float:
        return top_per_s * (0.7 - 0.3 * cos(2.0 * pi * now / _DAY_S))

    alarms, _ = _watch(
        lambda streams: changing(rate, top_per_s, streams), seed, engines, profile, hours * 3600.0
    )
    return _per_hour(alarms, hours)


def _per_hour(alarms: Sequence[_Raised], hours: float) -> dict[str, float]:
    """Return the alarms an hour, of all signals and of each."""
    counts = {signal: sum(raised is signal for raised, _ in alarms) for signal in AlarmSignal}
    each = {f"{signal}_false_alarms_per_h": count / hours for signal, count in counts.items()}
    return {"false_alarms_per_h": len(alarms) / hours, **each}


def _first(alarms: Sequence[_Raised], signal: AlarmSignal, until_s: float) -> float:
    """Return when this signal was raised after the calm."""
    return min([at for raised, at in alarms if raised is signal and at >= CALM_S], default=until_s)


def _climbing(climb: Climb, streams: Streams) -> Iterator[float]:
    """Yield the arrivals of a climb that begins when the calm is over."""
    calm, capacity = climb.calm, climb.capacity_per_s
    steepness = (climb.top - calm) / climb.ramp_s

    def rate(now: float) -> float:
        return capacity * min(climb.top, calm + steepness * max(0.0, now - CALM_S))

    return changing(rate, capacity * climb.top, streams)


def _best_delay_s(climb: Climb, seed: int, until_s: float) -> float:
    """Return how late the best possible detector calls the arrivals of this seed."""
    times_s = list(takewhile(lambda at_s: at_s < until_s, _climbing(climb, Streams(seed))))
    return float(best_delays_s(climb, counted(times_s, until_s), CALM_S)[0])


def _capacity_per_s(profile_name: str) -> float:
    profile = find_profile(profile_name)
    return capacity_per_s(profile, _LENGTHS, profile.max_num_seqs)


def _watch(
    times: Callable[[Streams], Iterator[float]],
    seed: int,
    engines: int,
    profile_name: str,
    until_s: float,
) -> tuple[list[_Raised], Sequence[SimulatedAccount]]:
    """Return when alarms were raised, and what became of every request that came at these times."""
    lane = LaneSettings(
        "interactive", ttft_slo_s=_SLO_S, deadline_s=_DEADLINE_S, order="short_first", fair=True
    )
    profile = find_profile(profile_name)
    plain = uniform_fleet(profile, engines, [lane])
    fleet = SimulatedFleet(replace(plain.settings, observe=True), plain.profiles)
    governor = build_governor(fleet.settings, 0.0)
    loop, core, streams = Loop(), Accounts(governor), Streams(seed)
    world = World(core, loop, unread_books())
    fleet.populate(world, streams)
    world.start_watch()
    arrivals = jobs(times(streams), _LENGTHS, streams, until_s=until_s)
    OpenLoop(world, Crowd(world, Manners(), streams), arrivals)
    watch = _AlarmWatch(governor, loop, until_s)
    loop.run(until_s + _DEADLINE_S)
    return watch.raised, core.closed


class _AlarmWatch:
    """Looks at the alarms once a second and notes when each has begun."""

    def __init__(self, governor: Governor, loop: Loop, until_s: float) -> None:
        self._governor = governor
        self._loop = loop
        self._until_s = until_s
        self._on: list[AlarmSignal] = []
        self.raised: list[_Raised] = []
        loop.at(1.0, self._look, None, WATCHES)

    def _look(self, _nothing: None) -> None:
        now = self._loop.now
        alarms = self._governor.snapshot(now).pools[0].alarms
        self.raised += [(each.signal, each.raised_at) for each in alarms if each.signal not in self._on]
        self._on = [each.signal for each in alarms]
        if now < self._until_s:
            self._loop.at(now + 1.0, self._look, None, WATCHES)


def _first_miss_at(accounts: Sequence[SimulatedAccount], until_s: float) -> float:
    waits = [(each.arrived_at, inf if each.ttft_s is None else each.ttft_s) for each in accounts]
    late = [arrived_at + _SLO_S for arrived_at, wait_s in waits if arrived_at >= CALM_S and wait_s > _SLO_S]
    return min(late, default=until_s)


def _climb(profile: str, arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    return [(arm.x, climb(arm.x, seed, int(arm.series.split()[0]), profile))]


def _earliest(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    ramp_s, calm = (float(word) for word in arm.series.split(" s from "))
    return [(arm.x, earliest(Climb(calm, 1.3 + 0.05 * (seed % 5), ramp_s, arm.x), seed))]


def _stay(profile: str, arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    if arm.series == _SWINGING:
        return [(arm.x, swing(arm.x, seed, profile=profile))]
    return [(arm.x, stay(arm.x, _VARIATIONS[arm.series], seed, profile=profile))]


def _medians(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    said = {"delay_s": "delay", "best_delay_s": "best possible delay", "lead_s": "lead"}
    said |= {f"{signal}_delay_s": f"delay of `{signal}`" for signal in AlarmSignal}
    medians = {
        f"{place.series}, ramp of {place.x:g} s: median {words}, seconds": place.metrics[name].median
        for place in places
        for name, words in said.items()
    }
    return {**medians, **_alarms(places)}


def _alarms(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    said = {"false_alarms_per_h": "false alarms an hour"}
    said |= {f"{signal}_false_alarms_per_h": f"of them `{signal}`" for signal in AlarmSignal}
    return {words: fmean(place.metrics[name].mean for place in places) for name, words in said.items()}


def _before(question: Callable[[str], Experiment], knobs: Mapping[str, str]) -> Experiment:
    """Return the question before engines of the profile that is set."""
    for name in knobs:
        if name != "profile":
            raise ValueError(f"{name}: only profile can be set")
    return question(find_profile(knobs["profile"]).name)


def early_warning(profile: str) -> Experiment:
    """Return the question of a climbing load before engines of this profile."""
    return Experiment(
        name="early_warning",
        question="Load climbs through capacity: how long before the first miss is it called?",
        arms=tuple(Arm(f"{engines} engines", ramp_s) for engines in (1, 4) for ramp_s in _RAMPS_S),
        run=partial(_climb, profile),
        metric="lead_s",
        x_label="length of the ramp, seconds",
        y_label="seconds from the alarm to the first miss",
        seeds=20,
        facts=_medians,
        vary=partial(_before, early_warning),
    )


def false_alarms(profile: str) -> Experiment:
    """Return the question of a load that stays before engines of this profile."""
    return Experiment(
        name="false_alarms",
        question="The load stays where it is: how often is overload called all the same?",
        arms=tuple(Arm(series, load) for series in (*_VARIATIONS, _SWINGING) for load in _CALM_LOADS),
        run=partial(_stay, profile),
        metric="false_alarms_per_h",
        x_label="load, of capacity",
        y_label="alarms an hour",
        facts=_alarms,
        vary=partial(_before, false_alarms),
    )


EARLY_WARNING, FALSE_ALARMS = early_warning(_PROFILE), false_alarms(_PROFILE)

EARLIEST_WARNING = Experiment(
    name="earliest_warning",
    question="Load climbs through capacity: how soon could the best possible detector call it?",
    arms=tuple(
        Arm(f"{ramp_s:g} s from {calm}", capacity_per_s)
        for ramp_s in sorted(_RAMPS_S)
        for calm in _DRAWN_LOADS
        for capacity_per_s in _CAPACITIES_PER_S
    ),
    run=_earliest,
    metric="best_delay_s",
    x_label="requests a second at capacity",
    y_label="seconds from load 1.0 to the call, in the median",
)
