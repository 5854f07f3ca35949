"""Shortest predicted engine time first, and INV-9: a stated number of overtakes and not one more."""

from random import Random

import pytest
from hypothesis import given, settings, strategies as some

from contracts.waiting import Waiting
from millgate.core.queues.short_first import BoundedShortFirstOrder, ShortFirstOrder


def _waiting(number: int, engine_s: float, first_seen: float = 0.0) -> Waiting:
    return Waiting(number, number, first_seen, 99.0, 99.0, 1, 1, 1, engine_s)


def _admit_head(order: ShortFirstOrder) -> int:
    head = order.head()
    assert head is not None
    order.remove(head)
    order.started(head, 0.0)
    return head.attempt


def test_the_shorter_goes_first_and_age_breaks_ties() -> None:
    order = ShortFirstOrder()
    for each in (_waiting(1, 5.0), _waiting(2, 1.0, 3.0), _waiting(3, 1.0, 2.0), _waiting(4, 0.5, 9.0)):
        order.add(each)

    assert [_admit_head(order) for _ in range(4)] == [4, 3, 2, 1]


def test_equal_tokens_in_a_few_more_bytes_are_served_in_order_of_arrival() -> None:
    """Prompts of equal tokens whose bytes differ by less than 2 %, one each two seconds: what is longer by chance waits no longer."""
    dice, order = Random(26), ShortFirstOrder()
    for number in range(60):
        order.add(_waiting(number, 1.0 + 0.02 * dice.random(), first_seen=2.0 * number))

    assert [_admit_head(order) for _ in range(60)] == list(range(60))


def test_a_wait_outweighs_a_size_within_a_stated_time() -> None:
    """Twice the engine time is passed by what comes within 64 s, and by nothing that comes later."""
    order = ShortFirstOrder()
    for each in (_waiting(1, 2.0), _waiting(2, 1.0, 63.0), _waiting(3, 1.0, 65.0)):
        order.add(each)

    assert [_admit_head(order) for _ in range(3)] == [2, 1, 3]


@pytest.mark.parametrize("bound", [1, 2, 64])
def test_inv_9_a_long_one_is_passed_by_exactly_so_many_later_arrivals(bound: int) -> None:
    order = BoundedShortFirstOrder(bound)
    order.add(_waiting(0, 100.0))
    went = []
    for number in range(1, bound + 3):
        order.add(_waiting(number, 1.0))
        went.append(_admit_head(order))

    assert went[: bound + 1] == [*range(1, bound + 1), 0]


def test_shorter_work_that_was_there_before_is_no_overtake() -> None:
    order = BoundedShortFirstOrder(1)
    for number, engine_s in enumerate([1.0, 2.0, 3.0, 100.0, 4.0, 5.0]):
        order.add(_waiting(number, engine_s))

    assert [_admit_head(order) for _ in range(6)] == [0, 1, 2, 4, 3, 5]


def test_a_newcomer_that_runs_at_once_passes_everybody() -> None:
    order = BoundedShortFirstOrder(1)
    order.add(_waiting(0, 9.0))
    short = _waiting(1, 1.0)
    assert order.ahead_of(short) == 0
    order.started(short, 0.0)

    assert order.overtakes == 1
    assert order.ahead_of(_waiting(2, 1.0)) == 1


def test_who_leaves_without_being_admitted_has_passed_nobody() -> None:
    order = BoundedShortFirstOrder(1)
    impatient = _waiting(1, 1.0)
    order.add(_waiting(0, 9.0))
    order.add(impatient)
    order.remove(impatient)

    assert order.overtakes == 0


def test_an_overtake_is_kept_by_the_older_when_the_one_between_leaves() -> None:
    order = BoundedShortFirstOrder(2)
    oldest, between = _waiting(0, 9.0), _waiting(1, 8.0)
    order.add(oldest)
    order.add(between)
    order.add(_waiting(2, 1.0))
    assert _admit_head(order) == 2
    order.remove(between)
    assert order.overtakes == 1
    order.add(_waiting(3, 1.0))
    assert _admit_head(order) == 3
    assert order.head() is oldest


def test_those_who_are_due_are_listed_first_the_older_before_the_newer() -> None:
    order = BoundedShortFirstOrder(1)
    for number, engine_s in enumerate([9.0, 8.0, 1.0, 2.0]):
        order.add(_waiting(number, engine_s))
    assert _admit_head(order) == 2

    assert [each.attempt for each in order] == [0, 1, 3]


def test_who_came_after_the_last_overtake_is_not_due() -> None:
    order = BoundedShortFirstOrder(1)
    order.add(_waiting(0, 9.0))
    order.add(_waiting(1, 1.0))
    assert _admit_head(order) == 1
    order.add(_waiting(2, 8.0))
    order.add(_waiting(3, 2.0))

    assert [each.attempt for each in order] == [0, 3, 2]


class _Naive:
    """Counts every overtake of everybody, one by one."""

    def __init__(self) -> None:
        self.entered: dict[int, int] = {}
        self.passed: dict[int, int] = {}
        self.clock = 0

    def enter(self, attempt: int) -> None:
        self.clock += 1
        self.entered[attempt], self.passed[attempt] = self.clock, 0

    def leave(self, attempt: int) -> int:
        del self.passed[attempt]
        return self.entered.pop(attempt)

    def admit(self, attempt: int) -> None:
        entered = self.leave(attempt) if attempt in self.entered else self.clock + 1
        for other, its in self.entered.items():
            self.passed[other] += its < entered


@settings(max_examples=100)
@given(bound=some.integers(1, 5), seed=some.integers(0, 10_000))
def test_inv_9_the_count_is_the_naive_one_and_never_passes_the_bound(bound: int, seed: int) -> None:
    """INV-9 as the governor uses the order: it admits heads, and newcomers that have nobody ahead."""
    order, naive, dice = BoundedShortFirstOrder(bound), _Naive(), Random(seed)
    queued: list[Waiting] = []
    for number in range(150):
        move = dice.choice(["add", "add", "add", "admit", "leave", "rush"])
        newcomer = _waiting(number, float(dice.randrange(10)))
        head = order.head()
        if move == "add":
            order.add(newcomer)
            naive.enter(number)
            queued.append(newcomer)
        elif move == "rush" and order.ahead_of(newcomer) == 0:
            order.started(newcomer, 0.0)
            naive.admit(number)
        elif move == "admit" and isinstance(head, Waiting):
            order.remove(head)
            order.started(head, 0.0)
            naive.admit(head.attempt)
            queued.remove(head)
        elif move == "leave" and queued:
            gone = queued.pop(dice.randrange(len(queued)))
            order.remove(gone)
            naive.leave(gone.attempt)
        assert order.overtakes == (naive.passed[queued[0].attempt] if queued else 0)
        assert max(naive.passed.values(), default=0) <= bound


@settings(max_examples=200)
@given(
    bound=some.integers(1, 4),
    sizes=some.lists(some.integers(0, 9), max_size=30),
    admitted=some.integers(0, 30),
)
def test_the_estimate_of_who_is_ahead_grows_with_size_and_never_exceeds_the_line(
    bound: int, sizes: list[int], admitted: int
) -> None:
    order = BoundedShortFirstOrder(bound)
    for number, size in enumerate(sizes):
        order.add(_waiting(number, float(size)))
    for _ in range(min(admitted, len(sizes))):
        _admit_head(order)

    ahead = [order.ahead_of(_waiting(99, engine_s)) for engine_s in (-1.0, 0.5, 4.5, 9.5)]
    assert ahead == sorted(ahead)
    assert ahead[-1] == len(order)
