"""What refinements are measured on: short forms of the simulator's experiments, one run a case and seed.

A run shows shares of 1 (`goodput`, `kept`, `idle`, `misses`), which the table prints as points.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice, product
from math import inf

from lab.changing_rates import step
from lab.experiments.accounts import let_come
from lab.experiments.limiter_shootout import feasible, judged, pinned
from lab.experiments.promises import Case, attend, watch
from lab.experiments.scenario import Scenario, play
from lab.fleet_suites import FLEET_SUITES
from lab.suite import Run, Shown, Suite
from lab.time_outs import SLOW_CASES, given_up
from lab.unknown_lengths import Mix, coming
from lab.unlike_engines import BUSIER_CASES, UNLIKE_CASES, answered
from lab.waves import third_wave
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.engine.profile import find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.fleet import EngineManners, SimulatedFleet, uniform_fleet
from millgate.sim.laws import constant, lognormal
from millgate.sim.randomness import Streams
from millgate.sim.replay import replay
from millgate.sim.traces.synthetic import LENGTHS, Lengths, jobs, steady
from millgate.wiring.chosen import PREFILL_TOKENS

# Requests of 2 s each, as uneven as an exponential law, with 15 s to the first token, watched for a minute after the warm-up.
_HINTS = Case(spread=1.0, deadline_s=15.0, seconds=75.0)
_SLO_S = 5.0
_PATIENCE_S = 10.0
_SEQUENCES = 16
_CODE = "azure_code"


def _hints(case: Case, load: float, seed: int, *, known: bool) -> Shown:
    shown = watch(case, load, seed, known=known).metrics()
    return {
        "goodput": shown["good"],
        "kept": shown["kept"],
        "idle": shown["idle"],
        "misses": 1.0 - shown["good"],
        "start_kept": shown["start_kept"],
    }


def _asked_back(absent_by: str = "user") -> Mapping[str, Run]:
    cases = product((1, 8, 16), (True, False), (1.3, 2.0), (1, 4), (0.0, 0.5))
    return {
        f"{streams} streams, {known=}, {load} times, {tenants} tenants, {absent} absent": partial(
            _hints,
            replace(_HINTS, streams=streams, tenants=tenants, absent=absent, absent_by=absent_by),
            load,
            known=known,
        )
        for streams, known, load, tenants, absent in cases
    }


def _queued() -> Mapping[str, Run]:
    cases = product(("arrival", "short_first"), (8, -1), (1.3, 2.0), (1, 4))
    return {
        f"{order}, queue {queue}, {load} times, {tenants} tenants": partial(
            _hints,
            replace(_HINTS, streams=8, order=order, max_queue=queue, tenants=tenants, max_wait_s=5.0),
            load,
            known=False,
        )
        for order, queue, load, tenants in cases
    }


def _minutes() -> Mapping[str, Run]:
    case = Case(streams=4, tenants=4, seconds=240.0)
    return {
        f"{load} times, {spread=}": partial(_hints, replace(case, spread=spread), load, known=False)
        for load, spread in product((1.3, 2.0), (0.5, 1.0))
    }


def _waves(service_s: float, tenants: int, seed: int) -> Shown:
    """Idle is the share of the third wave's time in which the stream is free."""
    idle, tries = third_wave(service_s, tenants, seed)
    return {"idle": idle, "tries": tries}


def _bursts(order: str, load: float, seed: int) -> Shown:
    """Bursts of four long prompts with short answers, and clients that return on time: the reading binds, not the streams."""
    streams, lengths = Streams(seed), Lengths(lognormal(3000.0, 1.0), lognormal(30.0, 1.0))
    case = Case(streams=64, deadline_s=5.0, order=order, profile="llama3-8b_h100_tp1", seconds=120.0)
    per_s = load * capacity_per_s(find_profile(case.profile), lengths, case.streams)
    coming = jobs(steady(per_s / 4.0, streams), lengths, streams, until_s=case.seconds)
    others = jobs(steady(per_s, streams, number=1), lengths, streams, until_s=inf, number=1)
    burst = (each._replace(at_s=job.at_s, max_tokens=4096) for job in coming for each in islice(others, 4))
    shown = attend(case, burst, streams).metrics()
    return {"goodput": shown["good"], "kept": shown["kept"], "idle": shown["idle"]}


