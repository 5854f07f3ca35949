"""Watches engines through their own metrics pages, and asks one for its size before the gate starts.

A scrape is stamped with the time at which it was *sent*. The gauge may be younger, never older, so the core never
takes a gauge for newer than what it has sent itself. A scrape that fails says nothing; the core lets the last
reading grow stale.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millgate.core.events import EngineSeen
from millgate.core.words import FailureKind, Sent
from millgate.http1.client import AnswerHead, Call, Upstream
from millgate.http1.client.connection import FAULTY
from millgate.http1.wire.fields import Lines
from millgate.runtime.clock import Clock
from millgate.runtime.driver import Driver
from millgate.runtime.gauges import GAUGE_NAMES, MOST_PAGE_BYTES, UNKNOWN_GAUGES, Gauges, read_gauges

POLL_S = 1.0
SCRAPE_TIMEOUT_S = 0.2
# At most ten extra scrapes a second, however many clients leave.
LEAST_GAP_S = 0.1
# An answer that ended just before the gauge was read must have been heard of before the gauge is: counted as still
# there it would hide a request that has ended, and end that permit while the engine works on.
NEWS_S = 0.03
_HEADERS = ((b"accept", b"text/plain"),)
_GOOD = (200,)


class Fetched(NamedTuple):
    """What came of a page: its body where that is whole and wanted, its status (0: none came), and how it failed, `detail` in words."""

    body: bytes | None = None
    status: int = 0
    failure: FailureKind | None = None
    detail: str = ""


class _Page:
    """Receives one page and hands on what came of it."""

    def __init__(self, done: Callable[[Fetched], None], statuses: Sequence[int]) -> None:
        self._done = done
        self._statuses = statuses
        self._parts: list[bytes] = []
        self._room = MOST_PAGE_BYTES
        self._wanted = False
        self._status = 0

    def on_head(self, head: AnswerHead) -> None:
        self._status = head.status
        self._wanted = head.status in self._statuses

    def on_data(self, data: bytes) -> None:
        self._room -= len(data)
        if self._wanted and self._room >= 0:
            self._parts.append(data)
        else:
            self._wanted = False
            self._parts.clear()

    def on_end(self, *, delimited: bool) -> None:
        """Hand the page on; a page cut short loses a line at most, and a bad line is unknown."""
        del delimited
        self._done(Fetched(b"".join(self._parts) if self._wanted else None, self._status))

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        del sent
        self._done(Fetched(None, self._status, kind, detail))

    def on_raised(self) -> None:
        """Say that there is no page, unless saying so is what has failed."""
        self._done(Fetched())


def scrape(
    upstream: Upstream,
    target: bytes,
    within_s: float,
    done: Callable[[Fetched], None],
    headers: Sequence[tuple[bytes, bytes]] | Lines = _HEADERS,
    *,
    statuses: Sequence[int] = _GOOD,
) -> Call:
    """Fetch a page; `done` is called once; the body is wanted of one of these statuses, and within `within_s`."""
    call = upstream.request(b"GET", target, headers, b"", _Page(done, statuses))
    call.expire_at(asyncio.get_running_loop().time() + within_s)
    return call


async def _fetch(
    upstream: Upstream, target: bytes, within_s: float, statuses: Sequence[int] = _GOOD
) -> bytes | None:
    page: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
    call = scrape(upstream, target, within_s, page.set_result, statuses=statuses)
    try:
        return (await page).body
    finally:
        call.abort()


async def discover(upstream: Upstream, target: bytes = b"/metrics", within_s: float = 2.0) -> Gauges | None:
    """Read an engine's gauges and size once; None when it shows no metrics page in time."""
    text = await _fetch(upstream, target, within_s)
    return None if text is None else read_gauges(text)


async def is_well(pages: Upstream, target: bytes, within_s: float) -> bool:
    """Ask for a health page once; return whether it answers in time with a status that is good enough."""
    return await _fetch(pages, target, within_s, range(FAULTY)) is not None


