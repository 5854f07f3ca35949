"""Quantiles that forget, in bounded memory."""

from math import log
from random import Random

import pytest
from hypothesis import given, strategies as st

from millgate.core.measure import Sketch

WITHIN = 0.05


def _of(values: list[float], memory: float | None = None) -> Sketch:
    sketch = Sketch(1.0, 1e6, memory=memory)
    for value in values:
        sketch.add(value)
    return sketch


def test_before_any_sample_everything_is_nothing() -> None:
    empty = _of([])
    assert (empty.samples, empty.mean, empty.quantile(0.95)) == (0.0, 0.0, 0.0)


@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=200),
    st.sampled_from([0.05, 0.5, 0.9, 0.95, 0.99]),
)
def test_every_quantile_is_within_five_per_cent_of_a_sample_at_that_rank(
    values: list[float], share: float
) -> None:
    quantile = _of(values).quantile(share)
    rank = share * len(values)
    below = sum(value < quantile / (1.0 + WITHIN) for value in values)
    up_to = sum(value <= quantile * (1.0 + WITHIN) for value in values)
    assert below <= rank + 1e-6
    assert up_to >= rank - 1e-6


def test_the_mean_is_exact_whatever_lies_outside_the_range() -> None:
    sketch = _of([0.5, 3e6, 10.0])
    assert sketch.mean == pytest.approx(3_000_010.5 / 3)
    assert sketch.quantile(0.01) == 1.0
    assert sketch.quantile(0.99) == pytest.approx(1e6, rel=0.1)


def test_after_its_memory_an_old_sample_weighs_a_third() -> None:
    sketch = _of([100.0] * 1_000, memory=50.0)
    for _ in range(50):
        sketch.add(10.0)
    old = (49.0 / 50.0) ** 50
    assert sketch.mean == pytest.approx(100.0 * old + 10.0 * (1.0 - old), rel=0.01)
    assert sketch.samples == pytest.approx(50.0, rel=0.01)


def test_fading_by_time_leaves_the_readings_and_lets_the_next_samples_lead() -> None:
    sketch = _of([100.0] * 1_000)
    sketch.fade(0.001)
    assert (sketch.mean, sketch.samples) == pytest.approx((100.0, 1.0))
    for _ in range(9):
        sketch.add(10.0)
    assert sketch.mean == pytest.approx(19.0)
    assert sketch.quantile(0.5) == pytest.approx(10.0, rel=WITHIN)


def test_thousands_of_samples_neither_overflow_nor_grow() -> None:
    dice = Random(1)
    sketch = Sketch(1.0, 1e4, memory=100.0)
    sizes = set()
    for _ in range(20_000):
        sketch.add(dice.uniform(10.0, 20.0))
        sizes.add(len(sketch._bins))
    assert max(sizes) <= 2 + log(1e4) / log(1.05)
    assert sketch.mean == pytest.approx(15.0, rel=0.1)
    assert sketch.quantile(0.5) == pytest.approx(15.0, rel=0.15)
