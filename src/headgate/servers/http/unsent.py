"""Answers of a request that its engine may never get: then the client is told nothing yet.

A connection that is not made leaves everything open: another engine may be tried. So these two hand that one failure
to their owner and tell the client of every other one themselves, like the answers that they are.
"""

from typing import Protocol

from headgate.core.words import FailureKind, Sent
from headgate.servers.http.answers import WholeAnswer
from headgate.servers.http.contract import Owner
from headgate.servers.http.streams import StreamAnswer


class MayTryAgain(Owner, Protocol):
    """Whose answer it is, who may have another engine for it."""

    def unsent(self, kind: FailureKind) -> None:
        """The engine has had nothing of the request, and the client has not been told."""


class FirstWhole(WholeAnswer):
    """Receives an answer in one piece."""

    __slots__ = ("_asker",)

    def __init__(self, owner: MayTryAgain) -> None:
        super().__init__(owner)
        self._asker = owner

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Hand on what was never sent."""
        if sent is Sent.NONE:
            self._asker.unsent(kind)
        else:
            super().on_failed(kind, sent, detail)


class FirstStream(StreamAnswer):
    """Receives a stream."""

    __slots__ = ("_asker",)

    def __init__(self, owner: MayTryAgain, *, strip_usage: bool) -> None:
        super().__init__(owner, strip_usage=strip_usage)
        self._asker = owner

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Hand on what was never sent."""
        if sent is Sent.NONE:
            self._asker.unsent(kind)
        else:
            super().on_failed(kind, sent, detail)
