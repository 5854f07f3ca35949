"""Recorded arrivals at several times the capacity: goodput against what a size-blind gate could reach."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from lab.experiments.promises import Case, attend
from lab.recorded import at_load, good_share

from millgate.engine.profile import find_profile
from millgate.sim.bounds.bound import Bounds, bound
from millgate.sim.randomness import Streams
from millgate.wiring.chosen import PREFILL_TOKENS

FAST = "llama3-8b_h100_tp1"
# It reads 2,048 tokens in a third of a second, and the meter's 16,384 in more than its objective.
SLOW = "llama3-70b_a100_tp4"
CODE, CONVERSATION = "traces/AzureLLMInferenceTrace_code.csv", "traces/AzureLLMInferenceTrace_conv.csv"


def _good_and_bounds(
    path: Path, begin_s: float, end_s: float, load: float, engine: str, slo_s: float
) -> tuple[float, Bounds]:
    profile = find_profile(engine)
    coming = at_load(path, begin_s, end_s, load, profile, slo_s)
    return good_share(coming, profile, slo_s, "short_first", PREFILL_TOKENS), bound(coming, profile, 1, slo_s)


@pytest.mark.parametrize("load", [1.25, 2.0, 5.0])
@pytest.mark.parametrize("name", [CODE, CONVERSATION])
def test_a_recorded_overload_is_served_above_the_size_blind_line(
    name: str, load: float, shared_data: Callable[[str], Path]
) -> None:
    good, bounds = _good_and_bounds(shared_data(name), 1400.0, 1700.0, load, FAST, 2.0)

    assert bounds.size_blind <= good <= bounds.upper


@pytest.mark.parametrize(("engine", "slo_s"), [(FAST, 5.0), (SLOW, 2.0)])
def test_completions_of_code_are_served_so_by_slow_engines_and_within_long_objectives_too(
    engine: str, slo_s: float, shared_data: Callable[[str], Path]
) -> None:
    """Bursts of long prompts with short answers: a moderate overload is many small ones."""
    path = shared_data(CODE)
    stretches = [
        _good_and_bounds(path, 680.0 * each, 680.0 * (each + 1), 1.25, engine, slo_s) for each in range(5)
    ]

    assert fmean(good for good, _ in stretches) >= 0.93 * fmean(bounds.size_blind for _, bounds in stretches)
    assert min(good / bounds.clairvoyant for good, bounds in stretches) >= 0.87


def test_short_first_serves_more_than_arrival_where_long_prompts_have_short_answers(
    shared_data: Callable[[str], Path],
) -> None:
    """Priced by the time under way, a prompt of thousands of tokens with a short answer would pass for short."""
    profile = find_profile(FAST)
    coming = at_load(shared_data(CONVERSATION), 1400.0, 1700.0, 2.0, profile, 2.0)
    by_arrival, short_first = (
        good_share(coming, profile, 2.0, order, PREFILL_TOKENS) for order in ("arrival", "short_first")
    )

    assert short_first > 1.05 * by_arrival


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_hints_hold_where_bursts_of_long_prompts_bind_and_nobody_is_held(
    order: str, shared_data: Callable[[str], Path]
) -> None:
    """Three of four were kept when a line was its permits alone: most streams are free, and the meter is full."""
    coming = at_load(shared_data(CODE), 680.0, 1360.0, 1.5, find_profile(FAST), 5.0)
    case = Case(streams=64, deadline_s=5.0, order=order, profile=FAST, seconds=coming[-1].at_s)
    seen = attend(case, iter(coming), Streams(1)).metrics()

    assert seen["promises"] > 200
    assert seen["kept"] >= 0.9
