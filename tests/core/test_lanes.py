"""Which lane goes next, and what may it not borrow."""

from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings, strategies as some

from millgate.core.lanes import LaneShares
from millgate.core.settings import LaneSettings


def _shares(*lanes: LaneSettings, running: str = "") -> LaneShares:
    shares = LaneShares(lanes)
    for lane in running:
        shares.entered(lane)
    return shares


def _lane(name: str, share: float = 1.0, headroom: int = 0, band: int = 0) -> LaneSettings:
    return LaneSettings(name, share=share, headroom=headroom, band=band)


def test_a_lane_alone_is_chosen_while_a_stream_is_free_and_lends_everything() -> None:
    shares = _shares(_lane("a"), running="aaa")
    assert shares.choose(["a"], 1, 4) == "a"
    assert shares.choose(["a"], 0, 4) is None
    assert shares.choose([], 1, 4) is None
    assert (shares.reserved_for_others("a", 4), shares.headroom("a", 4)) == (0, 0)
    shares.left("a")
    assert shares.running("a") == 2


@pytest.mark.parametrize(
    ("running", "chosen"), [("", "a"), ("a", "b"), ("ab", "a"), ("aab", "a"), ("aaab", "a"), ("aaaab", "b")]
)
def test_the_lane_that_runs_least_for_its_share_goes_next(running: str, chosen: str) -> None:
    shares = _shares(_lane("a", share=3.0), _lane("b"), running=running)
    assert shares.choose(["b", "a"], 5, 100) == chosen


def test_the_larger_share_goes_first_where_nothing_runs_and_the_first_named_among_equals() -> None:
    shares = _shares(_lane("a"), _lane("b", share=2.0), _lane("c"))
    assert shares.choose(["a", "b", "c"], 1, 9) == "b"
    assert shares.choose(["c", "a"], 1, 9) == "a"


def test_a_smaller_band_goes_first_whatever_the_shares() -> None:
    shares = _shares(_lane("batch", share=9.0, band=1), _lane("people", band=0), running="")
    for _ in range(9):
        shares.entered("people")
    assert shares.choose(["batch", "people"], 1, 10) == "people"
    assert shares.choose(["batch"], 1, 10) == "batch"


def test_headroom_is_lent_to_nobody_whatever_the_band() -> None:
    shares = _shares(_lane("p", band=0), _lane("b", headroom=3, band=1), running="p")
    assert shares.reserved_for_others("p", 10) == 3
    assert shares.choose(["p"], 3, 10) is None
    assert shares.choose(["p", "b"], 3, 10) == "b"
    shares.entered("b")
    assert shares.reserved_for_others("p", 10) == 2
    shares.left("b")
    assert shares.reserved_for_others("p", 10) == 3


def test_a_lane_may_use_its_own_headroom_however_much_is_reserved_for_others() -> None:
    """A limit that fell leaves fewer free streams than are reserved: they are not locked away from everybody."""
    shares = _shares(_lane("a", headroom=2), _lane("b", headroom=2))
    assert shares.choose(["a", "b"], 1, 8) == "a"


@pytest.mark.parametrize(
    ("limit", "granted"),
    [(3, [0, 0, 0]), (4, [1, 1, 0]), (20, [1, 9, 0]), (40, [1, 9, 10]), (400, [1, 9, 30])],
)
def test_all_headroom_is_at_most_half_the_limit_and_who_wants_little_gets_it(
    limit: int, granted: list[int]
) -> None:
    shares = _shares(_lane("a", headroom=1), _lane("b", headroom=9), _lane("c", headroom=30))
    assert [shares.headroom(name, limit) for name in "abc"] == granted


def test_new_settings_keep_what_runs_and_grant_headroom_anew() -> None:
    shares = _shares(_lane("a"), running="aa")
    assert shares.headroom("a", 8) == 0
    shares.reconfigure([_lane("b", headroom=1), _lane("a", headroom=2)])
    assert (shares.running("a"), shares.headroom("a", 8), shares.headroom("b", 8)) == (2, 2, 1)
    assert shares.reserved_for_others("a", 8) == 1
    shares.left("a")
    shares.left("a")
    assert shares.running("a") == 0


