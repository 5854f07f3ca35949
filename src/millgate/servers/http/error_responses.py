"""What the door says against requests that never become attempts: unknown paths, bad input, its own overload."""

from collections.abc import Callable, Sequence
from typing import Final

from millgate.core.decisions import Yield
from millgate.core.events import Arrived
from millgate.core.words import Reason
from millgate.dialects import DIALECTS
from millgate.dialects.contract import BadInputError, Dialect
from millgate.http1.client.contract import is_harmless_id
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead
from millgate.runtime.driver import Driver
from millgate.servers.http.entry import Authentication
from millgate.servers.http.paths import takes_permit
from millgate.servers.requests.fields import NO_RETRY
from millgate.servers.requests.reading import dialect_for, kept_reading

_POST: Final = b"POST"
_JSON: Final = (b"content-type", b"application/json")
OWN_LAG_RETRY_S: Final = 1.0
"""When a process that is too slow itself may have caught up."""


class ErrorResponses:
    """Writes each error response in its client's dialect; `rejected` counts requests with something wrong in them.

    `boot` tells this process's ids from another's.
    """

    def __init__(self, boot: bytes) -> None:
        self.rejected = 0
        self._boot = boot
        self._made = 0

    def overloaded(self, head: RequestHead, attempt_id: bytes | None = None) -> RefusedRequest:
        """Refuse for a process that is too slow itself, under the attempt's id, the client's or one of our own."""
        refuser = dialect_for(head).refuser
        refused = refuser.refuse(
            Reason.OVERLOADED_GATE, OWN_LAG_RETRY_S, retry=True, request_id=attempt_id or self._id(head)
        )
        return RefusedRequest(refused.status, refused.headers, refused.body)

    def _id(self, head: RequestHead | None) -> bytes:
        """Return what a request that never becomes an attempt is called."""
        self._made += 1
        given = head.header(b"x-request-id") if head is not None else None
        if given is not None and is_harmless_id(given):
            return given
        return b"%b-bad-%x" % (self._boot, self._made)

    def early(self, head: RequestHead | None, status: int, code: str, message: str) -> RefusedRequest:
        """Refuse before there is an attempt, under the client's id or one of our own."""
        request_id = self._id(head)
        headers = [_JSON, (b"x-request-id", request_id), (b"request-id", request_id)]
        if status < 500 and status != 408:
            headers.append(NO_RETRY)
        dialect = dialect_for(head) if head is not None else DIALECTS["openai"]
        return RefusedRequest(
            status, headers, dialect.complaint(status, code, message, request_id=request_id)
        )

    def wrong_method(self, head: RequestHead, allowed: Sequence[bytes]) -> RefusedRequest:
        """Refuse a method that this path does not take."""
        named = b", ".join(allowed)
        refusal = self.early(head, 405, "method_not_allowed", f"this path takes {named.decode()}")
        return refusal._replace(headers=[*refusal.headers, (b"allow", named)])

    def reject(self, exchange: Exchange, dialect: Dialect, request_id: bytes, error: BadInputError) -> None:
        """Answer bad input."""
        self.rejected += 1
        body = dialect.complaint(error.status, error.code, error.message, error.field, request_id)
        headers = [_JSON, (b"x-request-id", request_id), (b"request-id", request_id), NO_RETRY]
        exchange.respond(error.status, headers, body)


def unheard(*_said: object) -> None:
    """Ignore it: no listener was given."""


class Shedding:
    """Refuses by the head alone for a process that is too slow itself; `count` is how many requests, `boot` begins the ids of attempts.

    It happens when the loop is late, so the core is not asked. What would have been an attempt is shown to observers of
    attempts as one that came and was refused, under the next number.
    """

    def __init__(
        self, driver: Driver, entry: Authentication, error_responses: ErrorResponses, boot: bytes
    ) -> None:
        self._driver = driver
        self._entry = entry
        self._error_responses = error_responses
        self._boot = boot
        self.count = 0
        self.on_shed: Callable[[], None] = unheard
        """Told of each."""
        self.on_named: Callable[[int, bytes | None], None] = unheard
        """Told by which id the client of each attempt calls it."""

    def refuse(self, head: RequestHead, lag_s: float) -> RefusedRequest:
        """Return the refusal of a process that is `lag_s` late; what is no work of a known caller's leaves no record."""
        self.count += 1
        self.on_shed()
        if head.method != _POST or not takes_permit(head.path):
            return self._error_responses.overloaded(head)
        kept = kept_reading(head, self._entry.callers)
        caller = self._entry.caller(head) if kept is None else kept.caller
        if caller is None:
            return self._error_responses.overloaded(head)
        number, given_id = self._driver.next_attempt(), head.header(b"x-request-id")
        if given_id is not None and not is_harmless_id(given_id):
            given_id = None
        announced = head.content_length or 0
        self.on_named(number, given_id)
        self._driver.refuse(
            Arrived(number, caller.tenant, caller.lane, prompt_bytes=announced, body_bytes=announced),
            Yield(number, Reason.OVERLOADED_GATE, OWN_LAG_RETRY_S, retry=True, value=lag_s),
        )
        return self._error_responses.overloaded(head, given_id or b"%b-%x" % (self._boot, number))
