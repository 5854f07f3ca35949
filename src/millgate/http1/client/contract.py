"""The face of the upstream client: one call is one request to one engine and its answer as it arrives.

Everything is synchronous callbacks on the loop's thread. A call ends exactly once: `on_end` after a whole
answer, or `on_failed`; after `Call.abort` neither is called.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from millgate.core.words import FailureKind, Sent
from millgate.http1.client.repeats import Notes
from millgate.http1.wire.fields import Lines

ID_NAMES: Final = frozenset((b"x-request-id", b"request-id"))
"""Header names of a request id: those of OpenAI and of Anthropic."""

# Three underscores in a row begin an address in the ids of vLLM's P2pNcclConnector, which read them there (removed in 2026).
_HARMLESS: Final = re.compile(rb"(?!.*___)[A-Za-z0-9._:/+=@-]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Deadlines and bounds of one engine's connections.

    `kept_idle_s` is below uvicorn's keep-alive of 5 s, which vLLM and SGLang inherit, so that a kept connection
    is rarely found dead. One that ends later than `crossing_s` after a request was written had not been closed before: the
    engine was at work, or a balancer has cut what was silent. `chunk_idle_s` is how long a started answer may be silent, and
    `deserted_idle_s` how long once the engine refuses connections: vLLM 0.32 that is stopped may end its core before
    that has said `abort`, and then keeps its streams open without a word. `informational_answers` is
    how many 1xx heads may precede the answer, `head_bytes` how long all these heads may be together.
    `receive_bytes` is SO_RCVBUF: left to itself Linux takes megabytes in for a client that has stopped reading, and
    the engine generates them, and one read may bring all of it, which then is what a client that does not read holds.
    32 KiB carries 32 MB/s within a data centre, but 0.6 MB/s over a link of 50 ms: enough for any stream of tokens, not
    for megabytes of audio or embeddings. So an answer that is no stream, has grown beyond 64 KiB, and is read as fast
    as it comes gets `wide_receive_bytes`, until its client falls behind.
    """

    connect_s: float = 5.0
    kept_idle_s: float = 4.0
    crossing_s: float = 1.0
    chunk_idle_s: float = 60.0
    deserted_idle_s: float = 5.0
    kept_connections: int = 256
    head_bytes: int = 64 * 1024
    informational_answers: int = 64
    receive_bytes: int = 32 * 1024
    wide_receive_bytes: int = 512 * 1024


class AnswerHead(NamedTuple):
    """The head of an engine's final answer (1xx are skipped); names lower-cased, ready to be passed on.

    Hop-by-hop and Connection-named headers are removed, and `content-length` and `date`, which are written by
    the next responder. `length` is the Content-Length, None for a chunked or close-delimited body. A head that
    repeats on its connection, whatever its length, comes with the same `notes`, the receivers' own.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    length: int | None
    notes: Notes | None = None


class Receiver(Protocol):
    """The reader of one call's answer."""

    def on_head(self, head: AnswerHead) -> None:
        """The final head has arrived."""

    def on_data(self, data: bytes) -> None:
        """Body bytes have arrived, unframed."""

    def on_end(self, *, delimited: bool) -> None:
        """The body is over; `delimited` is False when only the close of the connection said so."""

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """The call has failed: CONNECT, TIMEOUT, BROKEN or PROTOCOL; `sent` is NONE or REQUEST."""

    def on_raised(self) -> None:
        """A callback of this receiver has raised: end what it is for as failed, however far it was; nothing else comes."""


class Ear:
    """A listener to an engine's health, over all its requests: never to its bytes.

    Of good answers it is told nothing while it expects none: `heard` is counted up in passing, whenever the engine has
    said something. So a request at an engine that is well costs it no call. It is no protocol, which compiled code asks
    half as fast.
    """

    heard: int
    anxious: bool
    """Whether the end of a good answer is news."""
    deserted: bool
    """Whether the engine takes no new connections: what is silent then is not waited for long."""

    unreachable: bool
    """Whether nothing answers there: an answer that has not begun is not waited for until its own time is over."""

    def trial(self, receiver: Receiver) -> Receiver:
        """Return the receiver of an answer while the engine is in doubt."""
        raise NotImplementedError

    def tries(self) -> bool:
        """Note that a request goes there while it is in doubt; return whether its first bytes are to decide."""
        raise NotImplementedError

    def undecided(self) -> None:
        """The request that was to decide was refused for what was asked, which shows nothing."""

    def succeeded(self) -> None:
        """A request was answered whole, with a status that complains of nothing."""

    def complained(self, status: int, fault: str = "") -> None:
        """A request was answered with a status that may be the engine's fault, or with another one and this `fault`."""

    def failed(self, kind: FailureKind, heard_before: int, detail: str) -> None:
        """There is no whole answer to a request, `detail` says why; `heard_before` is what `heard` was when it was sent."""


class Call(Protocol):
    """One request under way."""

    @property
    def written(self) -> bool:
        """Whether the whole request has left this process, which then keeps none of it for an answer that has begun."""

    def abort(self) -> None:
        """Close the connection at once: the engine sees the hang-up."""

    def unfit(self) -> None:
        """Count what came with a good status as a failure of the engine, once."""

    def pause(self) -> None:
        """Stop reading the answer until `resume`; the engine is held back by TCP."""

    def resume(self) -> None:
        """Read on."""

    def widen(self) -> None:
        """Let more of the answer be under way: it is long, and its reader keeps up. A pause takes it back."""

    def expire_at(self, at_s: float | None) -> None:
        """Fail with TIMEOUT at this loop time whatever has arrived by then; None takes the deadline away.

        It does not end by itself when the head has come: a first *event* can be dated too.
        """


class Upstream(Protocol):
    """One engine's address and its pool of kept connections."""

    def request(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] | Lines,
        body: bytes,
        receiver: Receiver,
        *,
        may_retry: bool = True,
    ) -> Call:
        """Send one request now.

        `Host`, `Accept-Encoding`, `Content-Length` and `Connection` are the client's to write; the caller passes no
        hop-by-hop header (ValueError), or lines written with `REQUEST_RESERVED`. With `may_retry` a kept connection
        that the engine was just closing is replaced by a fresh one once, while no answer byte has been read. No
        callback comes before this returns.
        """

    def close(self) -> None:
        """Close every kept connection and abort every call."""


def is_harmless_id(given: bytes) -> bool:
    """Return whether a request id from outside is short, and harmless in logs, in headers and to engines."""
    return _HARMLESS.match(given) is not None


def upstream_id(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Return the request id that an engine gave its answer; None without one that is harmless in logs and headers."""
    for name, value in headers:
        if name in ID_NAMES and is_harmless_id(value):
            return value
    return None
