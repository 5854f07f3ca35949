"""What the door refuses because this process itself is too slow: quick to say, and still on the record.

It happens when the loop is late, so the core is not asked. What would have been an attempt is shown to observers of
attempts as one that came and was refused, under the next number.
"""

from collections.abc import Callable
from typing import Final

from millgate.core.decisions import Yield
from millgate.core.events import Arrived
from millgate.core.words import Reason
from millgate.http1.client.request_ids import is_harmless_id
from millgate.http1.server.contract import RefusedRequest, RequestHead
from millgate.runtime.driver import Driver
from millgate.servers.http.entry import Authentication
from millgate.servers.http.error_responses import OWN_LAG_RETRY_S, ErrorResponses
from millgate.servers.http.paths import takes_permit
from millgate.servers.requests.reading import kept_reading

_POST: Final = b"POST"


def unheard(*_said: object) -> None:
    """Ignore it: no listener was given."""


class Shedding:
    """Refuses by the head alone; `count` is how many requests, `boot` begins the ids of attempts."""

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
