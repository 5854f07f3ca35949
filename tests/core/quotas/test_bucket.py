"""The continuous bucket: the provider's law, debt, and refunds that never let the burst through twice."""

import pytest
from hypothesis import given, strategies as some

from millgate.core.quotas.bucket import PARTS, Bucket


@pytest.mark.parametrize(
    ("limit", "used", "requested", "wait_s"),
    [(10_000, 8_554, 3_082, 9.816), (30_000, 18_928, 11_159, 0.174)],
)
def test_waits_are_those_of_published_refusals(limit: int, used: int, requested: int, wait_s: float) -> None:
    bucket = Bucket(limit / 60, limit, now=0.0)
    bucket.take(used, now=0.0)

    assert bucket.wait_s(requested, now=0.0) == pytest.approx(wait_s, abs=5e-4)


def test_it_refills_continuously_up_to_its_burst() -> None:
    bucket = Bucket(10.0, 100.0, now=5.0)
    bucket.take(100, now=5.0)

    assert [bucket.level(at) for at in (5.0, 5.05, 15.0, 1000.0)] == [0.0, pytest.approx(0.5), 100.0, 100.0]
    assert bucket.full_in_s(now=7.5) == 7.5


def test_it_says_for_how_long_it_has_been_full() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    bucket.take(50, now=2.0)

    assert [bucket.full_for_s(at) for at in (2.0, 6.9, 7.0, 9.5)] == [0.0, 0.0, 0.0, 2.5]


def test_debt_is_paid_back_before_anything_passes() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    bucket.take(130, now=0.0)

    assert bucket.level(0.0) == -30.0
    assert bucket.wait_s(1, now=0.0) == pytest.approx(3.1)


def test_what_is_larger_than_the_burst_is_told_apart() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)

    assert (bucket.too_large(100), bucket.too_large(101)) == (False, True)
    assert bucket.wait_s(101, now=0.0) == float("inf")


def test_a_refund_counts_as_far_as_the_bucket_did_not_fill_meanwhile() -> None:
    """With 20 instead of 100 taken it would have been full after 2 s, and stayed so: 50 are left over to give."""
    bucket = Bucket(10.0, 100.0, now=0.0)
    mark = bucket.take(100, now=0.0)

    assert bucket.give(80, mark, now=5.0) == 50.0
    assert bucket.level(5.0) == 100.0


def test_a_refund_after_the_bucket_was_full_counts_nothing() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    mark = bucket.take(100, now=0.0)
    bucket.take(60, now=20.0)

    assert bucket.give(80, mark, now=20.0) == 0.0
    assert bucket.level(20.0) == 40.0


def test_a_refund_looks_only_at_heights_after_its_own_reservation() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    bucket.take(50, now=0.0)
    mark = bucket.take(50, now=0.0)

    assert bucket.give(50, mark, now=0.0) == 50.0


def test_lowering_never_raises() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    bucket.lower_to(30, now=0.0)
    bucket.lower_to(60, now=1.0)

    assert bucket.level(1.0) == 40.0


def test_a_larger_burst_gives_no_refund_for_what_was_open_before() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    mark = bucket.take(100, now=0.0)
    bucket.change(10.0, 200.0, now=20.0)

    assert bucket.give(100, mark, now=20.0) == 0.0


def test_a_smaller_burst_turns_no_refund_into_a_charge() -> None:
    """The level of before was held against the burst of after: a request that was under way when a provider said a smaller limit left a debt of many bursts."""
    bucket = Bucket(10.0, 1000.0, now=0.0)
    mark = bucket.take(100, now=0.0)
    bucket.change(1.0, 50.0, now=0.0)
    assert bucket.level(0.0) == 50.0

    assert bucket.give(90, mark, now=0.0) == 0.0
    assert bucket.level(0.0) == 50.0


def test_what_is_below_a_smaller_burst_keeps_its_refund() -> None:
    bucket = Bucket(1.0, 1000.0, now=0.0)
    mark = bucket.take(980, now=0.0)
    bucket.change(1.0, 50.0, now=0.0)

    assert bucket.give(980, mark, now=0.0) == 30.0, "as full as it would have been"


_STEPS = some.lists(
    some.tuples(
        some.floats(0.0, 5.0),
        some.one_of(
            some.tuples(some.just("take"), some.floats(0.0, 60.0)),
            some.tuples(some.just("fall"), some.floats(0.3, 1.0)),
        ),
    ),
    max_size=12,
)


