"""Quantiles in a fixed number of counters."""

import pytest
from hypothesis import given, strategies as st

from millgate.core.limits.sketch import ForgettingSketch


@given(st.lists(st.floats(2e-4, 50.0), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_quantile_is_within_a_twentieth_of_a_true_one(values: list[float], share: float) -> None:
    sketch = ForgettingSketch()
    for value in values:
        sketch.add(value)
    values.sort()
    # Rounding of share x count may point at either neighbour.
    rank = share * len(values)
    low, high = values[max(0, int(rank - 1e-6) - 1)], values[min(len(values) - 1, int(rank + 1e-6))]
    quantile = sketch.quantile(share)

    assert quantile is not None
    assert low / 1.0501 <= quantile <= high * 1.0501


def test_the_newest_decide() -> None:
    sketch = ForgettingSketch(memory=50.0)
    for value in [1.0] * 1_000 + [2.0] * 300:
        sketch.add(value)

    assert sketch.quantile(0.1) == pytest.approx(2.0, rel=0.05)
    assert sketch.samples == pytest.approx(50.0)


def test_it_never_overflows() -> None:
    sketch = ForgettingSketch(memory=2.0)
    for _ in range(5_000):
        sketch.add(0.5)

    assert sketch.quantile(0.5) == pytest.approx(0.5, rel=0.05)
    assert sketch.samples == pytest.approx(2.0)


def test_the_edges_hold_what_lies_beyond_them() -> None:
    sketch = ForgettingSketch()
    assert sketch.quantile(0.5) is None
    sketch.add(-3.0)
    sketch.add(1e9)
    low, high = sketch.quantile(0.5), sketch.quantile(1.0)
    assert low is not None
    assert high is not None
    assert low <= 1.1e-4
    assert 100.0 <= high <= 110.0
    sketch.clear()
    assert sketch.quantile(0.5) is None


def test_what_has_faded_weighs_as_much_less() -> None:
    """A hundred ones at a tenth are ten: twenty twos are the most."""
    sketch = ForgettingSketch()
    for _ in range(100):
        sketch.add(1.0)
    sketch.fade(0.1)
    assert sketch.samples == pytest.approx(10.0)
    for _ in range(20):
        sketch.add(2.0)
    assert sketch.samples == pytest.approx(30.0)
    assert sketch.quantile(0.5) == pytest.approx(2.0, rel=0.05)