_some_lanes = some.lists(
    some.tuples(some.sampled_from([0.1, 0.5, 1.0, 3.0]), some.sampled_from([0, 1, 5]), some.integers(0, 1)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200)
@given(lanes=_some_lanes, limit=some.integers(1, 24), seed=some.integers(0, 999))
def test_whatever_happens_shares_are_strict_headroom_is_kept_and_no_stream_is_lost(
    lanes: list[tuple[float, int, int]], limit: int, seed: int
) -> None:
    named = [_lane(f"l{at}", *claims) for at, claims in enumerate(lanes)]
    shares, dice = LaneShares(named), Random(seed)
    total = sum(lane.share for lane in named)
    running = {lane.name: 0 for lane in named}
    for _ in range(60):
        free = limit - sum(running.values())
        waiting = [lane for lane in named if dice.random() < 0.7]
        kept = {lane.name: max(0, shares.headroom(lane.name, limit) - running[lane.name]) for lane in named}
        assert sum(shares.headroom(lane.name, limit) for lane in named) <= limit // 2
        chosen = shares.choose([lane.name for lane in waiting], free, limit)
        if chosen is not None:
            assert kept[chosen] or free > sum(kept.values())
            mine = next(lane for lane in named if lane.name == chosen)
            if not kept[chosen] and running[chosen] * total >= mine.share * limit:
                assert not [
                    lane
                    for lane in waiting
                    if lane.band <= mine.band and running[lane.name] * total < lane.share * limit
                ]
            shares.entered(chosen)
            running[chosen] += 1
        elif free > sum(kept.values()):
            assert not waiting
        for name in [name for name, count in running.items() if count and dice.random() < 0.25]:
            shares.left(name)
            running[name] -= 1


def _missed(patience_s: float, headroom: int, limit: int = 32, seed: int = 11) -> float:
    """Return the part of a quiet lane's arrivals that start later than this, while another floods.

    A flood at ten times the capacity always has work waiting, which is how it is played here. Service is lognormal
    with a mean of 1 s; the quiet lane offers half of its share's worth of work, a quarter of the limit.
    """
    dice, now, rate = Random(seed), 0.0, limit / 4
    shares = LaneShares([_lane("flood"), _lane("quiet", headroom=headroom)])
    ends: list[tuple[float, str]] = []
    line: list[float] = []
    asked = late = 0
    quiet_at = dice.expovariate(rate)
    while asked < 8_000:
        now = min(quiet_at, ends[0][0]) if ends else quiet_at
        if now == quiet_at:
            line.append(now)
            asked += 1
            quiet_at += dice.expovariate(rate)
        else:
            shares.left(heappop(ends)[1])
        while lane := shares.choose(["quiet", "flood"] if line else ["flood"], limit - len(ends), limit):
            late += lane == "quiet" and now - line.pop(0) > patience_s
            shares.entered(lane)
            heappush(ends, (now + dice.lognormvariate(-0.5, 1.0), lane))
    return late / asked


def test_a_lane_under_its_share_starts_in_time_while_another_floods() -> None:
    assert _missed(0.25, 16) <= 0.005
    assert _missed(0.5, 0) <= 0.01
    assert _missed(0.0, 0) > 0.9
    assert _missed(0.0, 16) < _missed(0.0, 0) / 20


def test_a_look_at_another_limit_changes_nothing() -> None:
    """An explanation and a snapshot look; what they were told does not stay."""
    shares = _shares(_lane("a", headroom=4), _lane("b"))
    shares.entered("a")
    assert (shares.headroom("a", 64), shares.reserved_for_others("b", 64)) == (4, 3)
    assert (shares.headroom("a", 6), shares.reserved_for_others("b", 6)) == (3, 2)
    assert (shares.headroom("a", 64), shares.reserved_for_others("b", 64)) == (4, 3)
