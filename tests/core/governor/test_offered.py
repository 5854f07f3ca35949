"""The load of shorter work: what is learned of arrivals by size, and when it is believed."""

import pytest

from millgate.core.state.pool import OfferedWork

PER_S = 10.0


def _arrive(offered: OfferedWork, work_s: float, now: float) -> None:
    if offered.is_over(now):
        offered.learn(now, PER_S)
    offered.arrived(work_s)


def _offered(seconds: int, short_per_s: int, long_per_s: int) -> OfferedWork:
    """Return what was learned: short ones of 0.05 s, long ones of 0.5 s, served with 0.1 s on average (all of it)."""
    offered = OfferedWork()
    for _ in range(30):
        offered.started(0.1)
    for second in range(1, seconds + 1):
        for _ in range(short_per_s):
            _arrive(offered, 0.05, float(second))
        for _ in range(long_per_s):
            _arrive(offered, 0.5, float(second))
    return offered


def test_only_shorter_work_counts() -> None:
    offered = _offered(300, 10, 3)

    assert offered.load_below(0.01, 300.0, PER_S) == 0.0
    assert offered.load_below(0.05, 300.0, PER_S) == 0.0
    assert offered.load_below(0.1, 300.0, PER_S) == pytest.approx(0.5, rel=0.01)
    assert offered.load_below(0.5, 300.0, PER_S) == pytest.approx(0.5, rel=0.01)
    assert offered.load_below(5.0, 300.0, PER_S) == pytest.approx(2.0, rel=0.01)


def test_a_crowd_that_comes_at_once_is_no_load() -> None:
    """A thousand short ones are fifty seconds of work, and none comes after them."""
    offered = _offered(300, 0, 0)
    for _ in range(1_000):
        _arrive(offered, 0.05, 400.0)
    _arrive(offered, 0.05, 401.0)

    assert 0.0 < offered.load_below(1.0, 401.0, PER_S) < 0.3


def test_what_no_longer_comes_is_forgotten() -> None:
    offered = _offered(100, 20, 0)
    loads = [offered.load_below(1.0, 100.0 + later, PER_S) for later in (0.0, 10.0, 60.0, 600.0)]

    assert loads == sorted(loads, reverse=True)
    assert loads[2] < 0.2 * loads[0]
    assert loads[3] == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_said_before_enough_was_served() -> None:
    offered = OfferedWork()
    for second in range(100):
        _arrive(offered, 0.05, float(second))

    assert offered.load_below(1.0, 100.0, PER_S) == 0.0


def test_sizes_beyond_the_classes_count_in_the_last_of_them() -> None:
    offered = _offered(50, 1, 0)
    _arrive(offered, 1e9, 51.0)
    _arrive(offered, 0.0, 51.0)
    _arrive(offered, 0.05, 52.0)

    assert 0.0 < offered.load_below(1e12, 52.0, PER_S) < 0.1
