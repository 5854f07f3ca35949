"""What a limit learns from, between two control ticks."""

import pytest

from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import Signal
from millgate.core.settings import ServicePrior

PRIOR = ServicePrior(0.05, 0.0001, 0.01, 0.0001)


def _signal() -> Signal:
    return Signal(0.0, PRIOR)


def _read(signal: Signal, now: float) -> LimitReading:
    reading = signal.read(now, 0.25, 3)
    assert reading is not None
    return reading


def test_a_reading_holds_what_happened_in_its_window() -> None:
    signal = _signal()
    signal.inflight(12)
    signal.inflight(10)
    signal.first_token(0.2)
    signal.progressed(50, 1.0)
    signal.progressed(30, 1.0)
    signal.finished(0.4, 0.02)
    signal.failed()
    reading = _read(signal, 2.0)

    assert reading[:3] == (2.0, 12, 80)
    assert reading.ttft_excess_p90_s == pytest.approx(0.2, rel=0.05)
    assert reading[5:9] == (1, 1, 0.25, 3)


def test_the_next_window_begins_with_what_still_runs() -> None:
    signal = _signal()
    signal.inflight(12)
    signal.inflight(7)
    signal.failed()
    signal.progressed(100, 1.0)
    _read(signal, 1.0)
    signal.progressed(60, 1.0)
    reading = _read(signal, 2.0)

    assert (reading.max_inflight, reading.samples, reading.failures, reading.window_s) == (7, 60, 0, 1.0)
    assert reading.ttft_excess_p90_s is None


def test_a_window_is_a_second_and_fifty_tokens_long_and_thirty_seconds_at_most() -> None:
    signal = _signal()
    signal.progressed(49, 1.0)
    assert signal.read(0.99, None, None) is None
    assert signal.read(5.0, None, None) is None
    signal.progressed(1, 0.1)
    assert _read(signal, 5.0).samples == 50
    assert signal.read(34.9, None, None) is None
    reading = _read(signal, 35.0)
    assert (reading.samples, reading.kv_share) == (0, 0.25)


def test_no_tpot_is_known_before_fifty_tokens_have_been_seen() -> None:
    signal = _signal()
    signal.progressed(49, 9.0)
    assert _read(signal, 30.0).tpot_s is None
    signal.progressed(50, 1.0)
    assert _read(signal, 31.0).tpot_s is not None


def test_what_answers_got_corrects_what_seconds_show() -> None:
    """Streams show 20 ms a token; one answer in five got 30 ms. The p90 of answers is what is told."""
    signal = _signal()
    for second in range(1, 200):
        signal.inflight(10)
        for _ in range(10):
            signal.progressed(50, 1.0)
        for number in range(5):
            signal.finished(second - 1.0, 0.03 if number == 0 else 0.02)
        reading = _read(signal, float(second))

    assert reading.tpot_s == pytest.approx(0.03, rel=0.06)


def test_an_answer_that_nobody_could_look_into_counts_once_at_its_end() -> None:
    signal = _signal()
    signal.inflight(1)
    for second in range(1, 100):
        signal.progressed(100, 2.0)
        signal.finished(float(second), 0.02)
        reading = _read(signal, float(second))

    assert reading.samples == 100
    assert reading.tpot_s == pytest.approx(0.02, rel=0.08)


def test_a_reading_tells_what_the_steered_share_of_answers_keeps() -> None:
    readings = []
    for share in (0.5, 0.9, 0.99):
        signal = Signal(0.0, PRIOR, share)
        for second in range(1, 1_001):
            signal.progressed(100, 2.0)
            signal.finished(second - 0.5, 0.02 * (0.5 + second * 0.618 % 1.0))
            reading = _read(signal, float(second))
        assert reading.tpot_s == signal.tpot_s(reading.max_inflight, share)
        readings.append(reading.tpot_s)
    assert readings == [pytest.approx(0.02 * (0.5 + share), rel=0.05) for share in (0.5, 0.9, 0.99)]
