"""Quantiles in bounded memory are right within their stated error."""

import numpy as np
from hypothesis import given, strategies as st

from millgate.sim.records import RELATIVE_ERROR, ResultSketch


@given(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_every_quantile_is_right_within_the_relative_error(values: list[float], share: float) -> None:
    sketch = ResultSketch()
    for value in values:
        sketch.add(value)
    exact = float(np.quantile(values, share, method="lower"))

    assert abs(sketch.quantile(share) - exact) <= RELATIVE_ERROR * exact * 1.001


def test_nothing_is_zero_and_zeros_are_zero() -> None:
    sketch = ResultSketch()
    assert (sketch.mean, sketch.quantile(0.5)) == (0.0, 0.0)
    for value in (0.0, 0.0, 4.0):
        sketch.add(value)

    assert (sketch.count, sketch.quantile(0.5), sketch.most) == (3, 0.0, 4.0)


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    sketch = ResultSketch()
    for number in range(100_000):
        sketch.add(1.0 + number % 1000)

    assert len(sketch._buckets) < 400
