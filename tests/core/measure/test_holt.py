"""Level and trend."""

import pytest

from millgate.core.measure.holt import Holt


def test_the_first_sample_is_the_level() -> None:
    line = Holt(0.3)
    line.add(7.0)
    assert (line.level, line.trend) == (7.0, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_straight_line_is_followed_without_lag(share: float) -> None:
    line = Holt(share)
    for step in range(200):
        line.add(3.0 + 0.5 * step)
    assert line.trend == pytest.approx(0.5, rel=1e-3)
    assert line.level == pytest.approx(3.0 + 0.5 * 199, rel=1e-3)


def test_the_fast_line_bends_before_the_slow_one() -> None:
    fast, slow = Holt(0.3), Holt(0.1)
    for step in range(40):
        for line in (fast, slow):
            line.add(0.1 * max(0, step - 36) ** 2)
    assert fast.trend > 2 * slow.trend > 0
