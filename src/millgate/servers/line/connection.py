"""One TCP connection of the line door: carries bytes to its session and the session's wishes out."""

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol, cast

from millgate.dialects.line import Fault, Need, OutcomeReason
from millgate.http1.client.sweep import SWEEP_S
from millgate.runtime.clock import MonotonicClock
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import (
    Ask,
    Drop,
    ErrorWords,
    LineLimits,
    SendAll,
    SendBytes,
    Wish,
    Withdraw,
)
from millgate.servers.line.session import Session
from millgate.sockets.descriptors import Descriptors, DoorClients


class Hall:
    """What a connection asks of its door, and the connections that are open."""

    def __init__(self, limits: LineLimits, descriptors: Descriptors) -> None:
        self.limits = limits
        self.now = MonotonicClock.now
        self._clients = DoorClients(descriptors, limits.connections)
        self._connections: set[LineConnection] = set()
        self._watchlist = Watchlist(self._connections)
        self._emptied = asyncio.Event()

    def welcome(self, connection: "LineConnection", peer: str) -> Session | bytes:
        """Take a new connection in, or return the line that refuses it."""
        raise NotImplementedError

    @property
    def crowded(self) -> bool:
        """Whether a client that is refused may not stay until it has read why."""
        return self._clients.crowded

    def ask(self, connection: "LineConnection", wish: Ask) -> None:
        """Begin an attempt for a whole upload."""

    def withdraw(self, wish: Withdraw) -> None:
        """End the appointments of jobs whose peer has left."""

    def watch(self, connection: "LineConnection") -> None:
        """Look at this connection when it is due, which may have become earlier."""
        self._watchlist.watch(connection)

    def forget(self, connection: "LineConnection") -> None:
        """Drop a connection that is closed."""
        self._connections.discard(connection)
        self._clients.leave(connection)
        if not self._connections:
            self._emptied.set()


class Asking(Protocol):
    """What asks for a job: an attempt, or its payload while that is being read."""

    def gone(self) -> None:
        """The client has left, or has dropped the job."""


