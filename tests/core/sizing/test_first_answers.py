"""What the first answers of a lane say of length, when most of it still runs."""

from math import sqrt
from random import Random
from statistics import fmean

import pytest

from core.measure.crowds import crowd
from millgate.core.sizing.output_length import FirstAnswers, OutputLength


def first(*ended: int) -> FirstAnswers:
    answers = FirstAnswers()
    for output_tokens in ended:
        answers.ended(output_tokens)
    return answers


def looked_at(answers: FirstAnswers) -> float:
    answers.look()
    return answers.stretch


def test_two_answers_say_nothing_of_those_that_run() -> None:
    answers = first(10, 20)
    answers.runs(500)

    assert looked_at(answers) == 1.0


def test_the_tokens_of_those_that_run_count_over_the_number_that_have_ended() -> None:
    answers = first(100, 100, 100)
    answers.runs(30)
    answers.runs(60)

    assert looked_at(answers) == pytest.approx(390 / 3 / 100.0)


def test_a_mean_is_stretched_by_a_half_at_most() -> None:
    answers = first(100, 100, 100)
    answers.runs(5000)

    assert looked_at(answers) == 1.5


def test_those_that_run_are_forgotten_after_each_reading() -> None:
    answers = first(*[100] * 10)
    answers.runs(900)

    assert looked_at(answers) > 1.0
    assert looked_at(answers) == 1.0


@pytest.mark.parametrize(("running", "enough"), [(0, 20), (1, 20), (8, 160)])
def test_after_twenty_for_each_that_runs_and_20_at_least_it_is_over(running: int, enough: int) -> None:
    answers = first(*[100] * (enough - 1))
    over = []
    for _ in range(2):
        for _ in range(running):
            answers.runs(900)
        answers.look()
        over.append(answers.is_over)
        answers.ended(100)

    assert over == [False, True]


def learned(lengths: list[int], *, exact: bool) -> OutputLength:
    sizes = OutputLength()
    for length in lengths:
        sizes.learn("m", "t", "lane", length if exact else 4096, 500, length)
    return sizes


def test_a_lane_expects_more_when_longer_ones_run_and_no_more_when_it_is_looked_at_without() -> None:
    sizes = learned([50, 100, 150, 100, 80, 120], exact=False)
    before, _ = sizes.estimate("m", "t", "lane", 4096, 500)
    sizes.look([("m", "lane", 4096, 300)] * 6 + [("m", "another", 4096, 4000)] * 6)
    stretched, reserved = sizes.estimate("m", "t", "lane", 4096, 500)
    sizes.look([])

    assert stretched > 1.1 * before
    assert reserved >= stretched
    assert sizes.estimate("m", "t", "lane", 4096, 500)[0] == before


@pytest.mark.parametrize("exact", [True, False])
def test_where_answers_are_as_long_as_allowed_nothing_is_stretched(exact: bool) -> None:
    sizes = learned([50, 300, 150, 700, 80, 120, 400, 60], exact=exact)
    sizes.look([("m", "lane", 4096, 900)] * 6)

    assert sizes.follows_bound("m", "lane", 4096) is exact
    expected, _ = sizes.estimate("m", "t", "lane", 4000, 500)
    assert (expected > 3500) is exact


def test_there_is_news_when_one_of_the_first_has_ended() -> None:
    sizes = OutputLength()
    news = [sizes.has_news]
    for _ in range(2):
        sizes.learn("m", "t", "lane", 4096, 500, 100)
        news.append(sizes.has_news)
        sizes.look([])
        news.append(sizes.has_news)

    assert news == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("turns", "of_ended", "of_stretched"), [(1.0, 0.53, 0.32), (2.0, 0.37, 0.17), (5.0, 0.20, 0.14)]
)
def test_a_stretched_mean_is_off_by_less_than_that_of_the_ended(
    turns: float, of_ended: float, of_stretched: float
) -> None:
    """Root mean squares over crowds of eight streams, cv 1, that have run for one, two and five mean answers."""
    dice = Random(3)
    off: list[tuple[float, float]] = []
    for _ in range(400):
        ended, running = crowd(8, turns, dice)
        if len(ended) >= 3:
            answers = first(*[round(1e4 * life) for life in ended])
            for life in running:
                answers.runs(round(1e4 * life))
            off.append((fmean(ended), fmean(ended) * looked_at(answers)))
    ended_off, stretched_off = (
        sqrt(fmean((mean - 1.0) ** 2 for mean in means)) for means in zip(*off, strict=True)
    )

    assert ended_off == pytest.approx(of_ended, abs=0.03)
    assert stretched_off == pytest.approx(of_stretched, abs=0.03)