class EngineWatch:
    """Reads one engine's gauges every second or a little less often, and soon after clients have left it, and posts EngineSeen.

    `upstream` must be the watch's own pool: a scrape must not wait behind requests. One scrape at a time. `on_size` is
    told what an engine says of itself when two looks in a row say so, and have not said so before.
    """

    def __init__(
        self, engine: str, upstream: Upstream, driver: Driver, clock: Clock, *, target: bytes = b"/metrics"
    ) -> None:
        self.engine = engine
        self.last = Gauges()
        self.on_size: Callable[[Gauges], None] | None = None
        self._sizes: tuple[int | None, str | None] | None = None
        self._upstream = upstream
        self._driver = driver
        self._now = clock.now
        self._target = target
        self._names = UNKNOWN_GAUGES
        self._loop = asyncio.get_running_loop()
        self._poll_timer: asyncio.TimerHandle | None = None
        self._due: list[float] = []
        self._due_timer: asyncio.TimerHandle | None = None
        self._last_sent = -1.0
        self._call: Call | None = None
        self._running = False

    def start(self) -> None:
        """Begin polling, at once."""
        self._running = True
        self._poll()

    def stop(self) -> None:
        """Stop polling and forget what is under way."""
        self._running = False
        for timer in (self._poll_timer, self._due_timer):
            if timer is not None:
                timer.cancel()
        if self._call is not None:
            self._call.abort()
            self._call = None

    def on_hangup(self) -> None:
        """A client of this engine has left: look soon, so that its permit ends when the engine is done."""
        if not self._running:
            return
        now = self._now()
        for delay_s in self._names.after_hangup_s:
            if not any(abs(due - (now + delay_s)) < LEAST_GAP_S for due in self._due):
                self._due.append(now + delay_s)
        self._due.sort()
        self._arm()

    def _arm(self) -> None:
        """Look when the first look is due, or sooner where that is arranged already."""
        if not self._due:
            return
        delay_s = max(0.001, self._due[0] - self._now())
        if self._due_timer is not None:
            if self._due_timer.when() <= self._loop.time() + delay_s:
                return
            self._due_timer.cancel()
        self._due_timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._due_timer = None
        self._due.pop(0)
        self._arm()
        self._send()

    def _poll(self) -> None:
        # Some engine looks for clients that have left only where it is left alone for so long: never more often than that.
        self._poll_timer = self._loop.call_later(max(POLL_S, self._names.after_hangup_s[0]), self._poll)
        self._send()

    def _send(self) -> None:
        now = self._now()
        gap_s = self._names.after_hangup_s[0] if self._due else LEAST_GAP_S
        if self._call is not None or now - self._last_sent < gap_s:
            return
        self._last_sent = now
        self._call = scrape(self._upstream, self._target, SCRAPE_TIMEOUT_S, self._take)

    def _take(self, fetched: Fetched) -> None:
        self._call, page = None, fetched.body
        if page is None or not self._running:
            return
        before, self.last = self.last, (gauges := read_gauges(page))
        if gauges.engine != before.engine:
            own = [row for row in GAUGE_NAMES if row.engine == gauges.engine]
            self._names = own[0] if own else UNKNOWN_GAUGES
        self._look_at_size(before, gauges)
        seen = EngineSeen(
            self.engine,
            self._last_sent - self._names.late_s,
            gauges.running,
            gauges.waiting,
            gauges.kv_share,
            gauges.preemptions,
            gauges.adapters,
        )
        self._loop.call_later(NEWS_S, self._tell, seen)

    def _look_at_size(self, before: Gauges, gauges: Gauges) -> None:
        """Say what has changed; one look alone may be of another engine behind the same address."""
        size = gauges.kv_tokens, gauges.model
        if gauges.kv_tokens is None or size == self._sizes or size != (before.kv_tokens, before.model):
            return
        self._sizes = size
        if self.on_size is not None:
            self.on_size(gauges)

    def _tell(self, seen: EngineSeen) -> None:
        if self._running:
            self._driver.post(seen)