@given(before=some.floats(0.0, 100.0), taken=some.floats(0.0, 80.0), steps=_STEPS)
def test_inv_6_a_refund_after_falls_of_the_burst_is_what_a_smaller_reservation_would_have_left(
    before: float, taken: float, steps: list[tuple[float, tuple[str, float]]]
) -> None:
    """Two buckets live through the same, of which one was never asked for what the other gives back."""
    large, small = Bucket(4.0, 100.0, now=0.0), Bucket(4.0, 100.0, now=0.0)
    large.take(before, now=0.0)
    small.take(before, now=0.0)
    mark = large.take(taken, now=0.0)
    now = debt = 0.0
    for after_s, (what, amount) in steps:
        now += after_s
        debt = max(debt, -large.level(now))
        for bucket in (large, small):
            if what == "take":
                bucket.take(amount, now)
            else:
                bucket.change(bucket.rate_per_s * amount, bucket.burst * amount, now)
    due = small.level(now) - large.level(now)
    given = large.give(taken, mark, now)

    assert 0.0 <= given <= due + 1e-6
    assert given >= due - debt - 100.0 * (len(steps) + 1) / PARTS - 1e-6, (
        "how deep a debt is, is not remembered"
    )


def test_it_is_idle_only_when_full_and_settled() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)
    bucket.take(10, now=0.0)
    bucket.unsettled += 1

    assert not bucket.is_idle(now=0.5)
    assert not bucket.is_idle(now=5.0)
    bucket.unsettled -= 1
    assert bucket.is_idle(now=5.0)


@given(
    rate=some.floats(1e-3, 1e6),
    uptime_s=some.floats(0, 1e7),
    spent=some.floats(0, 3),
    share=some.floats(1e-6, 1.0),
)
def test_after_the_promised_wait_the_same_amount_passes(
    rate: float, uptime_s: float, spent: float, share: float
) -> None:
    bucket = Bucket(rate, rate * 60, now=uptime_s)
    bucket.take(spent * bucket.burst, now=uptime_s)
    amount = share * bucket.burst

    wait_s = bucket.wait_s(amount, now=uptime_s)

    assert bucket.wait_s(amount, now=uptime_s + wait_s) == 0.0


class ExactReplay:
    """What the level would be had every settled reservation been made with its real amount: all history, again."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.takes: list[tuple[float, float]] = []

    def level(self, now: float) -> float:
        level, at = self.burst, 0.0
        for then, amount in self.takes:
            level = min(self.burst, level + (then - at) * self.rate) - amount
            at = then
        return min(self.burst, level + (now - at) * self.rate)


Step = tuple[float, float, float, int]
STEPS = some.lists(
    some.tuples(some.floats(0, 8), some.floats(0.1, 80), some.floats(0, 1), some.integers(0, 5)),
    min_size=1,
    max_size=120,
)


@given(STEPS)
def test_inv_6_a_level_is_never_above_what_an_exact_history_would_have_left(steps: list[Step]) -> None:
    """INV-6: reserve, settle in any order with less, and compare with the replay of real amounts after every step."""
    bucket, replay, now = Bucket(10.0, 100.0, 0.0), ExactReplay(10.0, 100.0), 0.0
    pending: list[tuple[int, int, float, float]] = []
    for gap_s, amount, share, which in steps:
        now += gap_s
        if bucket.wait_s(amount, now) == 0.0:
            pending.append((bucket.take(amount, now), len(replay.takes), amount, share * amount))
            replay.takes.append((now, amount))
        if which < len(pending):
            mark, place, reserved, used = pending.pop(which)
            bucket.give(reserved - used, mark, now)
            replay.takes[place] = (replay.takes[place][0], used)

        assert bucket.level(now) <= replay.level(now) + 1e-6


def test_a_refund_of_the_latest_reservation_is_exact() -> None:
    """Not only never too much: with one reservation open it is to the last token what the replay says."""
    bucket, replay = Bucket(10.0, 100.0, 0.0), ExactReplay(10.0, 100.0)
    mark = bucket.take(90, now=0.0)
    replay.takes.append((0.0, 40.0))
    for now, amount in ((1.0, 5.0), (2.0, 7.0), (4.5, 1.0)):
        bucket.take(amount, now)
        replay.takes.append((now, amount))
    bucket.give(50, mark, now=6.0)

    assert bucket.level(6.0) == pytest.approx(replay.level(6.0))
