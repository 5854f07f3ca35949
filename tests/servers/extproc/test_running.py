"""Leases of running requests, by entries of the log and a number for the time."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

pytest.importorskip("envoy", reason="needs the extra extproc")

from millgate.dialects.contract import Usage
from millgate.servers.extproc.envoy_config import LOG_INTERVAL
from millgate.servers.extproc.running import AnswerSizes, LoggedRequest, RunningRequests
from millgate.servers.extproc.settings import LOG_NAME, METADATA

FIRST_LEASE_S = 600.0


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Request:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.entries: list[LoggedRequest] = []
        self.times_lost = 0

    def logged(self, entry: LoggedRequest) -> None:
        self.entries.append(entry)

    def lost(self) -> None:
        self.times_lost += 1


def on_a_loop(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


def entry(*, goes_on: bool = True) -> LoggedRequest:
    return LoggedRequest("a", goes_on=goes_on)


def sweep_to(running: RunningRequests, clock: Clock, until_s: float) -> None:
    """Let time pass with a sweep every half second, as the timer does it."""
    while clock.now_s < until_s:
        clock.now_s = min(until_s, clock.now_s + 0.5)
        running._sweep()


def heard_every_second(running: RunningRequests, clock: Clock, times: int) -> None:
    for _ in range(times):
        sweep_to(running, clock, clock.now_s + 1.0)
        running.heard(entry())


def test_a_request_of_which_nothing_is_heard_has_its_first_lease() -> None:
    async def story() -> None:
        clock, request = Clock(), Request()
        running = RunningRequests(clock)
        running.add("a", request, FIRST_LEASE_S)
        sweep_to(running, clock, FIRST_LEASE_S - 1.0)
        assert request.times_lost == 0
        sweep_to(running, clock, FIRST_LEASE_S)
        assert request.times_lost == 1
        assert (len(running), running.lost) == (0, 1)

    on_a_loop(story)


def test_three_entries_that_are_missing_end_a_slot() -> None:
    async def story() -> None:
        clock, request = Clock(), Request()
        running = RunningRequests(clock)
        running.add("a", request, FIRST_LEASE_S)
        heard_every_second(running, clock, 3)
        last_s = clock.now_s
        sweep_to(running, clock, last_s + 3.5)
        assert request.times_lost == 0
        sweep_to(running, clock, last_s + 4.0)
        assert request.times_lost == 1

    on_a_loop(story)


def test_before_any_entry_the_name_of_the_log_says_how_long_a_request_may_be_silent() -> None:
    """An Envoy that dies while all answers are short leaves slots of which no entry ever came."""

    async def story() -> None:
        clock, before, after = Clock(), Request(), Request()
        running = RunningRequests(clock)
        running.add("a", before, FIRST_LEASE_S)
        stated = LOG_NAME.fullmatch(f"{METADATA} every {LOG_INTERVAL}")
        assert stated is not None
        running.expect(float(stated[1]))
        running.add("b", after, FIRST_LEASE_S)
        sweep_to(running, clock, 3.5)
        assert (before.times_lost, after.times_lost) == (0, 0)
        sweep_to(running, clock, 4.0)
        assert (before.times_lost, after.times_lost) == (1, 1)

    on_a_loop(story)


def test_a_stop_of_this_process_is_no_silence_of_envoy() -> None:
    """Entries that came meanwhile are read after the first sweep; and the gap says nothing of how often they come."""

    async def story() -> None:
        clock, request = Clock(), Request()
        running = RunningRequests(clock)
        running.add("a", request, FIRST_LEASE_S)
        heard_every_second(running, clock, 3)
        clock.now_s += 30.0  # stopped
        running._sweep()
        assert request.times_lost == 0
        heard_every_second(running, clock, 2)
        last_s = clock.now_s
        sweep_to(running, clock, last_s + 4.0)
        assert request.times_lost == 1

    on_a_loop(story)


def test_entries_that_are_read_before_the_late_sweep_teach_no_longer_interval() -> None:
    async def story() -> None:
        clock, request = Clock(), Request()
        running = RunningRequests(clock)
        running.add("a", request, FIRST_LEASE_S)
        heard_every_second(running, clock, 3)
        clock.now_s += 30.0
        running.heard(entry())
        running._sweep()
        heard_every_second(running, clock, 2)
        sweep_to(running, clock, clock.now_s + 4.0)
        assert request.times_lost == 1

    on_a_loop(story)


def test_an_end_that_is_told_ends_the_lease_and_a_stranger_is_counted() -> None:
    async def story() -> None:
        clock, request = Clock(), Request()
        running = RunningRequests(clock)
        running.add("a", request, FIRST_LEASE_S)
        running.heard(entry(goes_on=False))
        running.heard(entry(goes_on=False))
        assert (len(running), running.unknown, len(request.entries)) == (0, 1, 1)

    on_a_loop(story)


def test_bytes_are_tokens_as_far_as_answers_have_taught() -> None:
    sizes = AnswerSizes()
    assert sizes.tokens(1000, streamed=True) == 0
    sizes.complete(Usage(None, None), 6400, 64, streamed=True)
    assert sizes.tokens(1000, streamed=True) == 10
    sizes.complete(Usage(5, 100), 20_000, None, streamed=True)
    assert sizes.tokens(1000, streamed=True) == 5
    assert sizes.tokens(1000, streamed=False) == 0
