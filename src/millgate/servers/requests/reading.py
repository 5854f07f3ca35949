"""What the door concludes from a request's head: the same for every repeat of the head, so it is concluded once."""

from collections.abc import Mapping
from typing import Final

from millgate.dialects import dialect_of
from millgate.dialects.contract import BadInputError, Dialect, Reader
from millgate.dialects.forms import boundary
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.ticket import HEADER as TICKET
from millgate.http1.client.contract import is_harmless_id
from millgate.http1.server.contract import Exchange, RequestHead
from millgate.http1.wire.fields import REQUEST_RESERVED, HeaderWriter, Lines
from millgate.runtime.callers import Caller, Callers, is_of_agent
from millgate.runtime.verdicts import seconds
from millgate.servers.requests.fields import (
    ENGINE_STEERING,
    STEERING,
    for_engine,
    retry_count,
    with_credential,
    with_id,
    without_credentials,
)
from millgate.servers.requests.routes import EngineRoute

_JSON: Final = b"application/json"
_STEERING_OF_CLIENTS: Final = STEERING | ENGINE_STEERING
_WRITER: Final = HeaderWriter(REQUEST_RESERVED)


class HeadReading:
    """One head as the door understands it; `read` is None for a request that needs no permit.

    `callers` are the rules by which `caller` was found: under other rules nothing here holds. `complaint` is why
    the request cannot be served whatever its body.
    """

    def __init__(self, head: RequestHead, callers: Callers, caller: Caller) -> None:
        named = head.named if head.named is not None else dict(reversed(head.headers))
        given_id = named.get(b"x-request-id")
        self.callers = callers
        self.caller = caller
        self.dialect = dialect_for(head)
        self.read: Reader | None = self.dialect.readers.get(head.path)
        self.conversation: ConversationReader | None = self.dialect.conversations.get(head.path)
        self.given_id = given_id if given_id is not None and is_harmless_id(given_id) else None
        self.retries = retry_count(named.get(b"x-stainless-retry-count"), named.get(b"x-envoy-attempt-count"))
        self.session = callers.session(named, caller.tenant)
        self.of_agent = is_of_agent(named)
        self.trusted = callers.trusts(head.peer)
        steering = STEERING if self.trusted else _STEERING_OF_CLIENTS
        self.steering = sum([name in named for name in steering])
        """How many of its fields would steer another gateway or an engine; none of them goes on."""
        self.ticket = named.get(TICKET)
        self.allowed_s: float | None = None
        self.complaint: BadInputError | None = None
        self._onward: dict[str, tuple[EngineRoute, Lines]] = {}
        if self.read is not None or head.path in self.dialect.forms:
            self._check(head, named)

    def _check(self, head: RequestHead, named: Mapping[bytes, bytes]) -> None:
        try:
            if self.read is not None:
                _check_json(named)
            else:
                read, found = self.dialect.forms[head.path], _boundary(named)
                self.read = lambda body: read(body, found)
            _check_coding(head)
            self.allowed_s = _time_allowed_s(named)
        except BadInputError as error:
            self.complaint = error

    def keep(self, head: RequestHead) -> None:
        """Let repeats of the head find this, if they would be read the same way."""
        named = head.named
        if (
            head.notes is not None
            and named is not None
            and self.complaint is None
            and self.callers.settles(named)
        ):
            head.notes.kept = self

    def onward(self, head: RequestHead, engine: EngineRoute, request_id: bytes) -> Lines:
        """Return the header lines of this request as this engine gets them; `head` is the one read, or a repeat of it."""
        kept = self._onward.get(engine.name)
        if kept is None or kept[0] is not engine:
            fields = for_engine(head.headers, trusted=self.trusted)
            if self.callers.guarded:  # a key of ours
                fields = without_credentials(fields)
            lines = _WRITER.write(with_credential(fields, engine.credential, self.dialect.family))
            self._onward[engine.name] = kept = engine, lines
        return with_id(kept[1], request_id)

    def is_own_key(self, engine: EngineRoute) -> bool:
        """Say whether the key that this engine is asked with is the gate's to answer for: its client's stops here."""
        return engine.credential is not None or self.callers.guarded


class DoorRequest:
    """One request at a door: its exchange, the number and the id of its attempt, what its head said, and its body."""

    def __init__(
        self, exchange: Exchange, number: int, request_id: bytes, reading: HeadReading, body: bytes
    ) -> None:
        self.exchange = exchange
        self.number = number
        self.request_id = request_id
        self.reading = reading
        self.body = body


def kept_reading(head: RequestHead, callers: Callers) -> HeadReading | None:
    """Return what was concluded from this head before, under these same rules."""
    notes = head.notes
    if notes is None:
        return None
    reading: HeadReading | None = notes.kept
    return reading if reading is not None and reading.callers is callers else None


def dialect_for(head: RequestHead) -> Dialect:
    """Return the dialect to answer this request in."""
    return dialect_of(head.path, names_anthropic=head.header(b"anthropic-version") is not None)


def _boundary(named: Mapping[bytes, bytes]) -> bytes:
    found = boundary(named.get(b"content-type", b""))
    if found is None:
        raise _unsupported("content-type must be multipart/form-data with a boundary", "content-type")
    return found


def _check_json(named: Mapping[bytes, bytes]) -> None:
    kind = named.get(b"content-type", b"")
    if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
        raise _unsupported("content-type must be application/json", "content-type")


def _check_coding(head: RequestHead) -> None:
    """Refuse a body that is compressed, whichever of several fields says so."""
    if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in head.headers):
        raise _unsupported("content-encoding is not supported: send the body as it is", "content-encoding")


def _unsupported(message: str, field: str) -> BadInputError:
    return BadInputError(message, field, status=415, code="unsupported_media_type")


def _time_allowed_s(named: Mapping[bytes, bytes]) -> float | None:
    """Return the time that the client says it waits, the shortest if it says so more than once."""
    given = named.get(b"x-millgate-deadline-ms")
    read_timeout, timeout = named.get(b"x-stainless-read-timeout"), named.get(b"x-stainless-timeout")
    if given is None and read_timeout is None and timeout is None:
        return None
    times = []
    if (read_timeout_s := seconds(read_timeout)) is not None:
        times.append(read_timeout_s)
    if (
        timeout_s := seconds(timeout)
    ) is not None:  # the SDKs for JavaScript, Go and Java cut its part of a second off
        times.append(timeout_s + 1.0)
    if given is not None:
        deadline_ms = seconds(given)
        if deadline_ms is None:
            raise BadInputError(
                "x-millgate-deadline-ms: expected a positive number of milliseconds", "x-millgate-deadline-ms"
            )
        times.append(deadline_ms / 1000)
    return min(times, default=None)