class LineConnection:
    """An `asyncio.Protocol` by its methods alone, so that it can be compiled.

    Reads on while a job runs: a longer pause would hide the peer's hang-up.

    A peer that sends more than a turn of lines is read from again when those are done. One that does not read its
    replies is read from no more while it has no job; with one, it may send no more than a line; either way it is cut
    when it has not read for `write_stall_s`.
    """

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._attempts: dict[int, Asking] = {}
        self._outbox: deque[SendAll] = deque()
        self._stalled_at: float | None = None
        self._parted_at: float | None = None
        # When the last byte had left after that, as far as a look has found.
        self._told_at: float | None = None
        self._paused = False
        self._turn_due = False
        self._closing = False
        self._last_words = b""
        self.watched_at = math.inf
        """When the door will look at `due` next; the door's own note."""

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session, or say why there is none."""
        self._transport = stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=self._hall.limits.unsent_bytes)
        welcome = self._hall.welcome(self, _host_of(stream))
        if isinstance(welcome, bytes):
            stream.write(welcome)
            if self._hall.crowded:
                stream.close()
            else:
                self._close()
        else:
            self._session = welcome
            self._hall.watch(self)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the session and carry out what it wishes."""
        session = self._session
        if session is None or self._closing:
            return
        self._perform(session.receive(data, self._hall.now()))
        self._pace(session)
        self._hall.watch(self)

    def _next_turn(self) -> None:
        """Take the lines that one turn has left to the next."""
        self._turn_due = False
        self.data_received(b"")

    def _pace(self, session: Session) -> None:
        """Take no more from a peer than it reads: let TCP hold it, or cut it while a job must be watched."""
        if self._closing or self._stream.is_closing():
            return
        stalled = self._stalled_at is not None
        if stalled and session.busy and self._stream.get_write_buffer_size() > self._hall.limits.line_bytes:
            self.abort()
            return
        held_back = stalled and not session.busy
        if session.pending and not held_back and not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        paused = session.pending or held_back
        if paused is not self._paused:
            self._paused = paused
            (self._stream.pause_reading if paused else self._stream.resume_reading)()

    def eof_received(self) -> bool:
        """Take a half-close for a farewell: a client that waits for an answer keeps the connection open."""
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
        self._pour()
        if self._session is not None:
            self._pace(self._session)

    # ---- the door's side

    @property
    def busy(self) -> bool:
        """Whether a job waits or works, or what was said is still on its way; one that was refused had no job."""
        if self._session is None:
            return False
        lingers = self._parted_at is not None and not self._stream.is_closing()
        unsent = bool(self._outbox) or self._stream.get_write_buffer_size() > 0
        return unsent or lingers or self._session.busy

    def due(self) -> float:
        """Return when `tick` has something to do at the latest."""
        if self._told_at is not None:
            return self._told_at + self._hall.limits.linger_s
        if self._parted_at is not None:
            return self._parted_at
        if self._stalled_at is not None:
            return self._stalled_at + self._hall.limits.write_stall_s
        if self._session is None or self._outbox:
            return self._hall.now() + self._hall.limits.write_stall_s
        return self._session.due()

    def tick(self, now: float) -> None:
        """Keep jobs alive, end what is silent, cut clients that do not read."""
        stall_s = self._hall.limits.write_stall_s
        if self._parted_at is not None:
            if self._stream.get_write_buffer_size():
                if now - self._parted_at >= stall_s:
                    self.abort()
            elif self._told_at is None:
                self._told_at = now
            else:
                self._stream.close()
        elif self._stalled_at is not None and now - self._stalled_at >= stall_s:
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

    def begin(self, job: int, attempt: Asking) -> None:
        """Remember the attempt for this job; to be called before it asks."""
        self._attempts[job] = attempt

    # ---- what became of a job (see `attempt.Owner`)

    def on_yielded(self, job: int, hint_s: float) -> None:
        """No slot now."""
        self._tell(job, self._live.yielded(job, hint_s, self._hall.now()))

    def on_done(self, job: int, backend_ms: int, result: Buffer | None, content_type: str) -> None:
        """The engine has answered whole."""
        self._tell(job, self._live.done(job, backend_ms, result, content_type, self._hall.now()))

    def on_failed(self, job: int, need: Need, fault: Fault, reason: OutcomeReason, words: ErrorWords) -> None:
        """It will never be executed."""
        self._tell(job, self._live.failed(job, need, fault, reason, words, self._hall.now()))

    def _tell(self, job: int, wishes: Iterable[Wish]) -> None:
        """Say what became of a job; a client that cannot be told is cut off, or it would be kept waiting for good."""
        self._attempts.pop(job, None)
        try:
            self._perform(wishes)
        except Exception:
            self.abort()
            raise

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
            if isinstance(wish, SendBytes):
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
            elif isinstance(wish, Withdraw):
                self._hall.withdraw(wish)
            else:
                self._close(wish.words)

    def _pour(self) -> None:
        while self._outbox and self._stalled_at is None and not self._stream.is_closing():
            wish = self._outbox[0]
            line = next(wish.lines, None)
            if line is not None:
                self._stream.write(line)
            else:
                self._outbox.popleft()
                wish.result.wipe()
        if self._closing and not self._outbox:
            self._part()

    def _close(self, words: bytes = b"") -> None:
        self._closing, self._last_words = True, words
        if not self._outbox:
            self._part()

    def _part(self) -> None:
        """Half-close, where it is not TLS, and drop what still comes: a reset would destroy what the peer has not read."""
        if self._parted_at is not None or self._stream.is_closing():
            return
        self._stream.write(self._last_words)
        if self._stream.can_write_eof():
            self._stream.write_eof()
        if self._paused:
            self._stream.resume_reading()
        self._parted_at = self._hall.now()
        self._hall.watch(self)


def _host_of(stream: asyncio.Transport) -> str:
    """Return the peer's address, empty where it has none."""
    peername: tuple[str, ...] = stream.get_extra_info("peername") or ("",)
    return peername[0]


_STALE_DUES: Final = 1000
"""The heap of due times may hold so many entries of closed connections, and a few per open one (INV-5)."""


class Watchlist:
    """The due times of these open connections, earliest first; the set is its owner's."""

    def __init__(self, connections: set[LineConnection]) -> None:
        self._connections = connections
        # An entry that is not its connection's `watched_at` is stale.
        self._dues: list[tuple[float, int, LineConnection]] = []
        self._next_watch = count().__next__

    def __len__(self) -> int:
        """Return how many due times are kept, stale ones included."""
        return len(self._dues)

    def watch(self, connection: LineConnection, earliest: float = 0.0) -> None:
        """Look at this connection when it is due, which may have become earlier, and not before `earliest`."""
        at = max(connection.due(), earliest)
        if at < connection.watched_at:
            connection.watched_at = at
            if len(self._dues) > 4 * (len(self._connections) + _STALE_DUES):
                self._dues = [each for each in self._dues if each[2] in self._connections]
                heapify(self._dues)
            heappush(self._dues, (at, self._next_watch(), connection))

    def check(self, now: float) -> None:
        """Look at the connections whose time has come."""
        while self._dues and self._dues[0][0] <= now:
            at, _, connection = heappop(self._dues)
            if at != connection.watched_at or connection not in self._connections:
                continue
            try:
                if connection.due() <= now:
                    connection.tick(now)
            except Exception:
                connection.abort()  # what it waits for would never come
                raise
            connection.watched_at = math.inf
            self.watch(connection, now + SWEEP_S)
