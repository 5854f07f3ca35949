"""Which lane is this, whose turn is it, and what may it not borrow."""

from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings, strategies as some

from millgate.core.lanes import Concurrency, LaneShares, LaneShareSettings, choose_lane


@pytest.mark.parametrize(("hint", "lane"), [(None, 1), ("fast", 2), ("gone", 1)])
def test_the_named_lane_or_the_default(hint: str | None, lane: int) -> None:
    assert choose_lane({"fast": 2}, hint, 1) == lane


def _shares(*lanes: LaneShareSettings, running: str = "") -> LaneShares:
    shares = LaneShares(lanes, 0.0)
    for lane in running:
        shares.entered(lane, 0.0)
    return shares


def _lane(name: str, share: float = 1.0, headroom: int | None = 0, band: int = 0) -> LaneShareSettings:
    return LaneShareSettings(name, share, headroom, band)


def test_a_lane_alone_is_chosen_while_a_stream_is_free_and_lends_everything() -> None:
    shares = _shares(_lane("a", headroom=None), running="aaa")
    assert shares.choose(["a"], 1, 4, 0.0) == "a"
    assert shares.choose(["a"], 0, 4, 0.0) is None
    assert shares.choose([], 1, 4, 0.0) is None
    assert (shares.reserved_for_others("a", 4, 0.0), shares.headroom("a", 4, 0.0)) == (0, 0)
    shares.left("a", 1.0)
    assert shares.running("a") == 2


@pytest.mark.parametrize(
    ("running", "chosen"), [("", "a"), ("a", "b"), ("ab", "a"), ("aab", "a"), ("aaab", "a"), ("aaaab", "b")]
)
def test_the_lane_that_runs_least_for_its_share_goes_next(running: str, chosen: str) -> None:
    shares = _shares(_lane("a", share=3.0), _lane("b"), running=running)
    assert shares.choose(["b", "a"], 5, 100, 0.0) == chosen


def test_the_larger_share_goes_first_where_nothing_runs_and_the_first_named_among_equals() -> None:
    shares = _shares(_lane("a"), _lane("b", share=2.0), _lane("c"))
    assert shares.choose(["a", "b", "c"], 1, 9, 0.0) == "b"
    assert shares.choose(["c", "a"], 1, 9, 0.0) == "a"


def test_a_smaller_band_goes_first_whatever_the_shares() -> None:
    shares = _shares(_lane("batch", share=9.0, band=1), _lane("people", band=0), running="")
    for _ in range(9):
        shares.entered("people", 0.0)
    assert shares.choose(["batch", "people"], 1, 10, 0.0) == "people"
    assert shares.choose(["batch"], 1, 10, 0.0) == "batch"


def test_a_lane_without_a_share_goes_last_in_its_band() -> None:
    shares = _shares(_lane("none", share=0.0), _lane("some"), running="")
    for _ in range(5):
        shares.entered("some", 0.0)
    assert shares.choose(["none", "some"], 1, 10, 0.0) == "some"


def test_headroom_is_lent_to_nobody_whatever_the_band() -> None:
    shares = _shares(_lane("p", band=0), _lane("b", headroom=3, band=1), running="p")
    assert shares.reserved_for_others("p", 10, 0.0) == 3
    assert shares.choose(["p"], 3, 10, 0.0) is None
    assert shares.choose(["p", "b"], 3, 10, 0.0) == "b"
    shares.entered("b", 0.0)
    assert shares.reserved_for_others("p", 10, 0.0) == 2
    shares.left("b", 1.0)
    assert shares.reserved_for_others("p", 10, 1.0) == 3


def test_a_lane_may_use_its_own_headroom_however_much_is_reserved_for_others() -> None:
    """A limit that fell leaves fewer free streams than are reserved: they are not locked away from everybody."""
    shares = _shares(_lane("a", headroom=2), _lane("b", headroom=2))
    assert shares.choose(["a", "b"], 1, 8, 0.0) == "a"


