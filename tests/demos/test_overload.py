"""The overload demo: its options, its arithmetic, and its load played in virtual time through the real governor."""

import json
from dataclasses import replace

import pytest

from millgate.config.schema import Config
from millgate.demos.overload import (
    EXACT,
    PATIENCE_S,
    RETRIES,
    RUN_S,
    SEQUENCES,
    TTFT_SLO_S,
    OverloadOptions,
    OverloadOutcome,
    OverloadRun,
    attainable_per_s,
    batch_of,
    body_writer,
    bounds_of,
    wasted_share,
    wishes_of,
)
from millgate.demos.scores import EngineCounts, score
from millgate.demos.users import Mix, Story, UserEnding
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.fleet import SimulatedFleet, configured_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.world import World

GOOD = Story(UserEnding.WHOLE, first_token_s=1.0, prompt_tokens=100, output_tokens=50)
PLAYED = [("llama3-70b_h100_tp4", 1), ("llama3-70b_h100_tp4", 2), ("llama3-8b_h100_tp1", 1)]
LATE = GOOD._replace(first_token_s=6.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": 0.0}, "load: must be from 0.05 to 10, got 0"),
        ({"max_tokens": "many"}, "max_tokens: must be exact or a number, got 'many'"),
        ({"max_tokens": "1"}, "max_tokens: must be from 16 to 1e"),
        ({"peer": "nginx"}, "peer: must be haproxy or none, got 'nginx'"),
        ({"profile": "abacus"}, "profile: 'abacus' is not one of"),
        ({"time_scale": 11.0}, "time_scale: must be from 0.1 to 10"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OverloadOptions(**options)  # type: ignore[arg-type]  # one wrong value at a time


def test_a_seed_is_one_load_whatever_max_tokens_say() -> None:
    exact, vague, other = (
        OverloadOptions(),
        OverloadOptions(max_tokens="4096"),
        OverloadOptions(seed=2),
    )

    assert wishes_of(exact) == wishes_of(vague)
    assert wishes_of(exact) != wishes_of(other)


def test_the_load_asks_for_about_as_often_the_capacity_as_it_says() -> None:
    options = OverloadOptions()

    assert bounds_of(wishes_of(options), options).load == pytest.approx(options.load, rel=0.1)


def test_capacity_is_that_of_a_full_batch() -> None:
    sixteen = batch_of("llama3-70b_h100_tp4")

    assert sixteen.max_num_seqs == SEQUENCES
    assert attainable_per_s(sixteen, Mix()) < attainable_per_s(replace(sixteen, max_num_seqs=64), Mix())


def test_a_body_allows_the_true_length_or_one_number_for_all() -> None:
    wish = wishes_of(OverloadOptions())[0]

    exact, vague = (json.loads(body_writer(told, 4)(7, wish)) for told in (EXACT, "4096"))

    assert exact["max_tokens"] == wish.output_tokens
    assert vague["max_tokens"] == 4096
    assert exact["millgate_output_tokens"] == vague["millgate_output_tokens"] == wish.output_tokens


def test_what_is_in_no_good_answer_was_wasted() -> None:
    assert wasted_share([GOOD, LATE], 300, TTFT_SLO_S) == pytest.approx(0.5)
    assert wasted_share([GOOD], 150, TTFT_SLO_S) == 0.0
    assert wasted_share([], 0, TTFT_SLO_S) == 0.0


def test_ratios_are_of_the_gate_and_undefined_where_nobody_was() -> None:
    options = OverloadOptions()
    wishes = wishes_of(options)
    bounds = bounds_of(wishes, options)
    outcome = OverloadOutcome(
        5.0,
        bounds,
        {"no_gate": _run("no_gate", [GOOD, LATE, LATE, LATE]), "gate": _run("gate", [GOOD, LATE])},
    )

    ratios = outcome.ratios()

    assert ratios["gate_to_no_gate"] == pytest.approx(2.0)
    assert ratios["gate_to_first_come_optimum"] == pytest.approx(0.5 / bounds.first_come)
    assert ratios["gate_to_haproxy"] is None


def _run(door: str, stories: list[Story]) -> OverloadRun:
    counts = EngineCounts(100, 0, 100, 16)
    return OverloadRun(door, score(stories, counts, slo_s=TTFT_SLO_S, window_s=RUN_S, time_scale=1.0), 0.0)


@pytest.mark.parametrize(("profile", "seed"), PLAYED)
def test_lengths_that_are_told_serve_a_fifth_more_than_order_of_arrival_could(
    profile: str, seed: int
) -> None:
    options = OverloadOptions(profile=profile, seed=seed)

    assert _good_share_by_simulation(options) >= 1.2 * _first_come_optimum(options)


@pytest.mark.parametrize(("profile", "seed"), PLAYED)
def test_lengths_that_are_learned_serve_as_many_as_order_of_arrival_could(profile: str, seed: int) -> None:
    options = OverloadOptions(profile=profile, seed=seed, max_tokens="4096")

    assert _good_share_by_simulation(options) >= _first_come_optimum(options)


def test_without_a_gate_nearly_everybody_is_too_late() -> None:
    options = OverloadOptions()

    assert _good_share_by_simulation(options, "no gate") < 0.25 * _first_come_optimum(options)


def _first_come_optimum(options: OverloadOptions) -> float:
    return bounds_of(wishes_of(options), options).first_come


def _good_share_by_simulation(options: OverloadOptions, policy: str = "gate") -> float:
    """Play the demo's load in virtual time: the same users, and the settings that the demo's flags give a gate."""
    fleet = _fleet_by_flags(options.profile)
    loop, streams = Loop(), Streams(options.seed)
    recorder = Recorder(fleet.settings.lanes, from_s=0.0)
    world = World(POLICIES[policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    users = Manners(constant(PATIENCE_S), Sdk(RETRIES, labels=False))
    OpenLoop(world, Crowd(world, users, streams), iter(_jobs(options)))
    loop.run(RUN_S + 10.0 * PATIENCE_S)
    return world.summary(recorder).good_share


def _fleet_by_flags(profile: str) -> SimulatedFleet:
    config = Config.model_validate(
        {
            "engines": [{"url": "http://engine:8000", "max_inflight": SEQUENCES}],
            "lanes": [{"name": "interactive", "ttft_slo": f"{TTFT_SLO_S:g}s"}],
        }
    )
    fleet = configured_fleet(config, profile)
    return SimulatedFleet(fleet.settings, {name: batch_of(profile) for name in fleet.profiles})


def _jobs(options: OverloadOptions) -> list[Job]:
    return [
        Job(
            wish.at_s,
            wish.prompt_tokens,
            wish.output_tokens,
            max_tokens=wish.output_tokens if options.max_tokens == EXACT else int(options.max_tokens),
        )
        for wish in wishes_of(options)
    ]
