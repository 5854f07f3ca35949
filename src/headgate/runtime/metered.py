"""Reads what a provider says of its limits in the headers of every answer, and posts it; passes everything on."""

from collections.abc import Callable, Sequence
from time import time

from headgate.core.events import QuotaSeen
from headgate.core.words import FailureKind, Sent
from headgate.dialects.quota_headers import read_quota_headers
from headgate.runtime.driver import Driver
from headgate.runtime.upstream import AnswerHead, Call, Receiver, Upstream
from headgate.runtime.upstream.fields import Lines


class MeteredUpstream:
    """An upstream whose answers tell how much of an account is left."""

    def __init__(self, upstream: Upstream, engine: str, driver: Driver) -> None:
        self._upstream = upstream
        self._engine = engine
        self._driver = driver

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
        listening = _Listener(receiver, self._read)
        return self._upstream.request(
            method, target, headers, body, listening, head_by=head_by, may_retry=may_retry
        )

    def _read(self, head: AnswerHead) -> None:
        reading = read_quota_headers(head.headers, time())
        if reading:
            self._driver.post(QuotaSeen(self._engine, reading))

    def close(self) -> None:
        """Close the upstream."""
        self._upstream.close()


class _Listener:
    """Hands everything on, and the head to the meter as well."""

    __slots__ = ("_read", "_receiver", "on_data", "on_end")

    def __init__(self, receiver: Receiver, read: Callable[[AnswerHead], None]) -> None:
        self._receiver = receiver
        self._read = read
        # Chunks pass without a call in between.
        self.on_data = receiver.on_data
        self.on_end = receiver.on_end

    def on_head(self, head: AnswerHead) -> None:
        """Read the head first: what it says holds for whoever is asked about next."""
        self._read(head)
        self._receiver.on_head(head)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Hand it on."""
        self._receiver.on_failed(kind, sent, detail)
