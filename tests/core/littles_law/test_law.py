"""Little's law as an instrument: an identity, so what is left over is a leak."""

from random import Random

import pytest

from millgate.core.littles_law.law import HALF_WINDOW_S, LittlesLaw


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
    assert reading.mean_running == pytest.approx(0.8)
    assert reading.admitted_per_s == pytest.approx(0.2)
    assert reading.mean_stay_s == pytest.approx(4.0)
    assert reading.mean_running == pytest.approx(reading.admitted_per_s * reading.mean_stay_s)
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
    assert law.running == len(inside)
    assert HALF_WINDOW_S <= law.read(now).window_s <= 2 * HALF_WINDOW_S + 5.0


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
    assert (law.read(5.0).mean_running, law.read(9.0).residual) == (0.0, 0.0)
    law.enter(9.0)
    assert law.read(10.0) == law.read(10.0)
