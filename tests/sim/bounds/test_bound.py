"""Bounds bracket what can be done, and what is done lies below the upper one."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings, strategies as st
from lab.experiments.scenario import Scenario, play, scenario_jobs

from millgate.core.settings import LaneSettings
from millgate.engine.profile import find_profile
from millgate.sim.bounds.bound import bound
from millgate.sim.bounds.work import capacity_per_s, least_work_s
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.randomness import Streams
from millgate.sim.replay import replay
from millgate.sim.traces.synthetic import LENGTHS

PROFILE = find_profile("llama3-8b_h100_tp1")


def test_a_light_load_can_be_served_whole() -> None:
    bounds = bound([Job(float(second), 1000, 100) for second in range(60)], PROFILE, 1, 2.0)

    assert (bounds.upper, bounds.best, bounds.size_blind) == (1.0, 1.0, 1.0)


def test_a_prompt_that_alone_takes_longer_than_its_deadline_is_hopeless() -> None:
    bounds = bound([Job(0.0, 100_000, 10), Job(0.0, 100, 10)], PROFILE, 1, 1.0)

    assert bounds.path == bounds.upper == 0.5


def test_an_answer_that_no_engine_can_hold_is_hopeless() -> None:
    """It was served by both schedules, where every engine refuses it."""
    bounds = bound([Job(0.0, 100, PROFILE.kv_tokens), Job(0.0, 100, 10)], PROFILE, 1, 1.0)

    assert (bounds.upper, bounds.best) == (0.5, 0.5)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 20.0), st.integers(1, 20_000), st.integers(1, 2000)), min_size=1, max_size=80
    ),
    st.integers(1, 3),
)
def test_no_schedule_beats_the_upper_bound(sizes: list[tuple[float, int, int]], engines: int) -> None:
    jobs = sorted(Job(*size) for size in sizes)
    bounds = bound(jobs, PROFILE, engines, 2.0)

    assert 0.0 <= bounds.best <= bounds.upper + 1e-9 <= 1.0 + 2e-9


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_the_gate_lies_below_the_bound(load: float) -> None:
    scenario = replace(Scenario().at_load(load), warm_up_s=0.0, until_s=40.0)
    bounds = bound(scenario_jobs(scenario, Streams(1)), PROFILE, 1, scenario.lane.ttft_slo_s)
    played = play(scenario, 1)

    assert 0.3 * bounds.upper < played.summary.good_share <= bounds.upper


def test_a_few_long_prompts_take_nothing_off_the_bound_of_the_short_requests() -> None:
    """The bound was 0.30 where the gate reached 0.87: it took the batch for one of requests of the mean length."""
    gaps = Streams(1).draws("gaps", lambda dice, count: dice.exponential(0.04, count))
    begins = accumulate(gaps.next() for _ in range(800))
    jobs = [Job(at_s, 350_000 if number % 8 == 5 else 100, 250) for number, at_s in enumerate(begins)]
    lane = LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0)
    good_share = replay(jobs, uniform_fleet(PROFILE, 1, [lane])).summary.good_share

    assert 0.8 < good_share <= bound(jobs, PROFILE, 1, 2.0).upper


def test_capacity_is_what_a_full_engine_needs_for_its_mean_request() -> None:
    fixed = LENGTHS["fixed"]
    capacity = capacity_per_s(PROFILE, fixed, 10**9)

    assert capacity < 1.0 / least_work_s(PROFILE, fixed.prompt.mean, fixed.output.mean)
    assert capacity == pytest.approx(1.0 / 0.0405, rel=0.1)


def test_the_size_blind_line_counts_no_time_after_the_last_deadline() -> None:
    """Twelve seconds of work come within two, and are due in two more: a third of them, though a window is ten long."""
    one_s = bound([Job(0.0, 1000, 100)], PROFILE, 1, 2.0).load * 1e-9
    count = round(12.0 / one_s)
    bounds = bound([Job(2.0 * number / count, 1000, 100) for number in range(count)], PROFILE, 1, 2.0)

    assert bounds.size_blind == pytest.approx(4.0 / 12.0, rel=0.02)


def test_no_request_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no request"):
        bound([], PROFILE, 1, 1.0)
