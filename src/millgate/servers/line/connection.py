"""One TCP connection of the line door: carries bytes to its session and the session's wishes out."""

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from typing import Protocol, cast

from millgate.dialects.line import Fault, Need, OutcomeReason
from millgate.servers.line.attempt import LineAttempt
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import Ask, Drop, LineLimits, Send, SendAll, Wish
from millgate.servers.line.session import Session


class Hall(Protocol):
    """What a connection asks of its door."""

    limits: LineLimits

    def now(self) -> float:
        """Return the door's time in seconds."""

    def welcome(self, connection: "LineConnection") -> Session | None:
        """Take a new connection in, or None when there are too many."""

    def full_line(self) -> bytes:
        """Return what a connection too many is told."""

    def ask(self, connection: "LineConnection", wish: Ask) -> None:
        """Begin an attempt for a whole upload."""

    def watch(self, connection: "LineConnection") -> None:
        """Look at this connection when it is due, which may have become earlier."""

    def forget(self, connection: "LineConnection") -> None:
        """Drop a connection that is closed."""


class LineConnection(asyncio.Protocol):
    """Reads always: a pause would hide the peer's hang-up while a job of it runs.

    A peer that does not read its replies is read from no more while it has no job; with one, it may send no more
    than a line; either way it is cut when it has not read for `write_stall_s`.
    """

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._attempts: dict[int, LineAttempt] = {}
        self._outbox: deque[SendAll] = deque()
        self._stalled_at: float | None = None
        self._paused = False
        self._closing = False
        self.watched_at = math.inf
        """When the door will look at `due` next; the door's own note."""

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session, or say that there are too many."""
        self._transport = stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=self._hall.limits.unsent_bytes)
        self._session = self._hall.welcome(self)
        if self._session is None:
            stream.write(self._hall.full_line())
            stream.close()
        else:
            self._hall.watch(self)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the session and carry out what it wishes."""
        session = self._session
        if session is None or self._closing:
            return
        self._perform(session.receive(data, self._hall.now()))
        if self._stalled_at is not None:
            self._hold_back(session)
        self._hall.watch(self)

    def _hold_back(self, session: Session) -> None:
        """A peer that sends and does not read: let TCP hold it, or cut it while a job must be watched."""
        if not session.busy:
            self._paused = True
            self._stream.pause_reading()
        elif self._stream.get_write_buffer_size() > self._hall.limits.line_bytes:
            self.abort()

    def eof_received(self) -> bool:
        """Take a half-close for a farewell: who waits for an answer keeps the connection open."""
        if self._session is not None and not self._closing:
            self._perform(self._session.end_input(self._hall.now()))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that the peer was waiting for."""
        del exc
        self._closing = True
        if self._session is not None:
            self._perform(self._session.leave())
        for wish in self._outbox:
            wish.result.wipe()
        self._outbox.clear()
        self._hall.forget(self)

    def pause_writing(self) -> None:
        """The peer lags behind."""
        self._stalled_at = self._hall.now()
        self._hall.watch(self)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._stalled_at = None
        if self._paused:
            self._paused = False
            self._stream.resume_reading()
        self._pour()

    # ---- the door's side

    @property
    def busy(self) -> bool:
        """Whether a job waits or works, or a result is still on its way."""
        return bool(self._outbox) or (self._session is not None and self._session.busy)

    def due(self) -> float:
        """Return when `tick` has something to do at the latest."""
        if self._stalled_at is not None:
            return self._stalled_at + self._hall.limits.write_stall_s
        if self._session is None or self._outbox:
            return self._hall.now() + self._hall.limits.write_stall_s
        return self._session.due()

    def tick(self, now: float) -> None:
        """Keep jobs alive, end what is silent, cut who does not read."""
        if self._stalled_at is not None and now - self._stalled_at >= self._hall.limits.write_stall_s:
            self.abort()
        elif self._session is not None:
            self._perform(self._session.tick(now))

    def drain(self) -> None:
        """Close as soon as no job is left."""
        if self._session is not None:
            self._perform(self._session.drain())

    def abort(self) -> None:
        """Cut the connection."""
        self._closing = True
        self._stream.abort()

    def begin(self, job: int, attempt: LineAttempt) -> None:
        """Remember who asks for this job; to be called before it asks."""
        self._attempts[job] = attempt

    # ---- what became of a job (see `attempt.Owner`)

    def on_yielded(self, job: int, hint_s: float) -> None:
        """No slot now."""
        self._attempts.pop(job, None)
        self._perform(self._live.yielded(job, hint_s, self._hall.now()))

    def on_done(self, job: int, backend_ms: int, result: Buffer | None, content_type: str) -> None:
        """The engine has answered whole."""
        self._attempts.pop(job, None)
        self._perform(self._live.done(job, backend_ms, result, content_type, self._hall.now()))

    def on_failed(self, job: int, need: Need, fault: Fault, reason: OutcomeReason) -> None:
        """It will never be executed."""
        self._attempts.pop(job, None)
        self._perform(self._live.failed(job, need, fault, reason, self._hall.now()))

    # ---- wishes

    @property
    def _live(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def _stream(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _perform(self, wishes: Iterable[Wish]) -> None:
        for wish in wishes:
            if isinstance(wish, Send):
                self._stream.write(wish.data)
            elif isinstance(wish, Ask):
                self._hall.ask(self, wish)
            elif isinstance(wish, SendAll):
                self._outbox.append(wish)
                self._pour()
            elif isinstance(wish, Drop):
                attempt = self._attempts.pop(wish.job, None)
                if attempt is not None:
                    attempt.gone()
            else:
                self._close()

    def _pour(self) -> None:
        """Write results as long as the peer reads."""
        while self._outbox and self._stalled_at is None and not self._stream.is_closing():
            wish = self._outbox[0]
            line = next(wish.lines, None)
            if line is not None:
                self._stream.write(line)
            else:
                self._outbox.popleft()
                wish.result.wipe()
        if self._closing and not self._outbox:
            self._stream.close()

    def _close(self) -> None:
        """Close when everything has been written."""
        self._closing = True
        if not self._outbox:
            self._stream.close()
