"""One request to an engine from its sending to its one end."""

import math
from typing import Final, Protocol

from millgate.core.words import FailureKind, Sent
from millgate.http1.client.contract import Ear, Receiver

FAULTY: Final = 500
"""From this status on an answer may be the engine's fault."""
COMPLAINING: Final = 400
"""From this status on it is no good answer: an API server says that a request is wrong though its model is dead."""


class Carrier(Protocol):
    """The connection, as its call sees it."""

    @property
    def written(self) -> bool:
        """Whether all that was sent has left this process."""

    def begin(self, call: "UpstreamCall") -> None:
        """Send this call's request."""

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None:
        """Read on."""

    def widen(self) -> None:
        """Let more be under way until the next pause."""

    def drop(self) -> None:
        """Close at once, without a word to the call."""


class Connector(Protocol):
    """The pool, as a call sees it."""

    ear: Ear | None

    def abandon(self, call: "UpstreamCall") -> None:
        """Stop connecting for a call that has ended."""

    def report(self, error: Exception) -> None:
        """Report what a receiver has raised."""


class UpstreamCall:
    """Implements `Call`: knows its connection once there is one, and ends exactly once."""

    __slots__ = (
        "_answered",
        "_done",
        "_ear",
        "_heard_before",
        "_may_retry",
        "_pool",
        "_until_head",
        "connection",
        "deadline",
        "head_only",
        "message",
        "paused",
        "receiver",
        "rest",
        "sent",
    )
    # The compiler wants to know what is ever deleted.
    __deletable__ = ("receiver",)

    def __init__(
        self,
        pool: Connector,
        message: bytes,
        receiver: Receiver,
        *,
        head_only: bool,
        head_by: float | None,
        may_retry: bool,
    ) -> None:
        self._pool = pool
        self.message = message
        self.rest = b""
        """What follows the message: a long body."""
        self.receiver = receiver
        self.head_only = head_only
        self.deadline = math.inf if head_by is None else head_by
        self.paused = False
        self.sent = Sent.NONE
        self.connection: Carrier | None = None
        self._until_head = True
        self._may_retry = may_retry
        self._done = False
        self._answered = False
        self._ear = ear = pool.ear
        if ear is not None:
            self._heard_before = ear.heard
            if ear.anxious:
                self.receiver = ear.trial(receiver)

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

    def pause(self) -> None:
        """Stop reading the answer until `resume`; the engine is held back by TCP."""
        if self._done or self.paused:
            return
        self.paused = True
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
        self._until_head = False

    # ---- the connection's side

    def begin(self, connection: Carrier) -> None:
        """Send the request on this connection."""
        self.connection = connection
        self.sent = Sent.REQUEST
        connection.begin(self)

    def headed(self, status: int) -> None:
        """Let go of `head_by`: the final head is here."""
        if self._until_head:
            self.deadline = math.inf
        ear = self._ear
        if ear is not None:
            if status < FAULTY:
                self._answered = status < COMPLAINING
                ear.heard += 1
            else:
                ear.complained(status)

    def take_retry(self) -> bool:
        """Return True once if this call may be sent again on a fresh connection.

        What was sent stays sent: the engine may have read it before the old connection ended.
        """
        if not self._may_retry or self._done:
            return False
        self._may_retry = False
        self.connection = None
        return True

    def end(self, *, delimited: bool) -> None:
        """Tell the receiver that the answer is whole."""
        if not self._done:
            receiver = self._close()
            try:
                if self._answered and self._ear is not None and self._ear.anxious:
                    self._ear.succeeded()
                receiver.on_end(delimited=delimited)
            except Exception as error:  # noqa: BLE001 - whatever a receiver raises ends its attempt as failed
                self.raised(receiver, error)

    def fail(self, kind: FailureKind, detail: str) -> None:
        """Tell the receiver that there will be no whole answer."""
        if not self._done:
            receiver = self._close()
            try:
                if self._ear is not None:
                    self._ear.failed(kind, self._heard_before)
                receiver.on_failed(kind, self.sent, detail)
            except Exception as error:  # noqa: BLE001 - as in `end`
                self.raised(receiver, error)

    def raised(self, receiver: Receiver, error: Exception) -> None:
        """Report what this call's receiver has raised, and let it end what it is for; the caller has closed the connection."""
        if not self._done:
            self._close()
        self._pool.report(error)
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