def _correlated(together: float, seed: int) -> Shown:
    """Unknown lengths that go with their prompts, or against them."""
    profile = replace(find_profile("llama3-8b_h100_tp1"), max_num_seqs=_SEQUENCES)
    settings = EngineSettings(
        "engine", _SEQUENCES, kv_tokens=int(0.9 * profile.kv_tokens), prefill_tokens=PREFILL_TOKENS
    )
    fleet = SimulatedFleet(Settings((_lane(),), (settings,)), {"engine": profile})
    mix = Mix(prompt_cv=1.0, output_cv=1.0, together=together)
    manners = Manners(constant(_PATIENCE_S), Sdk(3, labels=False))
    return {
        "goodput": replay(coming(mix, profile, seed), fleet, manners=manners, seed=seed).summary.good_share
    }


def _lane(order: str = "short_first", name: str = "interactive", slo_s: float = _SLO_S) -> LaneSettings:
    return LaneSettings(name, ttft_slo_s=slo_s, deadline_s=slo_s, order=order, fair=True)


def _unknown_lengths(lengths: str, engine: str, load: float, seed: int) -> Shown:
    """Answer lengths are unknown: every client allows 4096 tokens."""
    profile = replace(find_profile(engine), max_num_seqs=_SEQUENCES)
    kv_tokens = int(0.9 * profile.kv_tokens)
    settings = EngineSettings("engine", _SEQUENCES, kv_tokens=kv_tokens, prefill_tokens=PREFILL_TOKENS)
    fleet = SimulatedFleet(Settings((_lane(),), (settings,)), {"engine": profile})
    streams, laws = Streams(seed), LENGTHS[lengths]
    per_s = load * capacity_per_s(profile, laws, _SEQUENCES)
    coming = jobs(steady(per_s, streams), laws, streams, until_s=60.0, tenants=4)
    told = (job._replace(max_tokens=4096) for job in coming)
    manners = Manners(constant(_PATIENCE_S), Sdk(3, labels=False))
    summary = replay(told, fleet, manners=manners, seed=seed).summary
    return {"goodput": summary.good_share, "misses": summary.outcomes.get("late", 0) / summary.requests}


def _overload(scenario: Scenario, seed: int) -> Shown:
    played = play(scenario, seed)
    summary = played.summary
    shown = {
        "goodput": played.goodput_share,
        "misses": summary.outcomes.get("late", 0) / max(1, summary.requests),
    }
    # Where no client was to return none was told wrongly either.
    return shown | ({"kept": summary.returns_kept} if summary.returns else {})


def _gated() -> Mapping[str, Run]:
    users = Manners(lognormal(8.0, 0.25), Sdk())
    usual = Scenario(manners=users, warm_up_s=10.0, until_s=30.0)
    return {
        f"{order}, {load} times": partial(
            _overload, replace(usual, lane=_lane(order, slo_s=2.0)).at_load(load)
        )
        for order in ("arrival", "short_first")
        for load in (1.2, 3.0)
    }


_STORM = Scenario(
    engines=2,
    lane=_lane(slo_s=2.0),
    lengths=LENGTHS["short"],
    load=step(0.7, 2.0, 10.0, 20.0),
    highest_load=2.0,
    manners=Manners(constant(5.0), Sdk()),
    engine_manners=EngineManners(ignores_hangups=True),
    warm_up_s=0.0,
    until_s=45.0,
    aftermath_s=0.0,
)


def _flooded(limit: int, seed: int) -> Shown:
    """Two lanes of equal share: goodput is that of the flood at ten times the capacity, misses those of the quiet lane."""
    profile, laws, streams = find_profile("llama3-8b_h100_tp1"), LENGTHS["azure_conversation"], Streams(seed)
    capacity = capacity_per_s(profile, laws, limit)
    loads = {"quiet": (0.25, Manners()), "flood": (10.0, Manners(constant(5.0), Sdk()))}
    crowds = [
        (
            manners,
            jobs(
                steady(load * capacity, streams, number=number),
                laws,
                streams,
                until_s=60.0,
                lane=name,
                number=number,
            ),
        )
        for number, (name, (load, manners)) in enumerate(loads.items())
    ]
    lanes = [_lane(name=name) for name in loads]
    accounts = let_come(uniform_fleet(profile, 1, lanes, max_inflight=limit), crowds, streams, 100.0)
    late = [each for each in accounts if each.arrived_at >= 30.0]
    quiet = [each for each in late if each.lane == "quiet"]
    good = sum(each.lane == "flood" and each.outcome == "good" for each in late)
    return {
        "goodput": good / (30.0 * capacity),
        "misses": sum(each.outcome != "good" for each in quiet) / len(quiet),
    }