@pytest.mark.parametrize(
    ("limit", "granted"),
    [(3, [0, 0, 0]), (4, [1, 1, 0]), (20, [1, 9, 0]), (40, [1, 9, 10]), (400, [1, 9, 30])],
)
def test_all_headroom_is_at_most_half_the_limit_and_who_wants_little_gets_it(
    limit: int, granted: list[int]
) -> None:
    shares = _shares(_lane("a", headroom=1), _lane("b", headroom=9), _lane("c", headroom=30))
    assert [shares.headroom(name, limit, 0.0) for name in "abc"] == granted


def test_learned_headroom_is_what_a_lane_ran_at_once_and_none_where_nothing_arrived() -> None:
    shares = _shares(*(_lane(name, headroom=None) for name in ("busy", "brief", "quiet")))
    for second in range(600):
        lanes = ["busy"] * 3 + (["brief"] if second % 300 == 7 else [])
        for lane in lanes:
            shares.entered(lane, float(second))
        for lane in lanes:
            shares.left(lane, second + 0.5)

    assert [shares.headroom(name, 64, 600.0) for name in ("busy", "brief", "quiet")] == [3, 0, 0]
    assert shares.headroom("busy", 64, 1_300.0) == 0


def test_configured_headroom_is_granted_before_what_is_learned() -> None:
    shares = _shares(_lane("learns", headroom=None), _lane("told", headroom=9))
    shares.entered("learns", 0.0)
    assert [shares.headroom(name, 20, 60.0) for name in ("learns", "told")] == [1, 9]
    assert [shares.headroom(name, 18, 60.0) for name in ("learns", "told")] == [0, 9]


