"""Do more streams bring more tokens?"""

from random import Random

import pytest

from millgate.core.limits.throughput import Throughput


def _fed(slope: float, windows: int, noise: float = 0.0, inflight_spread: int = 20) -> Throughput:
    throughput, dice = Throughput(), Random(1)
    for window in range(windows):
        inflight = 100.0 + window % max(1, inflight_spread)
        throughput.add(inflight, 5_000.0 + slope * inflight + dice.gauss(0.0, noise))
    return throughput


def test_tokens_that_fall_as_streams_are_added_are_seen() -> None:
    assert _fed(-20.0, 50).falls()


@pytest.mark.parametrize(
    "throughput",
    [
        _fed(20.0, 50),
        _fed(-20.0, 49),
        _fed(-20.0, 50, inflight_spread=0),
        _fed(-0.5, 50),
        _fed(0.0, 50, 500.0),
    ],
    ids=["rises", "one window short", "streams stand still", "tokens stand still", "noise"],
)
def test_nothing_else_is(throughput: Throughput) -> None:
    assert not throughput.falls()
