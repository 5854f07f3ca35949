"""Attempts over the requests that they were for, within a minute and within ten."""

from core.governor.asking import gate_of
from millgate.core.decisions import Yield
from millgate.core.events import Arrived
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings
from millgate.core.state.lane import Totals


def test_nothing_is_calm() -> None:
    assert Totals().amplification(100.0, 60.0) == 1.0


def test_a_storm_shows_within_a_minute_and_is_over_a_minute_after_its_end() -> None:
    totals = Totals()
    for second in range(300):
        totals.arrived(float(second))
    for second in range(300, 360):
        totals.arrived(float(second))
        for _ in range(3):
            totals.arrived(float(second), since=float(second))
    assert totals.amplification(359.0, 60.0) == 4.0
    assert 1.4 <= totals.amplification(359.0, 600.0) <= 1.6
    for second in range(360, 430):
        totals.arrived(float(second))
    assert totals.amplification(429.0, 60.0) == 1.0
    assert totals.amplification(429.0, 600.0) > 1.3


def test_a_burst_that_fades_shows_the_retries_that_are_left_over_their_requests() -> None:
    """30 requests at 5 s; 20 of them are back at 15 s, and 10 of these again at 35 s: 60 attempts for 30 requests."""
    totals = Totals()
    for _ in range(30):
        totals.arrived(5.0)
    for _ in range(20):
        totals.arrived(15.0, since=5.0)
    for _ in range(10):
        totals.arrived(35.0, since=15.0)

    assert totals.amplification(36.0, 60.0) == 60 / 30
    assert totals.amplification(61.0, 60.0) == 30 / 20  # the firsts are out: 20 + 10 attempts for 20 requests
    assert totals.amplification(71.0, 60.0) == 10 / 10
    assert totals.amplification(91.0, 60.0) == 1.0
    assert totals.amplification(91.0, 600.0) == 60 / 30


def test_a_request_that_waited_before_it_was_refused_is_one_request_when_it_is_back() -> None:
    """30 requests wait from 5 s to 15 s, and are back at 25 s."""
    totals = Totals()
    for _ in range(30):
        totals.arrived(5.0)
        totals.waited(5.0, 15.0)
    assert totals.amplification(16.0, 60.0) == 1.0
    for _ in range(30):
        totals.arrived(25.0, since=15.0)

    assert totals.amplification(26.0, 60.0) == 60 / 30
    assert totals.amplification(61.0, 60.0) == 30 / 30
    assert totals.amplification(71.0, 60.0) == 30 / 30


def test_retries_that_only_their_labels_tell_of_are_of_no_more_attempts_than_these_say() -> None:
    """30 requests fail at 5 s; their first retries come at 15 s and their second ones at 16 s."""
    totals = Totals()
    for _ in range(30):
        totals.arrived(5.0)
        totals.arrived(15.0, 1)
        totals.arrived(16.0, 2)

    assert totals.amplification(17.0, 60.0) == 90 / 30
    assert totals.amplification(61.0, 60.0) == 60 / (30 / 2 + 30 / 3)
    assert totals.amplification(71.0, 60.0) == 1.0


def _ask(gate: Governor, attempt: int, key: int, now: float, label: int | None = None) -> object:
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: key, retry_count=label)
    return gate.handle(arrival, now)[0]


def test_the_gate_counts_a_burst_of_refused_requests_once_each_while_it_fades() -> None:
    gate, attempt = gate_of(LaneSettings("lane", max_queue=0, deadline_s=60.0), streams=1), 0
    back: list[tuple[float, int]] = [(5.0, key) for key in range(20)]
    worst = 0.0
    for second in range(5, 120):
        for at, key in sorted(each for each in back if each[0] < second + 1.0):
            attempt += 1
            decision = _ask(gate, attempt, key, at)
            if isinstance(decision, Yield) and decision.retry and at < 60.0:
                back.append((at + decision.retry_after_s, key))
        back = [each for each in back if each[0] >= second + 1.0]
        retries = gate.snapshot(second + 0.99).retries
        worst = max(worst, retries.amplification_1m - attempt / 20)
    assert attempt > 30
    assert worst <= 1e-9
