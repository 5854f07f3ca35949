"""Little's law as an instrument: an identity, so what is left over is a leak."""

from random import Random

import pytest

from millgate.core.settings import MINUTE_S
from millgate.core.snapshot import LittleSnapshot
from millgate.instruments.littles_law import LittlesLaw, total


def test_with_empty_ends_l_is_lambda_times_w_exactly() -> None:
    law = LittlesLaw(100.0)
    law.enter(100.0)
    law.enter(101.0)
    law.leave(103.0)
    law.stayed(103.0, 100.0)
    law.leave(106.0)
    law.stayed(106.0, 101.0)
    reading = law.read(110.0)

    assert reading.window_s == 10.0
    assert reading.mean_attempts == pytest.approx(0.8)
    assert reading.entered_per_s == pytest.approx(0.2)
    assert (reading.mean_stay_s, reading.completed) == pytest.approx((4.0, 2))
    assert reading.mean_attempts == pytest.approx(reading.entered_per_s * reading.mean_stay_s)
    assert reading.residual == pytest.approx(0.0, abs=1e-12)


def test_work_in_flight_at_both_ends_leaves_no_residual() -> None:
    """Random traffic over many windows: the in-progress correction closes the account at every instant."""
    law, dice, now = LittlesLaw(0.0), Random(1), 0.0
    inside: list[float] = []
    for _ in range(4_000):
        now += dice.expovariate(5.0)
        if inside and dice.random() < 0.5:
            law.leave(now)
            law.stayed(now, inside.pop(dice.randrange(len(inside))))
        else:
            law.enter(now)
            inside.append(now)
        assert abs(law.read(now + dice.random()).residual) < 1e-9
    assert law.inside == len(inside)
    assert MINUTE_S <= law.read(now).window_s < 2 * MINUTE_S


def test_after_an_hour_of_silence_a_reading_speaks_of_the_last_minutes_only() -> None:
    law = LittlesLaw(0.0)
    for second in range(300):
        law.enter(float(second))
        law.leave(second + 0.5)
        law.stayed(second + 0.5, float(second))
    law.enter(300.0)
    reading = law.read(3930.0)

    assert reading.window_s == 90.0
    assert (reading.mean_attempts, reading.entered_per_s, reading.completed) == pytest.approx((1.0, 0.0, 0))
    law.leave(3930.0)
    law.stayed(3930.0, 300.0)
    assert law.read(3930.0).mean_stay_s == 3630.0
    assert law.read(3930.0).residual == pytest.approx(0.0, abs=1e-12)


def test_a_leaked_permit_shows() -> None:
    """The attempt is over and its permit is still out: a tenth of the occupancy is unexplained after a while."""
    law = LittlesLaw(0.0)
    for tick in range(1_000):
        now = tick * 0.1
        law.enter(now)
        if tick != 500:
            law.leave(now + 0.1)
        law.stayed(now + 0.1, now)
    assert law.read(100.0).residual > 0.2


def test_a_lost_completion_shows_with_the_other_sign() -> None:
    law = LittlesLaw(0.0)
    for tick in range(1_000):
        now = tick * 0.1
        law.enter(now)
        law.leave(now + 0.1)
        if tick != 500:
            law.stayed(now + 0.1, now)
    assert law.read(100.0).residual < -0.2


def test_reading_changes_nothing_and_an_empty_window_reads_as_zero() -> None:
    law = LittlesLaw(5.0)
    assert law.read(5.0) == law.read(5.0)
    assert (law.read(5.0).mean_attempts, law.read(9.0).residual) == (0.0, 0.0)
    law.enter(9.0)
    assert law.read(10.0) == law.read(10.0)
    assert law.read(500.0) == law.read(500.0)


def _stays(law: LittlesLaw, at: float, for_s: float) -> None:
    law.enter(at)
    law.leave(at + for_s)
    law.stayed(at + for_s, at)


def _lane(law: LittlesLaw, now: float) -> LittleSnapshot:
    return LittleSnapshot(law.read(now), law.read(now), law.read(now))


def test_all_lanes_are_the_sum_of_the_lanes_though_one_is_younger() -> None:
    """L and lambda add up, over the window of the oldest; W is the mean over all stays, not over lanes."""
    old, young = LittlesLaw(0.0), LittlesLaw(90.0)
    for number in range(100):
        _stays(old, float(number), 2.0)
    for number in range(10):
        _stays(young, 90.0 + number, 0.5)
    whole = total([_lane(old, 110.0), _lane(young, 110.0)]).whole

    assert whole.window_s == 110.0
    assert whole.mean_attempts == pytest.approx((100 * 2.0 + 10 * 0.5) / 110.0)
    assert whole.entered_per_s == pytest.approx(110 / 110.0)
    assert (whole.mean_stay_s, whole.completed) == pytest.approx(((100 * 2.0 + 10 * 0.5) / 110, 110))
    assert whole.residual == pytest.approx(0.0, abs=1e-12)


def test_no_lanes_and_a_gate_that_has_just_begun_read_as_zero() -> None:
    law = LittlesLaw(5.0)
    assert total([]).whole.mean_attempts == 0.0
    law.enter(5.0)
    assert total([_lane(law, 5.0), _lane(law, 5.0)]).whole.mean_attempts == 2.0
