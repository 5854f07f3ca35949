"""A ranking answers as a sorted list would, whatever was put in and taken out."""

from bisect import bisect_left
from random import Random

from hypothesis import given, strategies as some

from millgate.core.measure import Ranking

keys = some.integers(-(2**63), 2**63 - 1)


def _ranking(of: list[int]) -> Ranking:
    ranking = Ranking()
    for owner, key in enumerate(of):
        ranking.add(key, owner)
    return ranking


@given(some.lists(keys, unique=True), some.lists(keys, max_size=5), some.randoms(use_true_random=False))
def test_it_agrees_with_a_sorted_list(of: list[int], asked: list[int], dice: Random) -> None:
    ranking = _ranking(of)
    gone = dice.sample(of, len(of) // 2)
    for key in gone:
        ranking.remove(key)
    left = sorted(set(of) - set(gone))

    assert len(ranking) == len(left)
    assert [of[owner] for owner in ranking] == left
    for key in [*asked, *of]:
        index = bisect_left(left, key)
        after = ranking.after(key)
        assert (None if after is None else after[0]) == (left[index] if index < len(left) else None)
    ends = [(key, of.index(key)) for key in left[:1] + left[-1:]]
    assert [each for each in (ranking.first(), ranking.last()) if each is not None] == ends


def test_many_blocks_answer_like_one() -> None:
    dice = Random(3)
    of = dice.sample(range(10**9), 10_000)
    ranking, ordered = _ranking(of), sorted(of)
    for gone in dice.sample(of, 5_000):
        ranking.remove(gone)
        del ordered[bisect_left(ordered, gone)]

    assert [of[owner] for owner in ranking] == ordered


def test_an_equal_key_stands_before_those_that_were_there() -> None:
    assert list(_ranking([5, 5, 1])) == [2, 1, 0]


def test_a_copy_without_some_keys_leaves_the_first_alone() -> None:
    ranking = _ranking([3, 1, 2])
    copy = ranking.without([1])

    assert list(copy) == [2, 0]
    assert list(ranking) == [1, 2, 0]


def test_an_empty_one_has_neither_first_nor_last() -> None:
    ranking = _ranking([4])
    ranking.remove(4)

    assert (len(ranking), list(ranking)) == (0, [])
    assert ranking.first() is ranking.last() is ranking.after(0) is None


def _weighed(of: list[int]) -> Ranking:
    ranking = Ranking()
    for owner, key in enumerate(of):
        ranking.add(key, owner, _weight(key))
    return ranking


def _weight(key: int) -> int:
    return key % 1_000


@given(some.lists(keys, unique=True), some.lists(keys, max_size=5), some.randoms(use_true_random=False))
def test_the_weight_before_a_key_is_that_of_the_smaller_ones(
    of: list[int], asked: list[int], dice: Random
) -> None:
    ranking = _weighed(of)
    gone = dice.sample(of, len(of) // 2)
    for key in gone:
        ranking.remove(key)
    left = sorted(set(of) - set(gone))

    assert ranking.total == sum(map(_weight, left))
    for key in [*asked, *of]:
        smaller = [_weight(each) for each in left if each < key]
        assert ranking.weighed_before(key) == (len(smaller), sum(smaller))
        assert list(ranking.weights_before(key, 3)) == smaller[:3]


def test_the_weight_of_many_blocks_is_exact() -> None:
    of = Random(3).sample(range(10**9), 10_000)
    ranking, ordered = _weighed(of), sorted(of)

    for place in range(0, 10_000, 7):
        true = sum(map(_weight, ordered[:place]))
        assert ranking.weighed_before(ordered[place]) == (place, true)
    assert ranking.weighed_before(10**9)[1] == sum(map(_weight, of))
    assert list(ranking.weights_before(ordered[5_000], 4_000)) == list(map(_weight, ordered[:4_000]))


def test_a_copy_that_lacks_some_keys_lacks_their_weight() -> None:
    ranking = _weighed([3, 1, 2])
    copy = ranking.without([1])

    assert (list(copy), copy.total, copy.weighed_before(3)[1]) == ([2, 0], 5, 2)
    assert ranking.total == 6
