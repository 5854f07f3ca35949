"""One connection to an engine: carries one call at a time, delivers its answer in order, and goes back to its pool.

A call is one request from its sending to its one end.

A receiver may abort, or send the next request, from any callback: nothing is delivered while the parser runs, and
each delivery looks whether the call is still this connection's.
"""

import asyncio
import math
import socket
import ssl as tls
from collections.abc import Callable
from typing import Final, cast

from millgate.core.words import FailureKind, Sent
from millgate.http1.client.answer import ProtocolViolationError
from millgate.http1.client.contract import AnswerHead, Ear, Receiver, UpstreamSettings
from millgate.http1.client.reader import AnswerReader
from millgate.http1.client.sweep import Sweep
from millgate.http1.wire.outbox import Addressee, Outbox
from millgate.sockets.listening import notice_silence

FAULTY: Final = 500
"""From this status on an answer may be the engine's fault."""
COMPLAINING: Final = 400
"""From this status on it is no good answer: an API server says that a request is wrong though its model is dead."""


class ConnectionShelf:
    """The pool, as its calls and connections see it. Compiled, a class is asked twice as fast as a protocol."""

    settings: UpstreamSettings
    outbox: Outbox
    sweep: Sweep
    ear: Ear | None
    on_head: Callable[[AnswerHead], None] | None

    def connect(self, call: "UpstreamCall") -> None:
        """Make a fresh connection for this call."""

    def opened(self, connection: "UpstreamConnection", call: "UpstreamCall") -> None:
        """Send the call whose connection is there."""

    def keep(self, connection: "UpstreamConnection") -> None:
        """Put an idle connection on the shelf."""

    def lost(self, connection: "UpstreamConnection") -> None:
        """Forget a connection that is closed."""

    def abandon(self, call: "UpstreamCall") -> None:
        """Stop connecting for a call that has ended."""

    def report(self, error: Exception) -> None:
        """Report what a receiver has raised."""


class UpstreamCall:
    """Implements `Call`: knows its connection once there is one, and ends exactly once."""

    # The compiler wants to know what is ever deleted.
    __deletable__ = ("receiver",)

    def __init__(
        self,
        pool: ConnectionShelf,
        message: bytes,
        receiver: Receiver,
        *,
        head_only: bool,
        may_retry: bool,
    ) -> None:
        self._pool = pool
        self.message = message
        self.rest = b""
        """What follows the message: a long body."""
        self.receiver = receiver
        self.head_only = head_only
        self.deadline = math.inf
        self.paused = self._held_back = False
        self.sent = Sent.NONE
        self.connection: UpstreamConnection | None = None
        self._may_retry = may_retry
        self._done = False
        self._good_status = 0
        self._ear = ear = pool.ear
        if ear is not None:
            self._heard_before = ear.heard
            if ear.anxious:
                self.receiver = ear.trial(receiver)

    @property
    def is_over(self) -> bool:
        """Whether its receiver hears nothing more."""
        return self._done

    # ---- the caller's side

    @property
    def written(self) -> bool:
        """Whether the whole request has left this process."""
        return self.connection is not None and self.connection.written

    def abort(self) -> None:
        """Close the connection at once: the engine sees the hang-up, the receiver nothing more."""
        if self._done:
            return
        connection = self.connection
        self._close()
        if connection is not None:
            connection.drop()
        else:
            self._pool.abandon(self)

    def unfit(self) -> None:
        """Count what came with a good status as a failure of the engine, once."""
        status, self._good_status = self._good_status, 0
        if status and self._ear is not None:
            self._ear.complained(status, ", and not what was asked for")

    def pause(self) -> None:
        """Stop reading the answer until `resume`; the engine is held back by TCP."""
        if self._done or self.paused:
            return
        self.paused = self._held_back = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._done or not self.paused:
            return
        self.paused = False
        if self.connection is not None:
            self.connection.resume()

    def widen(self) -> None:
        """Let more of the answer be under way: it is long, and its reader keeps up."""
        if self.connection is not None and not self.paused:
            self.connection.widen()

    def expire_at(self, at_s: float | None) -> None:
        """Fail with TIMEOUT at this loop time whatever has arrived by then; None takes the deadline away."""
        self.deadline = math.inf if at_s is None else at_s

    # ---- the connection's side

    def begin(self, connection: "UpstreamConnection") -> None:
        """Send the request on this connection."""
        self.connection = connection
        self.sent = Sent.REQUEST
        connection.begin(self)

    def headed(self, head: AnswerHead) -> None:
        """Take the final head."""
        if self._pool.on_head is not None:
            self._pool.on_head(head)
        ear = self._ear
        if ear is not None:
            if head.status < FAULTY:
                self._good_status = head.status if head.status < COMPLAINING else 0
                ear.heard += 1
            else:
                ear.complained(head.status)

    def take_retry(self) -> bool:
        """Return True once if this call may be sent again on a fresh connection.

        What was sent stays sent: the engine may have read it before the old connection ended. What never left may always be sent.
        """
        if self._done or not (self._may_retry or self.sent is Sent.NONE):
            return False
        self._may_retry = False
        self.connection = None
        return True

    def end(self, *, delimited: bool) -> None:
        """Tell the receiver that the answer is whole."""
        if not self._done:
            receiver = self._close()
            try:
                receiver.on_end(delimited=delimited)
                if self._good_status and self._ear is not None and self._ear.anxious:
                    self._ear.succeeded()
            except Exception as error:  # noqa: BLE001 - whatever a receiver raises ends its attempt as failed
                self.raised(receiver, error)

    def fail(self, kind: FailureKind, detail: str) -> None:
        """Tell the receiver that there will be no whole answer; to cut off one that we did not read is no fault of the engine."""
        if not self._done:
            receiver = self._close()
            self._good_status = 0
            try:
                if self._ear is not None and not (self._held_back and kind is FailureKind.BROKEN):
                    self._ear.failed(kind, self._heard_before, detail)
                receiver.on_failed(kind, self.sent, detail)
            except Exception as error:  # noqa: BLE001 - as in `end`
                self.raised(receiver, error)

    def raised(self, receiver: Receiver, error: Exception) -> None:
        """Report what this call's receiver has raised, and let it end what it is for; the caller has closed the connection."""
        if not self._done:
            self._close()
        self._pool.report(error)
        self._good_status = 0
        try:
            receiver.on_raised()
        except Exception as another:  # noqa: BLE001 - as in `end`
            self._pool.report(another)

    def _close(self) -> Receiver:
        """Let go of everything, also of the receiver, which holds this call: no cycle is left to collect."""
        self._done = True
        self.connection = None
        receiver = self.receiver
        del self.receiver
        return receiver


