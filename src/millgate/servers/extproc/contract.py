"""What the pieces of the external processor ask of each other."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from millgate.core.words import FailureKind
from millgate.dialects.contract import Dialect, Usage
from millgate.http1.server.budget import Share
from millgate.http1.server.contract import Application, Exchange, RequestHead
from millgate.runtime.driver import Driver
from millgate.runtime.prefix_marker import PrefixMarker
from millgate.runtime.verdicts import Said
from millgate.servers.extproc.running import RunningRequests
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.tickets import TicketDesk


class Outlet(Protocol):
    """The way back to Envoy on one stream; nothing here waits."""

    def send(self, response: ProcessingResponse) -> None:
        """Send a message after those before it."""

    def close(self) -> None:
        """End the stream when all is sent: Envoy goes on without us."""

    def fail(self, why: str) -> None:
        """End the stream with INVALID_ARGUMENT: what came is no conversation of Envoy's."""


class Destination(NamedTuple):
    """Where Envoy finds an engine: `IP:port`, the path before `/v1`, and the credential that replaces the client's."""

    address: str
    base_path: bytes = b""
    credential: bytes | None = None
    on_hangup: Callable[[], None] | None = None


class Watcher(Protocol):
    """Whose answer passes by, told how it goes; after `whole`, `failed` or `left` nothing follows."""

    dialect: Dialect
    extra: Pairs
    """Headers of our own for the answer."""

    def first_token(self, ago_s: float = 0.0) -> None:
        """The first content came so long ago."""

    def whole(self, usage: Usage) -> None:
        """The client has the whole answer."""

    def failed(self, kind: FailureKind, said: Said) -> None:
        """There is no whole answer; Envoy or the engine has told the client."""

    def left(self) -> None:
        """The client has left."""


class ProcessDesk(Protocol):
    """What a call asks of its server."""

    @property
    def application(self) -> Application:
        """What answers requests."""

    ask_by_head: Callable[[Exchange], None]
    """Answers a request by its head, now or later."""

    @property
    def body_bytes(self) -> int:
        """The longest body."""

    def share_of(self, head: RequestHead) -> Share:
        """Return where the bytes of this request's body are booked."""

    def arrange(self, head: RequestHead) -> RequestHead:
        """Return the head with what the Inference Extension's headers say in our own."""

    def engine_of(self, subset: tuple[str, ...]) -> str | None:
        """Return the engine to which a request is confined that may go to these endpoints alone, empty for any.

        None where there is no such engine.
        """


class AskingDoor(Protocol):
    """What an attempt asks of the door that has read it."""

    driver: Driver
    tickets: TicketDesk
    secret: bytes
    marker: PrefixMarker

    @property
    def boot(self) -> str:
        """What the names of its attempts begin with."""

    def forget(self, exchange: Exchange) -> None:
        """Drop an exchange that is over."""


class AttemptDesk(Protocol):
    """What an attempt asks of the server that it came through."""

    destinations: Mapping[str, Destination]
    running: RunningRequests

    @property
    def lease_s(self) -> float:
        """How long a request may be silent past the time of its first event."""

    def fields_of(
        self, head: RequestHead, reading: HeadReading, destination: Destination
    ) -> tuple[Pairs, list[str]]:
        """Return what is set on a request for this engine, and which of its headers stay here."""
