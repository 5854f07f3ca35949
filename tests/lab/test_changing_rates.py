"""Arrivals follow a rate that changes."""

from collections.abc import Callable
from itertools import takewhile

import pytest
from lab.changing_rates import changing, on_off, ramp, step

from millgate.sim.randomness import Streams

SHAPES: dict[str, tuple[Callable[[float], float], float, float, float]] = {
    "on and off": (on_off(20.0, 10.0, 10.0), 20.0, 20.0, 0.0),
    "ramp": (ramp(0.0, 20.0, 20.0), 20.0, 5.0, 15.0),
    "step": (step(5.0, 20.0, 10.0), 20.0, 5.0, 20.0),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_changing_rate_is_followed(shape: tuple[Callable[[float], float], float, float, float]) -> None:
    rate, highest, in_first_half, in_second_half = shape
    first = second = 0
    for seed in range(60):
        times = list(takewhile(lambda at: at < 20.0, changing(rate, highest, Streams(seed))))
        first += sum(at < 10.0 for at in times)
        second += sum(at >= 10.0 for at in times)

    assert first / 600 == pytest.approx(in_first_half, rel=0.08)
    assert second / 600 == pytest.approx(in_second_half, rel=0.08, abs=1e-9)
