"""Requests with long bodies at the door: they become attempts when their bodies have been read elsewhere."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from millgate.dialects.contract import BadInputError, Dialect, RequestFacts
from millgate.dialects.far_reading import Question
from millgate.dialects.forms import boundary
from millgate.http1.server.contract import Exchange, RequestHead
from millgate.runtime.long_bodies import LongBodies, Outcome, ReaderLostError, WaitingBody
from millgate.servers.http.contract import HttpDesk, Ongoing
from millgate.servers.requests.reading import HeadReading

_JSON: Final = b""
"""The boundary of a body that is no form."""


class LongDesk:
    """Has long bodies read; `ongoing` is the door's list of exchanges, in which each stands meanwhile."""

    def __init__(self, door: HttpDesk, ongoing: dict[Exchange, Ongoing], bodies: LongBodies) -> None:
        self.door = door
        self.ongoing = ongoing
        self._bodies = bodies

    def read(
        self, exchange: Exchange, number: int, request_id: bytes, reading: HeadReading, body: bytes
    ) -> None:
        """Read this body, and go on with its request in a later turn of the loop."""
        door = self.door
        accept = partial(door.accept, exchange, number, request_id, reading, body=body)
        self.ongoing[exchange] = request = LongRequest(self, exchange, request_id, reading.dialect, accept)
        question = _question(exchange.head, reading, body, door.marker.long_seed(len(door.engines)))
        request.waiting = self._bodies.read(question, body, request.on_read)


class LongRequest:
    """One request whose body is being read; its bytes stay booked, and its connection waits for its answer."""

    __slots__ = ("_accept", "_desk", "_dialect", "_exchange", "_request_id", "waiting")

    def __init__(
        self,
        desk: LongDesk,
        exchange: Exchange,
        request_id: bytes,
        dialect: Dialect,
        accept: Callable[[RequestFacts], None],
    ) -> None:
        self._desk = desk
        self._exchange = exchange
        self._request_id = request_id
        self._dialect = dialect
        self._accept = accept
        self.waiting: WaitingBody | None = None

    def gone(self) -> None:
        """Read nothing for a client that has left."""
        self._desk.ongoing.pop(self._exchange, None)
        if self.waiting is not None:
            self.waiting.gone()

    def slow(self, slow: bool) -> None:
        """Nothing: there is no answer yet."""
        del slow

    def on_read(self, outcome: Outcome) -> None:
        """Go on as the door does with a short body; a fault of our own ends the request, not the connection's wait."""
        self._desk.ongoing.pop(self._exchange, None)
        try:
            self._go_on(outcome)
        except BadInputError as bad_input:
            door = self._desk.door
            door.error_responses.reject(self._exchange, self._dialect, self._request_id, bad_input)
        except Exception as error:  # noqa: BLE001 - as the server does for `on_request`
            self._break_down(error)

    def _go_on(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self._accept(outcome)

    def _break_down(self, error: Exception) -> None:
        """Report it and refuse the request; one whose reader was lost may come again."""
        context = {"message": "a long body could not be read", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        exchange, error_responses = self._exchange, self._desk.door.error_responses
        if exchange.started:
            exchange.abort()
        elif isinstance(error, ReaderLostError):
            refusal = error_responses.overloaded(exchange.head, self._request_id)
            exchange.respond(refusal.status, refusal.headers, refusal.body)
        else:
            refusal = error_responses.early(
                exchange.head, 500, "internal_error", "the server failed on this request"
            )
            exchange.respond(refusal.status, refusal.headers, refusal.body, close=True)


def _question(head: RequestHead, reading: HeadReading, body: bytes, mark_seed: int | None) -> Question:
    """Ask for the reader of this path: the one of its JSON, or of its form."""
    found = _JSON if head.path in reading.dialect.readers else boundary(head.header(b"content-type") or b"")
    return Question(head.path, found or _JSON, len(body), mark_seed)
