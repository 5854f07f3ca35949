"""Do longer prompts have longer answers."""

from math import exp, log
from random import Random
from statistics import fmean

import pytest

from millgate.core.sizing.output_length import Centre, PromptTrend

SCATTER = 0.6
USUAL = log(500.0)


def _taught(
    slope: float, answers: int, seed: int, trend: PromptTrend | None = None
) -> tuple[PromptTrend, Centre]:
    """Return what so many answers teach, with lengths that scatter by `SCATTER` about this slope."""
    trend, centre, dice = trend or PromptTrend(), Centre(), Random(seed)
    for _ in range(answers):
        prompt = dice.gauss(USUAL, SCATTER)
        centre.add(prompt, 5.0 + slope * (prompt - USUAL) + dice.gauss(0.0, SCATTER), trend)
    return trend, centre


@pytest.mark.parametrize("slope", [-1.0, -0.5, 0.5, 1.0])
def test_a_slope_is_found_but_for_what_chance_explains(slope: float) -> None:
    found = [_taught(slope, 300, seed)[0].slope for seed in range(60)]

    assert fmean(found) == pytest.approx(slope, abs=0.08)
    assert all(each * slope > 0.0 for each in found)


@pytest.mark.parametrize("answers", [20, 100, 400])
def test_chance_is_mostly_no_slope(answers: int) -> None:
    """Within two standard errors, as nineteen clouds in twenty are, it is none."""
    found = [_taught(0.0, answers, seed)[0].slope for seed in range(100)]

    assert found.count(0.0) > 85
    assert abs(fmean(found)) < 0.05


def test_of_a_few_answers_nothing_is_said() -> None:
    assert _taught(1.0, 8, 1)[0].slope == 0.0


def test_tenants_that_differ_are_no_trend() -> None:
    """One asks long and is answered at length, the other both short; within each, prompts say nothing."""
    trend, dice = PromptTrend(), Random(2)
    tenants = [(Centre(), 5.0, 4.0), (Centre(), 8.0, 7.0)]
    for _ in range(200):
        for centre, prompt, said in tenants:
            centre.add(dice.gauss(prompt, 0.3), dice.gauss(said, 0.3), trend)

    assert trend.slope == pytest.approx(0.0, abs=0.15)


@pytest.mark.parametrize("slope", [-0.8, 0.8])
def test_usual_answers_are_as_long_on_average_as_all_are(slope: float) -> None:
    trend, centre = _taught(slope, 2_000, 3)
    dice = Random(4)

    shares = [exp(trend.lean(dice.gauss(USUAL, SCATTER), centre)) for _ in range(20_000)]

    assert fmean(shares) == pytest.approx(1.0, abs=0.05)


def test_the_line_ends_where_nothing_was_seen() -> None:
    trend, centre = _taught(1.0, 300, 5)
    farthest = trend.lean(USUAL + 20.0, centre)

    assert farthest == trend.lean(USUAL + 30.0, centre)
    assert 0.0 < farthest < 4.0 * SCATTER


def test_a_change_of_slope_shows() -> None:
    trend, _ = _taught(1.0, 2_000, 6)
    _taught(-1.0, 3_000, 7, trend)

    assert trend.slope < -0.7
