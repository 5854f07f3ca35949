"""How fast does a full gate empty."""

from random import Random

import pytest

from millgate.core.limits.gate import DrainRate


def depart(drain: DrainRate, now: float, stayed_s: float = 1.0, foreseen_s: float = 1.0) -> None:
    """Let somebody leave who took as long as the price list says, whatever was foreseen."""
    drain.departed(now, stayed_s, foreseen_s, stayed_s)


def test_the_prior_is_streams_over_the_time_each_takes() -> None:
    assert DrainRate(8).per_s(4.0) == pytest.approx(2.0)


def test_departures_of_a_quiet_gate_say_nothing() -> None:
    drain = DrainRate(8)
    for now in range(100):
        depart(drain, float(now))
    assert drain.per_s(4.0) == pytest.approx(2.0)


def test_departures_of_a_full_gate_are_its_rate() -> None:
    drain = DrainRate(8)
    for tick in range(200):
        drain.became_full(tick / 5.0, 8)
        depart(drain, (tick + 1) / 5.0)
    assert drain.per_s(4.0) == pytest.approx(5.0, rel=0.05)


def test_only_full_time_counts() -> None:
    """Ten seconds of rest between two departures are not ten seconds of draining."""
    drain = DrainRate(8)
    for tick in range(200):
        drain.became_full(tick * 10.0, 8)
        depart(drain, tick * 10.0 + 0.2)
    assert drain.per_s(4.0) == pytest.approx(5.0, rel=0.05)


def test_the_floor_is_near_what_really_ran_while_full_over_the_service_time() -> None:
    """A gate full in KV tokens runs 4 of its 64 streams; a stalled one is never taken to be much slower than that."""
    drain = DrainRate(64)
    for tick in range(200):
        drain.became_full(tick * 100.0, 4)
        depart(drain, tick * 100.0 + 100.0)
    assert drain.full_streams == pytest.approx(4.0, abs=1.0)
    assert drain.per_s(2.0) == pytest.approx(0.8 * drain.full_streams / 2.0)


def test_a_rate_that_is_measured_a_little_below_its_floor_is_believed() -> None:
    """Or of two estimates that are as often too high as too low the higher would always count."""
    drain = DrainRate(8)
    for tick in range(1_000):
        drain.became_full(tick / 1.8, 8)
        depart(drain, (tick + 1) / 1.8)
    assert drain.per_s(4.0) == pytest.approx(1.8, rel=0.01)


def test_becoming_full_twice_starts_the_clock_once() -> None:
    drain, once = DrainRate(4), DrainRate(4)
    drain.became_full(0.0, 4)
    drain.became_full(3.0, 9)
    once.became_full(0.0, 4)
    assert drain.is_full
    depart(drain, 4.0)
    depart(once, 4.0)
    assert drain.per_s(1.0) == once.per_s(1.0)
    assert drain.full_streams == once.full_streams
    assert not drain.is_full


def answers(drain: DrainRate, lengths_s: list[float], *, foreseen: bool) -> None:
    """Let answers of these lengths leave a gate of eight, one every quarter of a second."""
    for tick, length_s in enumerate(lengths_s):
        drain.became_full(0.25 * tick, 8)
        depart(drain, 0.25 * tick + 0.25, length_s, length_s if foreseen else 2.0)


def test_the_spread_of_many_departures_grows_with_their_root() -> None:
    """Exponential answers of 2 s before eight streams: each departure is off by a quarter of a second."""
    drain, dice = DrainRate(8), Random(1)
    answers(drain, [dice.expovariate(0.5) for _ in range(300)], foreseen=False)
    assert drain.spread_s(1, 2.0) == pytest.approx(0.25, rel=0.25)
    assert drain.spread_s(100, 2.0) == pytest.approx(10 * drain.spread_s(1, 2.0))


def test_answers_that_take_as_long_as_foreseen_are_no_spread() -> None:
    drain, dice = DrainRate(8), Random(1)
    answers(drain, [dice.expovariate(0.5) for _ in range(300)], foreseen=True)
    assert drain.spread_s(4, 2.0) == pytest.approx(0.0, abs=1e-6)


def test_permits_that_are_out_longer_than_the_price_list_says_are_dear() -> None:
    drain = DrainRate(4)
    believed = drain.read(5.0, 4.0, 1.0)
    assert (believed.usual_work_s, believed.dearness) == (4.0, 1.25)
    for tick in range(300):
        drain.became_full(float(tick), 4)
        drain.departed(tick + 1.0, 2.0, 2.0, 3.0)
    measured = drain.read(5.0, 4.0, 1.0)
    assert measured.dearness == pytest.approx(1.5, rel=0.02)
    assert measured.usual_work_s == pytest.approx(2.0, rel=0.1)
    assert drain.spread_s(1, 2.0) == pytest.approx(0.0, abs=1e-6)


def test_a_spread_is_believed_before_it_is_measured() -> None:
    """Half a gap, until two cycles of two departures were seen."""
    drain = DrainRate(2)
    assert drain.spread_s(4, 2.0) == pytest.approx(2.0 * 0.5 / drain.per_s(2.0))
    for tick in range(4):
        assert not drain.spread_is_measured
        drain.became_full(float(tick), 2)
        depart(drain, tick + 1.0)
    assert drain.spread_is_measured


def test_a_usual_stream_has_the_tokens_that_streams_have_at_any_time() -> None:
    """Of one that lasts for three seconds three times as much counts as of one that lasts for one."""
    drain = DrainRate(8)
    assert drain.usual_kv_tokens == 0.0
    for now, stayed_s, kv_tokens in ((0.0, 1.0, 100.0), (10.0, 3.0, 500.0)):
        drain.became_full(now, 8)
        drain.departed(now, stayed_s, stayed_s, stayed_s, kv_tokens)
    assert drain.usual_kv_tokens == pytest.approx(400.0, rel=0.01)


def test_memory_binds_when_it_is_what_was_full_most_times() -> None:
    drain = DrainRate(8)
    for tick in range(10):
        assert drain.is_bound_by_memory is (tick > 4)
        drain.became_full(float(tick), 3, by_memory=tick > 0)
        depart(drain, tick + 0.5)
