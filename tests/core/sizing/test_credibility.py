"""How far is a key believed."""

from math import log, sqrt
from random import Random

import pytest
from hypothesis import given, strategies as st

from millgate.core.sizing.credibility import Credibility, KeyStanding

SCATTER = 0.8
MANY = 10_000.0


def _scattered() -> Credibility:
    """Return what has seen many answers, each as far from its key's word as lengths usually are."""
    credibility = Credibility()
    for _ in range(2_000):
        credibility.scattered(SCATTER, 200.0)
    return credibility


def _compared(credibility: Credibility, distances: list[float], answers: float) -> list[float]:
    """Return how far keys at these distances are believed once all of them are known."""
    keys = [KeyStanding() for _ in distances]
    for _ in range(2):
        trusts = [
            credibility.compare(key, distance, answers, MANY)
            for key, distance in zip(keys, distances, strict=True)
        ]
    return trusts


def _by_chance(keys: int, answers: float) -> list[float]:
    """Return distances as keys have that do not differ at all, after so many answers each."""
    dice = Random(1)
    return [dice.gauss(0.0, SCATTER / sqrt(answers)) for _ in range(keys)]


def test_before_anything_is_known_eight_answers_weigh_as_much_as_all_that_lies_below() -> None:
    assert Credibility().worth_answers() == 8.0


@pytest.mark.parametrize("answers", [5.0, 20.0, 100.0])
def test_keys_that_differ_by_chance_are_hardly_believed(answers: float) -> None:
    trusts = _compared(_scattered(), _by_chance(8, answers), answers)

    assert sum(trusts) / len(trusts) < 0.35
    assert answers / (answers + 4.0) > 0.5


@pytest.mark.parametrize("answers", [5.0, 20.0, 100.0])
def test_keys_a_factor_of_two_apart_are_believed_after_a_few_answers(answers: float) -> None:
    distances = [log(2.0) * step for step in (-2, -1, 1, 2)]

    assert min(_compared(_scattered(), distances, answers)) > 0.7


def test_more_answers_make_a_key_more_credible_where_keys_differ() -> None:
    credibility, steady = _scattered(), KeyStanding()
    credibility.compare(KeyStanding(), 1.0, 50.0, MANY)

    trusts = [credibility.compare(steady, 1.0, answers, MANY) for answers in (1.0, 4.0, 16.0, 64.0)]

    assert trusts == sorted(trusts)
    assert trusts[-1] > 0.9


def test_one_who_differs_is_not_drowned_by_a_hundred_who_do_not() -> None:
    credibility = _scattered()
    _compared(credibility, _by_chance(100, 50.0), 50.0)

    assert credibility.compare(KeyStanding(), log(10.0), 50.0, MANY) > 0.95


def test_a_distance_from_little_known_ground_is_no_difference() -> None:
    """What lies below may itself be off by chance: its answers count as the key's own do."""
    credibility = _scattered()

    assert credibility.compare(KeyStanding(), 0.5, 200.0, 5.0) < credibility.compare(
        KeyStanding(), 0.5, 200.0, MANY
    )


def test_a_key_that_is_dropped_leaves_nothing_behind() -> None:
    credibility, passing = Credibility(), KeyStanding()
    credibility.compare(passing, 2.0, 40.0, MANY)
    assert credibility.worth_answers() != 8.0

    credibility.forget(passing)

    assert credibility.worth_answers() == pytest.approx(8.0)


def test_answers_that_are_all_equal_leave_it_defined() -> None:
    credibility = Credibility()
    for _ in range(50_000):
        credibility.scattered(0.0, 200.0)

    assert credibility.compare(KeyStanding(), 0.0, 200.0, 200.0) == pytest.approx(200.0 / 408.0, rel=0.5)
    assert credibility.compare(KeyStanding(), 0.1, 200.0, 200.0) > 0.9


@given(st.lists(st.tuples(st.floats(-12, 12), st.floats(1, 200), st.floats(1, 200)), min_size=1, max_size=40))
def test_nobody_is_believed_less_than_not_at_all_or_more_than_wholly(
    compared: list[tuple[float, float, float]],
) -> None:
    credibility = Credibility()
    for error, answers, below in compared:
        credibility.scattered(error, answers)
        assert 0.0 <= credibility.compare(KeyStanding(), error, answers, below) <= 1.0
        assert credibility.worth_answers() > 0.0
