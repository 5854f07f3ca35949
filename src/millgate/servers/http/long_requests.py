"""Requests with long bodies at the door: they become attempts when their bodies have been read elsewhere."""

import asyncio
from typing import Final

from millgate.dialects.contract import BadInputError
from millgate.dialects.far_reading import Question
from millgate.dialects.forms import boundary
from millgate.http1.server.contract import Exchange
from millgate.runtime.long_bodies import LongBodies, Outcome, ReaderLostError, WaitingBody
from millgate.servers.http.contract import HttpDesk
from millgate.servers.requests.ongoing import Ongoing
from millgate.servers.requests.reading import DoorRequest

_JSON: Final = b""
"""The boundary of a body that is no form."""


class LongDesk:
    """Has long bodies read; `ongoing` is the door's list of exchanges, in which each stands meanwhile."""

    def __init__(self, door: HttpDesk, ongoing: dict[Exchange, Ongoing], bodies: LongBodies) -> None:
        self.door = door
        self.ongoing = ongoing
        self._bodies = bodies

    def read(self, request: DoorRequest) -> None:
        """Read its body, and go on with the request in a later turn of the loop."""
        door, body = self.door, request.body
        self.ongoing[request.exchange] = long = LongRequest(self, request)
        seed = door.marker.long_seed(len(door.engines))
        long.waiting = self._bodies.read(_question(request, seed), body, long.on_read)


class LongRequest(Ongoing):
    """One request whose body is being read; its bytes stay booked, and its connection waits for its answer."""

    def __init__(self, desk: LongDesk, request: DoorRequest) -> None:
        self._desk = desk
        self._request = request
        self.waiting: WaitingBody | None = None

    def gone(self) -> None:
        """Read nothing for a client that has left."""
        self._desk.ongoing.pop(self._request.exchange, None)
        if self.waiting is not None:
            self.waiting.gone()

    def on_read(self, outcome: Outcome) -> None:
        """Go on as the door does with a short body; a fault of our own ends the request, not the connection's wait."""
        self._desk.ongoing.pop(self._request.exchange, None)
        if isinstance(outcome, Exception):
            # Raised, it would hold this frame in its traceback, and the frame holds it: a cycle that keeps the body for good.
            self._refuse(outcome)
            return
        try:
            self._desk.door.accept(self._request, outcome)
        except Exception as error:  # noqa: BLE001 - as the server does for `on_request`
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        request = self._request
        if isinstance(error, BadInputError):
            dialect = request.reading.dialect
            self._desk.door.error_responses.reject(request.exchange, dialect, request.request_id, error)
        else:
            self._break_down(error)

    def _break_down(self, error: Exception) -> None:
        """Report it and refuse the request; one whose reader was lost may come again."""
        context = {"message": "a long body could not be read", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        exchange, error_responses = self._request.exchange, self._desk.door.error_responses
        if exchange.started:
            exchange.abort()
        elif isinstance(error, ReaderLostError):
            refusal = error_responses.overloaded(exchange.head, self._request.request_id)
            exchange.respond(refusal.status, refusal.headers, refusal.body)
        else:
            refusal = error_responses.early(
                exchange.head, 500, "internal_error", "the server failed on this request"
            )
            exchange.respond(refusal.status, refusal.headers, refusal.body, close=True)


def _question(request: DoorRequest, mark_seed: int | None) -> Question:
    """Ask for the reader of this path: the one of its JSON, or of its form."""
    head, readers = request.exchange.head, request.reading.dialect.readers
    found = _JSON if head.path in readers else boundary(head.header(b"content-type") or b"")
    return Question(head.path, found or _JSON, len(request.body), mark_seed)