class UpstreamConnection(Addressee):
    """Sends a request in one write and hands over its answer, one `on_data` per read.

    It is made for one call, `first`, and then serves others. An `asyncio.Protocol` by its methods alone, so that it can
    be compiled to fixed places.
    """

    def __init__(self, pool: ConnectionShelf, first: UpstreamCall, ssl: tls.SSLContext | None = None) -> None:
        self.ssl = ssl
        self.peer = ""
        self._first: UpstreamCall | None = first
        self._pool = pool
        self._clock = pool.sweep
        self._reader = AnswerReader(pool.settings.head_bytes, pool.settings.informational_answers)
        self._transport: asyncio.Transport | None = None
        self._eof = False
        self._wrote = False
        self._wide = False
        self.call: UpstreamCall | None = None
        self.reused = False
        self.stamp = 0.0
        self.checked_at = -1.0  # when it was last known to lead to where the host is

    # ---- the call's side

    def begin(self, call: UpstreamCall) -> None:
        """Send this call's request in one write, a long one in two, and read its answer from now on."""
        assert self._transport is not None
        self.call = call
        self._wrote = False
        self.stamp = self._clock.now
        if call.paused:
            self._transport.pause_reading()
        self._pool.outbox.put(self, call.message)
        if call.rest:
            self._pool.outbox.put(self, call.rest)
        if not self.reused:
            call.message = call.rest = b""  # a fresh connection that fails has failed for good

    def deliver(self, data: bytes) -> None:
        """Write now, or nowhere when the connection is lost or about to be."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self._wrote = True

    def pause(self) -> None:
        """Read nothing until `resume`."""
        if self._transport is not None:
            self._transport.pause_reading()
            if self._wide:
                self._receive(self._pool.settings.receive_bytes)
                self._wide = False

    def resume(self) -> None:
        """Read on; the silence while paused is not the engine's."""
        if self._transport is not None:
            self.stamp = self._clock.now
            self._transport.resume_reading()

    def widen(self) -> None:
        """Let more be under way until the next pause."""
        if self._transport is not None and not self._wide:
            self._receive(self._pool.settings.wide_receive_bytes)
            self._wide = True

    def _receive(self, size_bytes: int) -> None:
        """Let so many bytes wait in the kernel."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)

    def drop(self) -> None:
        """Close at once, without a word to the call."""
        self.call = None
        if self._transport is not None:
            self._transport.abort()

    def unwanted(self) -> None:
        """Close as soon as it is there: its call has ended."""
        self._first = None

    def expire(self, call: UpstreamCall, detail: str) -> None:
        """Fail the call for a deadline that has passed."""
        self.drop()
        call.fail(FailureKind.TIMEOUT, detail)

    @property
    def lost(self) -> bool:
        """Whether there is no connection (any more)."""
        return self._transport is None

    @property
    def written(self) -> bool:
        """Whether all that was sent has left this process."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    @property
    def headed(self) -> bool:
        """Whether the final head of the present call has been read."""
        return self._reader.head is not None

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and send the call that it was made for, unless the call was given up."""
        self._transport = cast("asyncio.Transport", transport)
        first, self._first = self._first, None
        if first is None:
            self._transport.abort()
            return
        self._receive(self._pool.settings.receive_bytes)
        notice_silence(self._transport.get_extra_info("socket"))
        self.peer = str((self._transport.get_extra_info("peername") or ("",))[0])
        self._pool.opened(self, first)

    def pause_writing(self) -> None:
        """Do nothing: a request is one write, and nothing follows it."""

    def resume_writing(self) -> None:
        """Do nothing, as with `pause_writing`."""

    def data_received(self, data: bytes) -> None:
        """Read what came and deliver it; whatever the receiver raises ends its call and this connection."""
        call = self.call
        if call is None:
            self.drop()  # an answer to no call: the connection cannot be trusted
            return
        receiver = call.receiver
        try:
            self._read(call, data)
        except Exception as error:  # noqa: BLE001 - as in `UpstreamCall.end`
            if self.call is call:
                self.drop()
            call.raised(receiver, error)

    def _read(self, call: UpstreamCall, data: bytes) -> None:
        self.stamp = self._clock.now
        reader = self._reader
        headed = reader.head is not None
        if not headed:
            if self.reused and not self._wrote:
                self._refuse_stray()
                return
            call.message = call.rest = b""  # only a request without a byte of an answer is sent again
        if not headed and (repeated := reader.repeated(data)) is not None and not call.head_only:
            self._deliver(call, repeated[0], repeated[1])
            return
        try:
            reader.feed(data, head_only=call.head_only)
        except ProtocolViolationError as violation:
            self.drop()
            call.fail(FailureKind.PROTOCOL, str(violation))
            return
        if not headed and reader.head is not None:
            call.headed(reader.head)
            call.receiver.on_head(reader.head)
            if self.call is not call:
                return
        parts = reader.parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            call.receiver.on_data(body)
            if self.call is not call:
                return
        if reader.whole:
            self._finish(call, reusable=reader.keep_alive and not reader.surplus)

    def _refuse_stray(self) -> None:
        """Close on an answer that came before its request had left: `connection_lost` has that sent on a fresh connection."""
        if self._transport is not None:
            self._transport.abort()

    def _deliver(self, call: UpstreamCall, head: AnswerHead, body: bytes) -> None:
        """Hand over an answer that has come whole in one read; the reader has nothing to forget."""
        call.headed(head)
        receiver = call.receiver
        receiver.on_head(head)
        if self.call is call:
            receiver.on_data(body)
        if self.call is call:
            self._finish(call, reusable=True)

    def eof_received(self) -> None:
        """Note the clean end; `connection_lost` follows."""
        self._eof = True
        if self._transport is not None:
            self._transport.abort()  # a close would wait until the rest of the request is sent

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call that was under way, or leave the pool's shelf."""
        self._transport = None
        call, self.call = self.call, None
        self._pool.lost(self)
        if call is None:
            return
        if not self._wrote:
            call.sent = Sent.NONE
        reader = self._reader
        if reader.until_close and self._eof:
            call.end(delimited=False)
        elif self.reused and not reader.touched and self._has_crossed() and call.take_retry():
            self._pool.connect(call)
        else:
            where = "in" if reader.head is not None else "before"
            call.fail(FailureKind.BROKEN, f"connection lost {where} the answer: {exc or 'closed'}")

    def _has_crossed(self) -> bool:
        """Whether this end was under way when the request was written, if that was written at all."""
        return not self._wrote or self._clock.now - self.stamp < self._pool.settings.crossing_s

    def _finish(self, call: UpstreamCall, *, reusable: bool) -> None:
        """Give the connection back, then end the call."""
        transport = self._transport
        assert transport is not None
        self.call = None
        if reusable and self._wrote and not transport.get_write_buffer_size():
            if self._reader.touched:
                self._reader.clear()
            self.reused = True
            if call.paused:
                transport.resume_reading()
            self._pool.keep(self)
        else:
            transport.abort()
        call.end(delimited=True)
