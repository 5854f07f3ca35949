"""One client connection: whose turn it is, and when the client has left.

At any time at most one exchange is being answered; what the client sends meanwhile waits unparsed, within a bound,
because pausing the reading would hide a hang-up. How long anything may take is `Deadlines`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from millgate.http1.client.contract import ID_NAMES
from millgate.http1.client.sweep import Sweep
from millgate.http1.server.backlog import Backlog
from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.contract import Application, RefusedRequest, RequestHead, ServerLimits
from millgate.http1.server.deadlines import ConnectionDeadlines, TimeoutVerdict
from millgate.http1.server.exchange import ExchangeConnection, HttpExchange
from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.intake import BODY, IDLE, EarlyRefusalError, Intake
from millgate.http1.server.wire import CONTINUE, ResponseHeads, Wire
from millgate.http1.wire.outbox import Outbox
from millgate.sockets.descriptors import Descriptors, DoorClients

OPEN: Final = 0
DEAF: Final = 1
LINGERING: Final = 2
CLOSING: Final = 3

_TURNS: Final = 32
"""How many pipelined requests are served before other connections get their turn."""


class OpenConnections:
    """The connections of a server, and what they ask of it. Compiled, a class is asked twice as fast as a protocol.

    `retiring` makes every answer the last of its connection; `draining` refuses bodies that are announced, too.
    """

    def __init__(
        self,
        application: Application,
        limits: ServerLimits,
        budget: ByteBudget,
        tenant_of: Callable[[RequestHead], str] | None,
        descriptors: Descriptors,
        *,
        makes_room: bool,
    ) -> None:
        self.application = application
        self.limits = limits
        self.budget = budget
        self._clients = DoorClients(descriptors, limits.connections)
        self._tenant_of = tenant_of
        self._makes_room = makes_room
        self.heads = ResponseHeads()
        self.sweep = Sweep(self._check, self._forgive)
        self.draining = self.retiring = False
        self.refused_connections = 0
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(self._loop.call_soon)
        self._connections: dict[Connection, None] = {}
        self._full_answer = b""
        self._emptied: asyncio.Future[None] | None = None

    def soon(self, callback: Callable[..., Any]) -> object:
        """Call back in the next iteration of the loop."""
        return self._loop.call_soon(callback)

    def share_of(self, head: RequestHead) -> Share:
        """Return where the body behind this head is booked."""
        tenant = "" if self._tenant_of is None else self._tenant_of(head)
        return self.budget.share(tenant, head.peer)

    def admit(self, connection: "Connection") -> bool:
        """Take a new connection in; return whether it is within the cap."""
        self._clients.enter(connection)
        if self._makes_room and self._clients.overdrawn:
            self._cut_oldest()
        self._connections[connection] = None
        if self._clients.overdrawn:
            self.refused_connections += 1
            return False
        return True

    def _cut_oldest(self) -> None:
        """Cut the oldest connection whose client is waited for, if there is one."""
        oldest = next((each for each in self._connections if not each.is_busy), None)
        if oldest is not None:
            self._clients.leave(oldest)
            oldest.abort()

    def full_answer(self) -> bytes:
        """Return the prebuilt 503 for connections over the cap."""
        if not self._full_answer:
            refusal = self.application.bad_request(503, "overloaded", "too many connections; try again soon")
            self._full_answer = (
                self.heads.sized(refusal.status, refusal.headers, len(refusal.body), True) + refusal.body
            )
        return self._full_answer

    @property
    def crowded(self) -> bool:
        """Whether even lingering refusals are too many."""
        return self._clients.crowded

    def forget(self, connection: "Connection") -> None:
        """Drop a connection that is closed."""
        self._connections.pop(connection, None)
        self._clients.leave(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def refusal(self, error: Exception, head: RequestHead | None = None) -> RefusedRequest:
        """Dress what has gone wrong with a request; report what is the application's own fault."""
        if isinstance(error, EarlyRefusalError):
            return error.refusal
        if not isinstance(error, UnacceptableError):
            self._loop.call_exception_handler(
                {"message": "the application failed on a request", "exception": error}
            )
            error = UnacceptableError(500, "internal_error", "the server failed on this request")
        return self.application.bad_request(error.status, error.code, error.message, head)

    # ---- deadlines

    def _check(self, now: float) -> None:
        self.heads.refresh()
        self._full_answer = b""  # it carries the date
        late = [connection for connection in self._connections if connection.deadlines.until <= now]
        for connection in late:
            try:
                connection.on_deadline(now)
            except Exception:
                connection.abort()  # it would be late again at every look, and those behind it never looked at
                raise

    def _forgive(self, lost_s: float) -> None:
        for connection in self._connections:
            connection.deadlines.forgive(lost_s)