def _limited(profile: str, start: float, seed: int) -> Shown:
    """Goodput is tokens over the best fixed limit's, a miss how far p90 TPOT lies above its SLO."""
    shown = judged(profile, pinned(profile, feasible(profile, seed)[0], start), seed)
    return {"goodput": shown["tokens_share"], "misses": max(0.0, shown["tpot_p90_share"] - 1.0)}


def _limits() -> Mapping[str, Run]:
    profiles = ("llama3-8b_h100_tp1", "llama3-70b_h100_tp4")
    return {
        f"{name} from {start:g} x": partial(_limited, name, start)
        for name in profiles
        for start in (0.5, 10.0)
    }


SUITES: Mapping[str, Suite] = {
    "hints": Suite(
        "`python -m lab run hints`: a full gate without a queue, and clients that return on time",
        2,
        _asked_back(),
    ),
    "absent tenants": Suite(
        "the same before 8 streams, half of the tenants never returning",
        5,
        {
            name: run
            for name, run in _asked_back("tenant").items()
            if name.startswith("8 streams") and name.endswith("4 tenants, 0.5 absent")
        },
    ),
    "absent users": Suite(
        "four tenants before 8 streams, half of the users never returning",
        5,
        {
            f"{load} times, {known=}": partial(
                _hints, Case(streams=8, tenants=4, absent=0.5), load, known=known
            )
            for load, known in product((1.3, 2.0), (True, False))
        },
    ),
    "minutes": Suite("four tenants before four streams over four minutes", 3, _minutes()),
    "waves": Suite(
        "two waves of 20 whose refused clients never return, and a third, before one stream",
        8,
        {
            f"{service_s:g} s, {tenants} tenants": partial(_waves, service_s, tenants)
            for service_s, tenants in product((0.5, 1.0, 2.0), (1, 3))
        },
    ),
    "bursts": Suite(
        "bursts of four prompts of 3,000 tokens, which bind the reading, and clients that return on time",
        4,
        {
            f"{order}, {load} times": partial(_bursts, order, load)
            for order, load in product(("arrival", "short_first"), (1.2, 1.8))
        },
    ),
    "correlated": Suite(
        "unknown lengths that go with their prompts, or against them, 2.7 times the capacity",
        6,
        {f"correlation {together}": partial(_correlated, together) for together in (0.5, -0.5, -0.9)},
    ),
    "queued": Suite("the same with newcomers queued, by arrival and short work first", 3, _queued()),
    "sizing": Suite(
        "unknown lengths, 2.7 times the capacity",
        4,
        {
            f"{lengths} on {engine}": partial(_unknown_lengths, lengths, engine, 2.7)
            for lengths in ("azure_conversation", _CODE, "lognormal_1")
            for engine in ("llama3-8b_h100_tp1", "llama3-70b_a100_tp4")
        },
    ),
    "overload": Suite("no_gate_vs_gate: SDKs before a gate", 8, _gated()),
    "storm": Suite(
        "retry_storm: engines that ignore hang-ups, before two engines",
        6,
        {"spike": partial(_overload, _STORM)},
    ),
    "lanes": Suite(
        "lane_isolation: a lane that floods beside a quiet one",
        5,
        {f"{limit} streams": partial(_flooded, limit) for limit in (16, 64)},
    ),
    "limits": Suite(
        "limiter_shootout: slo_gradient from a half and from ten times what is feasible", 3, _limits()
    ),
    "time-outs": Suite(
        "engines slower than believed, or that hang, and answers that are given up where none begins in time",
        6,
        {name: partial(given_up, case) for name, case in SLOW_CASES.items()},
    ),
    "unlike engines": Suite(
        "chats, and prompts that half of the engines read too slowly for their deadline",
        6,
        {name: partial(answered, case) for name, case in UNLIKE_CASES.items()},
    ),
    "unlike engines, overloaded": Suite(
        "the same at one and a half times the capacity",
        6,
        {name: partial(answered, case) for name, case in BUSIER_CASES.items()},
    ),
    **FLEET_SUITES,
}
