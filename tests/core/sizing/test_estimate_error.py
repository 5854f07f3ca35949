"""How wrong were the estimates."""

from math import log

import pytest

from millgate.core.sizing.output_length import EstimateError
from millgate.core.snapshot import ErrorReading


def test_before_any_answer_there_is_no_error() -> None:
    assert EstimateError().read() == ErrorReading(0.0, 0.0, 0.0)


def test_the_bias_is_of_the_total_and_the_tail_of_single_estimates() -> None:
    errors = EstimateError()
    for actual in (50.0, 250.0) * 100:
        errors.add(100.0, actual)
    read = errors.read()
    assert read.bias == pytest.approx(0.5, abs=0.01)
    assert read.p90 == pytest.approx(log(2.5), rel=0.05)


def test_half_and_double_are_equally_wrong() -> None:
    halves, doubles = EstimateError(), EstimateError()
    halves.add(100.0, 50.0)
    doubles.add(100.0, 200.0)
    assert halves.read().p90 == doubles.read().p90


def test_what_was_wrong_long_ago_is_forgotten() -> None:
    errors = EstimateError()
    for _ in range(1_000):
        errors.add(100.0, 1_000.0)
    for _ in range(3_000):
        errors.add(100.0, 100.0)
    assert errors.read().bias == pytest.approx(0.0, abs=0.01)
    assert errors.read().p90 == pytest.approx(0.0, abs=0.01)
