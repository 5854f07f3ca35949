"""Looks after one engine: asks its health page, listens to its answers, and posts EngineDown and EngineUp.

What follows from the news is `health`'s to say; here are the timer, the page and the ear.
"""

import asyncio
from collections.abc import Callable, Sequence

from headgate.core.events import EngineDown, EngineUp
from headgate.core.words import FailureKind, Sent
from headgate.runtime.clock import Clock
from headgate.runtime.driver import Driver
from headgate.runtime.health import EngineHealth, HealthSettings, Stance, Standing
from headgate.runtime.upstream import AnswerHead, Call, Receiver, Upstream
from headgate.runtime.upstream.fields import Lines

_FAULTY = 500
_NO_ROOM = (503, 529)


class HealthCheck:
    """Looks after one engine on the running loop and posts EngineDown and EngineUp.

    `pages` is the pool for the health page: a look must not wait behind requests. `alone` tells whether no other
    engine takes work. Use: `start`, hand `watched(pool)` to the doors, `stop`.
    """

    def __init__(
        self,
        engine: str,
        pages: Upstream,
        driver: Driver,
        clock: Clock,
        settings: HealthSettings,
        alone: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.health = EngineHealth(settings, clock.now())
        self.heard_at = clock.now()
        """When a request was last answered or begun to be."""
        self.now = clock.now
        self._pages = pages
        self._driver = driver
        self._alone = alone
        self._told = True
        self._running = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._call: Call | None = None

    @property
    def standing(self) -> Standing:
        """How the engine stands, for people."""
        health = self.health
        return Standing(self.engine, health.stance, health.since, health.why)

    def watched(self, pool: Upstream) -> "WatchedUpstream":
        """Return this pool, listening to what becomes of each request."""
        return WatchedUpstream(pool, self)

    def start(self) -> None:
        """Begin to look, at once."""
        self._running = True
        self._look()

    def stop(self) -> None:
        """Stop looking."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call is not None:
            self._call.abort()
            self._call = None

    # ---- what requests tell

    def sent(self) -> bool:
        """A request goes to the engine; return whether it is a trial."""
        is_trial = self.health.sent(self.now())
        self._tell()
        return is_trial

    def heard(self) -> None:
        """The engine has said something."""
        self.heard_at = self.now()

    def succeeded(self) -> None:
        """A request was answered."""
        self.heard()
        self.health.succeeded(self.heard_at)
        self._tell()

    def failed(self, why: str) -> None:
        """A request failed."""
        self.health.failed(why, self.now(), alone=self._alone())
        self._tell()
        if self._running and self.health.in_doubt:
            self._look_in(self.health.settings.quick_poll_s)

    # ---- looking

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        health, settings, alone = self.health, self.health.settings, self._alone()
        quick = alone and (health.in_doubt or health.stance is not Stance.UP)
        self._look_in(settings.quick_poll_s if quick else settings.poll_s)
        health.waited(self.now(), alone=alone)
        self._tell()
        if settings.target is not None and self._call is None:
            by = self._loop.time() + settings.page_within_s
            page = _Page(self, self.now())
            self._call = self._pages.request(b"GET", settings.target, (), b"", page, head_by=by)
            self._call.expire_at(by)

    def looked(self, complaint: str | None) -> None:
        """The health page has answered, or not."""
        if self._running:
            self.health.looked(complaint, self.now(), alone=self._alone())
            self._tell()

    def page_over(self) -> None:
        """The next look may begin."""
        self._call = None

    def _tell(self) -> None:
        takes_work = self.health.takes_work
        if takes_work is not self._told:
            self._told = takes_work
            self._driver.post(EngineUp(self.engine) if takes_work else EngineDown(self.engine))


class _Page:
    """Receives one health page: what counts is its status."""

    def __init__(self, check: HealthCheck, sent_at: float) -> None:
        self._check = check
        self._sent_at = sent_at
        self._headed = False

    def on_head(self, head: AnswerHead) -> None:
        """Below 500 somebody answers, and an engine without such a page answers too."""
        self._headed = True
        faulty = head.status >= _FAULTY
        self._check.looked(f"its health page says {head.status}" if faulty else None)

    def on_data(self, data: bytes) -> None:
        """Nothing: the status has said it."""

    def on_end(self, *, delimited: bool) -> None:
        """Let the next look begin."""
        del delimited
        self._check.page_over()

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """A page that does not come is a bad look, unless the engine was heard meanwhile."""
        del sent, detail
        self._check.page_over()
        busy = kind is FailureKind.TIMEOUT and self._check.heard_at > self._sent_at
        if not self._headed and not busy:
            self._check.looked(f"its health page does not answer: {kind.value}")


class WatchedUpstream:
    """An `Upstream` whose answers are listened to: their heads and ends, never their bytes."""

    __slots__ = ("_check", "_pool")

    def __init__(self, pool: Upstream, check: HealthCheck) -> None:
        self._pool = pool
        self._check = check

    def request(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] | Lines,
        body: bytes,
        receiver: Receiver,
        *,
        head_by: float | None = None,
        may_retry: bool = True,
    ) -> Call:
        """Send one request now; see `Upstream.request`."""
        listener = _Listener(receiver, self._check, is_trial=self._check.sent())
        return self._pool.request(
            method, target, headers, body, listener, head_by=head_by, may_retry=may_retry
        )

    def close(self) -> None:
        """Close every kept connection and abort every call."""
        self._pool.close()


class _Listener:
    """Stands before a receiver; `on_data` is the receiver's own, so that a chunk costs nothing more."""

    __slots__ = ("_answered", "_check", "_receiver", "_sent_at", "on_data")

    def __init__(self, receiver: Receiver, check: HealthCheck, *, is_trial: bool) -> None:
        self._receiver = receiver
        self._check = check
        self._sent_at = check.now()
        self._answered = False
        self.on_data: Callable[[bytes], None] = self._first_data if is_trial else receiver.on_data

    def _first_data(self, data: bytes) -> None:
        """Take the first bytes of a trial for its success: a whole answer may take minutes."""
        self.on_data = self._receiver.on_data
        if self._answered:
            self._check.succeeded()
        self._receiver.on_data(data)

    def on_head(self, head: AnswerHead) -> None:
        """Note what the status says of the engine."""
        status = head.status
        self._answered = status < _FAULTY
        if self._answered or status in _NO_ROOM:
            self._check.heard()
        else:
            self._check.failed(f"status {status}")
        self._receiver.on_head(head)

    def on_end(self, *, delimited: bool) -> None:
        """A whole answer that is none of the engine's faults is a success."""
        if self._answered:
            self._check.succeeded()
        self._receiver.on_end(delimited=delimited)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """A failure, unless it was only our own time that ran out."""
        if kind is not FailureKind.TIMEOUT or self._check.heard_at <= self._sent_at:
            self._check.failed(kind.value)
        self._receiver.on_failed(kind, sent, detail)
