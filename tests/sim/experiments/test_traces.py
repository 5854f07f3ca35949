"""Recorded arrivals at several times the capacity: goodput against what a size-blind gate could reach."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.core.settings import LaneSettings
from headgate.engine.profile import find_profile
from headgate.sim.bounds.bound import Bounds, bound
from headgate.sim.clients.comeback import Sdk
from headgate.sim.clients.crowd import Manners
from headgate.sim.fleet import Fleet, uniform_fleet
from headgate.sim.jobs import Job
from headgate.sim.laws import constant
from headgate.sim.replay import replay
from headgate.sim.traces.azure import read_azure
from headgate.sim.traces.shaping import between, faster

PROFILE = find_profile("llama3-8b_h100_tp1")
SLO_S = 2.0
# Eight chunks of this engine: what waits beyond that waits in the gate, where an order can still choose.
PREFILL_TOKENS = 16_384


def at_load(path: Path, begin_s: float, load: float) -> list[Job]:
    """Return five minutes of a trace, made so much faster that they ask for this share of capacity."""
    coming = list(between(read_azure(path), begin_s, begin_s + 300.0))
    return list(faster(coming, load / bound(coming, PROFILE, 1, SLO_S).load))


def good_and_bounds(coming: list[Job], order: str) -> tuple[float, Bounds]:
    lane = LaneSettings("interactive", ttft_slo_s=SLO_S, deadline_s=SLO_S, order=order, fair=True)
    plain = uniform_fleet(PROFILE, 1, [lane])
    engines = tuple(replace(engine, prefill_tokens=PREFILL_TOKENS) for engine in plain.settings.engines)
    fleet = Fleet(replace(plain.settings, engines=engines), plain.profiles)
    replayed = replay(coming, fleet, manners=Manners(constant(5.0), Sdk()))
    return replayed.summary.good_share, bound(coming, PROFILE, 1, SLO_S)


@pytest.mark.parametrize("load", [1.25, 2.0, 5.0])
@pytest.mark.parametrize("name", ["conv", "code"])
def test_a_recorded_overload_is_served_above_the_size_blind_line(
    name: str, load: float, shared_data: Callable[[str], Path]
) -> None:
    coming = at_load(shared_data(f"traces/AzureLLMInferenceTrace_{name}.csv"), 1400.0, load)
    good, bounds = good_and_bounds(coming, "short_first")

    assert 0.9 * bounds.size_blind <= good <= bounds.upper


def test_short_first_serves_more_than_arrival_where_long_prompts_have_short_answers(
    shared_data: Callable[[str], Path],
) -> None:
    """Priced by the time under way, a prompt of thousands of tokens with a short answer would pass for short."""
    coming = at_load(shared_data("traces/AzureLLMInferenceTrace_conv.csv"), 1400.0, 2.0)
    by_arrival, _ = good_and_bounds(coming, "arrival")
    short_first, _ = good_and_bounds(coming, "short_first")

    assert short_first > 1.05 * by_arrival
