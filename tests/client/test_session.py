"""The parts without a network: meanings, windows, budgets, buckets."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from millgate.client.answers import Meaning, backoff_s, judge, read_hint_s
from millgate.client.pacing import Cost, Limits, RequestPacing
from millgate.client.session import CallRetryBudget, CallWindow, HostSession, HostSettings, Turn


@pytest.mark.parametrize(
    ("headers", "hint_s"),
    [
        ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1e300"}, None),
        ({"retry-after": "later"}, None),
        ({}, None),
    ],
)
def test_hints_are_read_as_the_sdks_read_them(headers: dict[str, str], hint_s: float | None) -> None:
    assert read_hint_s(headers) == hint_s


def test_a_hint_may_be_a_date() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 50 < (read_hint_s({"retry-after": in_a_minute}) or 0) <= 60


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_date_is_read_by_the_clock_of_the_server_that_gave_it(ahead_s: int) -> None:
    """A client whose clock was an hour behind waited for an hour, and one that was an hour ahead had no hint."""
    there = datetime.now(UTC) + timedelta(seconds=ahead_s)
    in_a_minute = format_datetime(there + timedelta(seconds=60), usegmt=True)
    assert read_hint_s({"retry-after": in_a_minute, "date": format_datetime(there, usegmt=True)}) == 60.0


@pytest.mark.parametrize(
    ("status", "told", "meaning", "retry"),
    [
        (200, None, Meaning.FINAL, False),
        (400, None, Meaning.FINAL, False),
        (413, None, Meaning.FINAL, False),
        (400, "true", Meaning.FAILED, True),
        (429, None, Meaning.REFUSED, True),
        (503, None, Meaning.REFUSED, True),
        (529, None, Meaning.REFUSED, True),
        (429, "false", Meaning.REFUSED, False),
        (500, None, Meaning.FAILED, True),
        (500, "false", Meaning.FAILED, False),
        (408, None, Meaning.FAILED, True),
    ],
)
def test_what_an_answer_means(status: int, told: str | None, meaning: Meaning, retry: bool) -> None:
    verdict = judge(status, {} if told is None else {"x-should-retry": told})
    assert (verdict.meaning, verdict.retry) == (meaning, retry)


def test_jitter_is_full_and_bounded() -> None:
    waits = [backoff_s(retries) for retries in (0, 3, 50) for _ in range(200)]
    assert min(waits[:200]) < 0.1
    assert 0.4 < max(waits[:200]) <= 0.5
    assert 6.0 < max(waits) <= 8.0


def test_the_window_grows_on_success_and_halves_once_per_round() -> None:
    window = CallWindow(1000)
    calls = [window.send() for _ in range(int(window.size))]
    for _ in calls:
        window.answered()
        window.inflight -= 1
    assert window.size == 4.0 + 1  # only the call that the window bound lets it grow
    for _ in range(40):
        while window.has_room:
            window.send()
        while window.inflight:
            window.answered()
            window.inflight -= 1
    grown = window.size
    assert grown > 20
    round_of_calls = [window.send() for _ in range(20)]
    for number in round_of_calls:
        window.refused(number)
    assert window.size == grown / 2
    window.refused(window.send())
    assert window.size == grown / 4


def test_the_window_is_never_below_one() -> None:
    window = CallWindow(10)
    for _ in range(20):
        window.refused(window.send())
    assert window.size == 1.0


def test_retries_are_a_share_of_first_attempts() -> None:
    budget = CallRetryBudget(0.1, 2.0)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    for _ in range(100):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(100)) in {9, 10}


def test_a_bucket_refills_continuously_as_the_providers_do() -> None:
    """The wait that a public 429 names: limit 10,000, used 8,554, asked 3,082: 9.816 s."""
    pace = RequestPacing(Limits(itpm=10_000), 0.0)
    pace.take(Cost(1, 8554, 0))
    assert pace.wait_s(Cost(1, 3082, 0), 0.0) == pytest.approx(9.816, abs=0.0005)
    assert pace.wait_s(Cost(1, 3082, 0), 9.9) == 0.0


def test_what_is_larger_than_its_bucket_waits_for_a_full_one() -> None:
    pace = RequestPacing(Limits(otpm=100), 0.0)
    assert pace.wait_s(Cost(1, 0, 500), 0.0) == 0.0
    pace.take(Cost(1, 0, 500))
    assert pace.wait_s(Cost(1, 0, 10), 0.0) == pytest.approx(246.0)


def test_the_cost_of_a_call_is_read_off_its_body() -> None:
    assert Cost.of(b'{"max_tokens": 77, "x": 1}').output_tokens == 77
    assert Cost.of(b'{"max_completion_tokens":5}').output_tokens == 5
    assert Cost.of(b"").output_tokens == 256


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="requests per minute is 0"):
        RequestPacing(Limits(rpm=0), 0.0)


def test_older_calls_go_first_and_lost_ones_are_found() -> None:
    session = HostSession(HostSettings(max_inflight=1), clock=lambda: 0.0)
    woken: list[str] = []
    first, third, second = (
        Turn(order, Cost(), lambda name=name: woken.append(name))  # type: ignore[misc]
        for order, name in ((1, "first"), (3, "third"), (2, "second"))
    )
    for turn in (first, third, second):
        session.enter(turn)
    assert woken == ["first"]
    session.lost.append(first)
    session.look(third)
    assert woken == ["first", "second"]
    session.leave(second, served=True)
    assert woken == ["first", "second", "third"]
    session.leave(second)
    session.leave(third)
    assert session.window.inflight == 0


def test_a_call_whose_event_loop_has_closed_lets_the_others_pass() -> None:
    def loop_is_closed() -> None:
        raise RuntimeError("Event loop is closed")

    session = HostSession(HostSettings(max_inflight=1))
    flying, closed, waiting = (
        Turn(order, Cost(), wake) for order, wake in enumerate((lambda: None, loop_is_closed, lambda: None))
    )
    for turn in (flying, closed, waiting):
        session.enter(turn)
    session.leave(flying, served=True)

    assert waiting.sent
    session.leave(closed)  # when its coroutine is collected at last
    assert session.window.inflight == 1


@pytest.mark.parametrize(
    "field", ["max_inflight", "retry_share", "retry_floor", "max_retries", "max_blind_retries"]
)
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_settings_that_would_let_no_call_through_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}, the least is"):
        HostSettings(**{field: value})  # type: ignore[arg-type]