def test_new_settings_keep_what_runs_and_what_was_learned() -> None:
    shares = _shares(_lane("a"), running="aa")
    shares.reconfigure([_lane("b", headroom=1), _lane("a", headroom=None)], 10.0)
    assert (shares.running("a"), shares.reserved_for_others("a", 8, 10.0)) == (2, 1)
    assert shares.headroom("a", 8, 20.0) == 2
    shares.left("a", 20.0)
    shares.left("a", 20.0)
    assert shares.running("a") == 0


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        (_lane("x", share=-0.1), "share of lane x must be at least 0, not -0.1"),
        (_lane("x", headroom=-1), "headroom of lane x must be at least 0, not -1"),
    ],
)
def test_a_negative_claim_is_refused(lane: LaneShareSettings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaneShares([lane], 0.0)


_some_lanes = some.lists(
    some.tuples(
        some.sampled_from([0.0, 0.5, 1.0, 3.0]), some.sampled_from([None, 0, 1, 5]), some.integers(0, 1)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lanes=_some_lanes, limit=some.integers(1, 24), seed=some.integers(0, 999))
def test_whatever_happens_shares_are_strict_headroom_is_kept_and_no_stream_is_lost(
    lanes: list[tuple[float, int | None, int]], limit: int, seed: int
) -> None:
    named = [LaneShareSettings(f"l{at}", *claims) for at, claims in enumerate(lanes)]
    shares, dice = LaneShares(named, 0.0), Random(seed)
    total = sum(lane.share for lane in named)
    running = {lane.name: 0 for lane in named}
    for step in range(60):
        now, free = 0.3 * step, limit - sum(running.values())
        waiting = [lane for lane in named if dice.random() < 0.7]
        kept = {
            lane.name: max(0, shares.headroom(lane.name, limit, now) - running[lane.name]) for lane in named
        }
        assert sum(shares.headroom(lane.name, limit, now) for lane in named) <= limit // 2
        chosen = shares.choose([lane.name for lane in waiting], free, limit, now)
        if chosen is not None:
            assert kept[chosen] or free > sum(kept.values())
            mine = next(lane for lane in named if lane.name == chosen)
            if not kept[chosen] and running[chosen] * total >= mine.share * limit:
                assert not [
                    lane
                    for lane in waiting
                    if lane.band <= mine.band and running[lane.name] * total < lane.share * limit
                ]
            shares.entered(chosen, now)
            running[chosen] += 1
        elif free > sum(kept.values()):
            assert not waiting
        for name in [name for name, count in running.items() if count and dice.random() < 0.25]:
            shares.left(name, now)
            running[name] -= 1


def _missed(patience_s: float, headroom: int | None, limit: int = 32, seed: int = 11) -> float:
    """Return the part of a quiet lane's arrivals that start later than this, while another floods.

    A flood at ten times the capacity always has work waiting, which is how it is played here. Service is lognormal
    with a mean of 1 s; the quiet lane offers half of its share's worth of work, a quarter of the limit.
    """
    dice, now, rate = Random(seed), 0.0, limit / 4
    shares = LaneShares([_lane("flood", headroom=None), _lane("quiet", headroom=headroom)], 0.0)
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
            shares.left(heappop(ends)[1], now)
        while lane := shares.choose(["quiet", "flood"] if line else ["flood"], limit - len(ends), limit, now):
            late += lane == "quiet" and now - line.pop(0) > patience_s
            shares.entered(lane, now)
            heappush(ends, (now + dice.lognormvariate(-0.5, 1.0), lane))
    return late / asked


def test_a_lane_under_its_share_starts_in_time_while_another_floods() -> None:
    assert _missed(0.25, None) <= 0.005
    assert _missed(0.0, 0) > 0.9
    assert _missed(0.0, None) < _missed(0.0, 0) / 20


def test_a_quantile_is_weighted_by_time() -> None:
    count = Concurrency(0.0)
    count.change(5, 90.0)
    count.change(-4, 98.0)
    assert [count.quantile(share, 100.0) for share in (0.5, 0.91, 0.93, 0.99)] == [0, 1, 5, 5]


@pytest.mark.parametrize(("at", "learned"), [(60.0, 4), (599.0, 4), (661.0, 0), (100_000.0, 0)])
def test_what_is_older_than_ten_minutes_is_forgotten(at: float, learned: int) -> None:
    count = Concurrency(0.0)
    count.change(4, 0.0)
    count.change(-4, 50.0)
    assert count.quantile(0.99, at) == learned


def test_a_constant_count_is_its_own_quantile_after_a_long_silence() -> None:
    count = Concurrency(0.0)
    count.change(7, 1.0)
    assert count.quantile(0.99, 1e6) == 7


@pytest.mark.parametrize("peak", [31, 32, 33, 47, 64, 100, 1_000, 65_535])
def test_a_large_count_is_known_to_a_sixteenth(peak: int) -> None:
    count = Concurrency(0.0)
    count.change(peak, 0.0)
    learned = count.quantile(0.99, 10.0)
    assert peak <= learned <= peak * 17 / 16


def test_levels_never_shrink_as_the_count_grows() -> None:
    learned = []
    for peak in range(300):
        count = Concurrency(0.0)
        count.change(peak, 0.0)
        learned.append(count.quantile(0.99, 10.0))
    assert all(smaller <= larger for smaller, larger in pairwise(learned))


def test_what_is_read_ahead_of_time_can_be_taken_back() -> None:
    """Whoever only asks what would be decided later must not make it later."""
    shares, looked_at = (LaneShares([LaneShareSettings("a"), LaneShareSettings("b")], 0.0) for _ in range(2))
    for each in (shares, looked_at):
        each.entered("a", 0.0)
    undo = looked_at.undoing()
    assert looked_at.headroom("a", 64, 500.0) == 1
    undo()
    for each in (shares, looked_at):
        each.entered("a", 1.0)
    assert [each.headroom("a", 64, 2.0) for each in (shares, looked_at)] == [2, 2]
    assert [each.headroom("a", 64, 700.0) for each in (shares, looked_at)] == [2, 2]