# Transports call it by its methods; a compiled class that inherits from an interpreted one loses its fixed fields.
class Connection(ExchangeConnection):
    """Serves one client, as an `asyncio.Protocol` without inheriting from it."""

    def __init__(self, server: OpenConnections) -> None:
        self._server = server
        self._intake = Intake(server.application, server.limits, server.share_of)
        self._exchange: HttpExchange | None = None
        self._backlog = Backlog(server.limits)
        self._state = OPEN
        self._slow = False
        self._advancing = self._is_in_body = False
        self.wire = Wire(server.outbox)
        self.deadlines = ConnectionDeadlines(server.sweep, server.limits, self.wire)
        self.heads = server.heads
        self.soon: Callable[[Callable[..., Any]], object] = server.soon

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, or refuse a connection beyond the cap with a prebuilt answer."""
        self._intake.peer = self.wire.attach(cast("asyncio.Transport", transport), self._server.limits)
        if not self._server.admit(self):
            self._linger(self._server.full_answer())
            if self._server.crowded:
                self.abort()

    def data_received(self, data: bytes) -> None:
        """Parse, or keep while an exchange is being answered, or drop."""
        if self._state != OPEN:
            self._drop(len(data))
        elif self._exchange is not None or self._slow or self._backlog.held:
            self._hold(data)
        else:
            self._read(data)

    def eof_received(self) -> None:
        """Take a half-close as a hang-up, as HAProxy does for queued requests: the client may read on or not."""
        if self._exchange is not None:
            try:
                self._lose(self._exchange)
            finally:
                self.abort()
        else:
            self.wire.flush()
            self._state = CLOSING  # the transport closes when what is written has left
            self.deadlines.writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End what was under way; whatever the application makes of that, the connection's bytes and place are given back."""
        self._state = CLOSING
        self.wire.detach()
        self._backlog.clear()
        self._intake.release()
        self._server.forget(self)
        if self._exchange is not None:
            self._lose(self._exchange)

    def pause_writing(self) -> None:
        """Note a client that has fallen behind, and date its deadlines."""
        self._slow = True
        self.deadlines.writing()
        self._tell_slow()

    def resume_writing(self) -> None:
        """Note a client that has caught up."""
        self._slow = False
        if self._exchange is not None:
            self.deadlines.unlimited()
        elif self._state < LINGERING:
            self.deadlines.reading(self._intake.phase)
        elif self._state == LINGERING:
            self.deadlines.parting()
        self._tell_slow()
        self._advance()

    # ---- the exchange's side

    def closing_after(self, exchange: HttpExchange) -> bool:
        """Tell whether this exchange's answer is the connection's last."""
        return not exchange.keep_alive or self._server.retiring or self._state != OPEN

    def answered(self, exchange: HttpExchange, close: bool) -> None:
        """Go on after a whole answer, or close."""
        self._let_go(exchange)
        if close:
            self._close()
            return
        if not self._slow:
            self.deadlines.reading(self._intake.phase)
        if self._backlog.held:
            self._advance()

    def cut(self, exchange: HttpExchange, last: bytes, *, framed: bool) -> None:
        """Break off an answer: a framed one shows it by its missing end and is flushed, another needs a reset."""
        self._let_go(exchange)
        self.wire.flush()
        if not self.wire.attached:
            return
        if framed and not self._slow:
            self.wire.send(last)
            self._close()
            self.deadlines.parting()
        elif exchange.started and not framed:
            self._state = CLOSING
            self.wire.reset()
        else:
            self.abort()

    def release(self, exchange: HttpExchange) -> None:
        """Give back what this exchange's body has reserved; again is harmless."""
        exchange.share.release(exchange.reserved_bytes)
        exchange.reserved_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being made, or has yet to leave; else its client is waited for."""
        return self._exchange is not None or self._slow or self._state == CLOSING

    def close_idle(self) -> None:
        """Close the connection if it waits for its next request."""
        if self._state == OPEN and self._intake.phase == IDLE and not self.is_busy:
            self._close()

    def abort(self) -> None:
        """Cut the connection at once."""
        self._state = CLOSING
        self.wire.abort()

    def on_deadline(self, now: float) -> None:
        """Act on a deadline that has passed."""
        verdict = self.deadlines.judge(now, self._intake.wire_bytes)
        if verdict is TimeoutVerdict.REFUSE:
            self._refuse(self.deadlines.complaint(), in_time=False)
        elif verdict is not TimeoutVerdict.WAIT:
            (self._close if verdict is TimeoutVerdict.CLOSE else self.abort)()

    # ---- within

    def _read(self, data: bytes) -> None:
        """Serve the requests in these bytes until one takes its time; hold the rest."""
        begin, size_bytes, turns = 0, len(data), _TURNS
        self._advancing = True
        while begin < size_bytes:
            if self._state != OPEN:
                self._drop(size_bytes - begin)
                break
            if self._exchange is not None or self._slow or not turns:
                self._hold(data[begin:])
                break
            begin = self._read_one(data, begin)
            turns -= 1
        self._advancing = False
        if not turns or self._state == DEAF:
            self.soon(self._advance)

    def _read_one(self, data: bytes, begin: int) -> int:
        """Read to the end of one request or of the data, and serve the request if it is whole."""
        intake = self._intake
        try:
            begin = intake.feed(data, begin)
        except Exception as error:  # noqa: BLE001  # the client's fault, an early refusal, or a fault in on_head
            self._refuse(error)
            return len(data)
        if intake.whole:
            self._serve(intake)
            return begin
        if intake.fragmented:
            self.wire.rest(self.soon)
        if intake.expects:
            intake.expects = False
            if self._server.draining:
                self._refuse(UnacceptableError(503, "draining", "the server is shutting down"))
                return len(data)
            self.wire.send(CONTINUE)
        if intake.phase not in {IDLE, self.deadlines.phase}:
            self.deadlines.reading(intake.phase)
        return begin

    def _serve(self, intake: Intake) -> None:
        self._exchange = exchange = HttpExchange(self, intake)
        body, refusal = intake.body, intake.refusal
        intake.next()
        self.deadlines.unlimited()
        if refusal is not None:
            exchange.respond(refusal.status, refusal.headers, refusal.body)
            return
        try:
            self._server.application.on_request(exchange, body)
        except Exception as error:  # noqa: BLE001  # a fault of the application, whatever it is
            exchange.break_down(self._server.refusal(error, exchange.head))

    def _advance(self) -> None:
        """Read on in what was held, once the turn has come; close when too much came to be held."""
        if self._advancing or self.is_busy:
            return
        if self._state == OPEN:
            self._read(self._backlog.take())
        elif self._state == DEAF:
            self._close()

    def _hold(self, data: bytes) -> None:
        """Keep pipelined bytes; a client that sends more than the bound gets its answer and no other."""
        if not self._backlog.hold(data):
            self._state = DEAF
            self._drop(len(data))

    def _let_go(self, exchange: HttpExchange) -> None:
        self._exchange = None
        self.release(exchange)

    def _lose(self, exchange: HttpExchange) -> None:
        self._let_go(exchange)
        exchange.gone = True
        self._server.application.on_gone(exchange)

    def _tell_slow(self) -> None:
        if self._exchange is not None and self._exchange.started:
            self._server.application.on_slow(self._exchange, self._slow)

    def _refuse(self, error: Exception, *, in_time: bool = True) -> None:
        self._is_in_body = in_time and self._intake.phase == BODY
        self._linger(self.heads.last(self._server.refusal(error, _known_head(self._intake))))

    def _linger(self, answer: bytes) -> None:
        """Send a last answer, half-close, and drop what still comes: a reset would destroy the answer."""
        self._state = LINGERING
        self._backlog.clear()
        self._intake.release()
        self.wire.send(answer)
        self.wire.half_close()
        (self.deadlines.writing if self._slow else self.deadlines.parting)()

    def _drop(self, size_bytes: int) -> None:
        """Drop input; past the bound leave a lingering client's in the kernel, so that it can still read."""
        self._backlog.drop(size_bytes)
        if self._state == LINGERING:
            _linger_on(self, self._backlog, in_body=self._is_in_body and not self._slow)
        elif self._state == DEAF and self._backlog.flooded:
            self.abort()

    def _close(self) -> None:
        """Close when all that is written has left; with unread input dropped, linger instead."""
        if not self.wire.attached:
            return
        if self._backlog.held or self._state == DEAF:
            self._linger(b"")
        else:
            self._state = CLOSING
            self.deadlines.writing()
            self.wire.close()


def _linger_on(connection: Connection, backlog: Backlog, *, in_body: bool) -> None:
    """Go on dropping what comes after the last answer, longer `in_body`: many clients read nothing before they have sent all of it."""
    if backlog.lingered(in_body=in_body):
        connection.wire.deafen()
    elif in_body:
        connection.wire.rest(connection.soon)
        connection.deadlines.dropping()


def _known_head(intake: Intake) -> RequestHead | None:
    """Return the head of the request that goes wrong, or the one before it, which says who the client is, without its id."""
    head: RequestHead | None = getattr(intake, "head", None)
    if head is None or intake.phase == BODY:
        return head
    named = {name: value for name, value in (head.named or {}).items() if name not in ID_NAMES}
    return head._replace(headers=(), named=named)
