"""One stream of Envoy's, which is one request: its messages become a head and a body, and our decision its answers."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from envoy.service.ext_proc.v3.external_processor_pb2 import HttpBody, ProcessingRequest

from millgate.core.words import FailureKind
from millgate.dialects.contract import Dialect, Usage
from millgate.dialects.openai import OPENAI
from millgate.dialects.refusals import RefusalAnswer
from millgate.http1.client import AnswerHead
from millgate.http1.server.budget import Share
from millgate.http1.server.contract import Application, Exchange, Headers, RefusedRequest, RequestHead
from millgate.http1.wire.fields import Lines
from millgate.runtime.verdicts import Said
from millgate.servers.extproc import messages
from millgate.servers.extproc.extension import DROPPED_REASON, dropped_reason, subset_of
from millgate.servers.extproc.messages import (
    BUFFERED,
    BY_HEAD,
    FULL_DUPLEX,
    NO_BODY,
    STREAMED,
    Forward,
    Modes,
)
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.judgement import AnswerJudge
from millgate.servers.requests.routes import EngineRoute


class Outlet(Protocol):
    """The way back to Envoy on one stream; nothing here waits."""

    def send(self, response: bytes) -> None:
        """Send a message (`messages`) after those before it."""

    def close(self) -> None:
        """End the stream when all is sent: Envoy goes on without us."""

    def fail(self, why: str) -> None:
        """End the stream with INVALID_ARGUMENT: what came is no conversation of Envoy's."""


class Destination(NamedTuple):
    """Where Envoy finds an engine, `IP:port`, and what else is known of the way there."""

    address: str
    route: EngineRoute


class Watcher(Protocol):
    """Whose answer passes by, told how it goes; after `whole`, `failed` or `left` nothing follows."""

    dialect: Dialect
    extra: Pairs
    """Headers of our own for the answer."""

    @property
    def key_refusal(self) -> RefusalAnswer | None:
        """What the client is told where the engine refuses our own key; None where it gets the client's."""

    def first_token(self, ago_s: float = 0.0) -> None:
        """The first content came so long ago."""

    def whole(self, usage: Usage) -> None:
        """The client has the whole answer."""

    def failed(self, kind: FailureKind, said: Said, status: int | None) -> None:
        """There is no whole answer; Envoy or the engine has told the client, the engine with this `status` (as of `FailedAnswer`)."""

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


_READ_BYTES: Final = 64 * 1024
"""So many are judged at once, as they come from a socket: Envoy may send more of them together."""


_UNAUTHORIZED: Final = 401


class AnswerWatch:
    """Echoes one answer to Envoy and tells its watcher how it went: its first token, its usage and its end.

    Only where Envoy's processing mode sends answers; in the mode that `millgate extproc envoy-config` prints it does not,
    and the access log tells (`running`).

    `mode` is how Envoy sends its body; None where Envoy has not said, and the head of an answer will tell that it does.
    """

    def __init__(self, outlet: Outlet, watcher: Watcher | None, mode: int | None) -> None:
        self._outlet = outlet
        self._watcher = watcher
        self._mode = mode
        self._sees = mode is not None and mode != messages.NO_BODY
        self._judge = AnswerJudge(OPENAI if watcher is None else watcher.dialect)
        self._heard, self._replaced, self._status = False, False, 0

    def feed(self, kind: str | None, message: ProcessingRequest) -> None:
        """Take one message about the answer."""
        if self._replaced:
            return
        if kind == "response_headers":
            self._take_head(message)
        elif kind == "response_body":
            body = message.response_body
            is_duplex = self._mode is None or self._mode == messages.FULL_DUPLEX
            self._outlet.send(messages.answer_body(body.body, ends=body.end_of_stream, is_duplex=is_duplex))
            self._take(body.body)
            if body.end_of_stream or self._mode == messages.BUFFERED:  # it is whole, whatever follows
                self._end()
        elif kind == "response_trailers":
            self._outlet.send(messages.ANSWER_TRAILERS)
            self._end()
        else:
            self._outlet.fail("a message of no known kind")

    def closed(self) -> None:
        """The stream has ended: where the answer passes by and has not ended, its client has left or its engine is gone."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and self._sees:
            watcher.left()

    def _take_head(self, message: ProcessingRequest) -> None:
        fields = messages.read_fields(message.response_headers)
        watcher, status = self._watcher, messages.read_status(fields)
        self._status = status
        self._judge.take_head(AnswerHead(status, fields, None))
        if status == _UNAUTHORIZED and watcher is not None and (told := watcher.key_refusal) is not None:
            self._replaced = True
            self._end()
            self._outlet.send(messages.refusal(told.status, told.headers, told.body))
            self._outlet.close()
            return
        self._outlet.send(messages.answer_head(watcher.extra if watcher is not None else ()))
        self._sees = self._mode != messages.NO_BODY
        if message.response_headers.end_of_stream:
            self._end()

    def _take(self, data: bytes) -> None:
        for begin in range(0, len(data), _READ_BYTES):
            self._judge.take(data[begin : begin + _READ_BYTES])
        if self._judge.events and not self._heard and self._watcher is not None:
            self._heard = True
            self._watcher.first_token()
        self._settle()

    def _end(self) -> None:
        self._judge.end()
        self._settle()

    def _settle(self) -> None:
        """Tell what the judge says, once the answer is over: many clients leave on the event that ends it."""
        judge, watcher = self._judge, self._watcher
        if watcher is None or not judge.is_over:
            return
        self._watcher = None
        if judge.failure is None:
            watcher.whole(judge.usage)
        else:
            watcher.failed(judge.failure, judge.said, self._status)


MOST_OWN_ANSWER_BYTES: Final = 3_000_000
"""Most of an answer that we fetch ourselves, such as the list of models: a message to Envoy holds 4 MB."""
_NOT_OURS: Final = "no engine is among the endpoints that may be chosen"
_NO_ROOM: Final = "too many request bodies are being held; try again soon"
_TOO_LONG: Final = "the body is limited to {} bytes"
_UNREADABLE_MODE: Final = (
    "the external processor cannot work in this request_body_mode: use FULL_DUPLEX_STREAMED"
)


class EnvoyExchange:
    """One request and its one answer, which is ours (`respond`) or an engine's, by way of Envoy (`forward`)."""

    def __init__(self, call: "ProcessCall", head: RequestHead) -> None:
        self._call = call
        self.head = head
        self.gone = False
        self.started = False
        self.confined_to: str | None = None
        """The one engine that this request may go to; None for any."""
        self._respond: tuple[int, Headers | Lines] = (0, ())
        self._extra = Lines(b"")
        self._own = bytearray()

    def adorn(self, lines: Lines) -> None:
        """Have these lines in the head of an answer of ours; an engine's goes by unseen."""
        self._extra = lines

    def respond(self, status: int, headers: Headers | Lines, body: bytes, *, close: bool = False) -> None:
        """Answer instead of an engine."""
        del close  # the client's connection is Envoy's
        pairs = [*messages.pairs_of(headers), *messages.pairs_of(self._extra)]
        if (reason := dropped_reason(pairs)) is not None:
            pairs.append((DROPPED_REASON, reason))
        self._call.answer(messages.refusal(status, pairs, body))

    def start(self, status: int, headers: Headers | Lines, *, length: int | None = None) -> None:
        """Begin an answer that is sent when it is whole."""
        del length
        self.started = True
        self._respond = status, headers

    def write(self, data: bytes) -> None:
        """Keep a piece of it."""
        self._own += data
        if len(self._own) > MOST_OWN_ANSWER_BYTES:
            self.abort()

    def finish(self) -> None:
        """Send it."""
        self.respond(*self._respond, bytes(self._own))

    def abort(self) -> None:
        """Answer with a failure: of an answer that breaks off the client sees nothing."""
        self._own.clear()
        refused = self._call.complain(502, "upstream_broken", "the engine's answer broke off")
        self.respond(*refused)

    def release_body(self) -> None:
        """Give the body's bytes back to the budget."""
        self._call.release()

    def forward(self, forward: Forward, body: bytes, watcher: Watcher, *, is_changed: bool) -> None:
        """Let Envoy send the request to an engine; `watcher` hears of the answer what passes by here."""
        self._call.forward(forward, body, watcher, is_changed=is_changed)

    @property
    def sees_answer(self) -> bool:
        """Whether the body of the answer passes by here, so that its first token is seen when it comes."""
        return self._call.sees_answer is not False


class ProcessCall:
    """Reads one stream; `feed` takes its messages in order, `closed` its end.

    Until it is answered a request is held: then the end of the stream says that the client has left. Afterwards it
    says so only where the answer passes by, because Envoy closes streams that have nothing more to tell.
    """

    def __init__(self, desk: ProcessDesk, outlet: Outlet, peer: str) -> None:
        self._desk = desk
        self._outlet = outlet
        self._peer = peer
        self._modes = Modes()
        self._exchange: EnvoyExchange | None = None
        self._share: Share | None = None
        self._reserved_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._unanswered = 0
        self._has_trailers = False
        self._head_only = False
        self._asked = False
        self._answered = False
        self._subset: tuple[str, ...] | None = None
        self._watch: AnswerWatch | None = None

    def feed(self, message: ProcessingRequest) -> None:
        """Take one message."""
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            self._subset = subset_of(message)
            self._take_head(message)
        elif kind == "request_body":
            self._take_body(message.request_body)
        elif kind == "request_trailers":
            self._take_trailers()
        elif self._watch is not None:
            self._watch.feed(kind, message)
        elif self._exchange is None or self._answered:
            self._outlet.fail("an answer before its request")
        else:  # Envoy's own, such as to a request that has waited too long for it
            self._leave()
            self._watch = AnswerWatch(self._outlet, None, self._modes.answer)
            self._watch.feed(kind, message)

    def closed(self) -> None:
        """The stream is over: Envoy has closed or reset it, or is gone."""
        self._leave()
        if self._watch is not None:
            self._watch.closed()

    def _leave(self) -> None:
        if self._exchange is not None:
            self._exchange.gone = True
            if self._asked and not self._answered:
                self._desk.application.on_gone(self._exchange)
        self._answered = True
        self.release()

    @property
    def sees_answer(self) -> bool | None:
        """Whether the body of the answer passes by here; None where Envoy has not said."""
        return None if self._modes.answer is None else self._modes.answer != NO_BODY

    # ---- the request

    def _take_head(self, message: ProcessingRequest) -> None:
        head = messages.read_head(messages.read_fields(message.request_headers), self._peer)
        if self._exchange is not None or head is None:
            self._outlet.fail("a stream is one request, which has one head with a method and a path")
            return
        self._modes = messages.modes_of(message)
        desk = self._desk
        head = desk.arrange(head)
        self._exchange = EnvoyExchange(self, head)
        self._head_only = message.request_headers.end_of_stream
        if (refused := self._refusal(head)) is not None:
            self._refuse(refused)
        elif self._head_only:
            self._ask(self._with_body)
        elif self._modes.request == BUFFERED:
            self._outlet.send(messages.UNCHANGED_HEAD)
        elif not self._modes.early and self._modes.request in BY_HEAD:
            self._ask(self._desk.ask_by_head)
        elif not self._modes.early:
            self._refuse(self.complain(500, "unsupported_mode", _UNREADABLE_MODE))

    def _refusal(self, head: RequestHead) -> RefusedRequest | None:
        """Refuse by the head alone."""
        refused = self._desk.application.on_head(head)
        if refused is None:
            self._share = self._desk.share_of(head)
        is_too_long = refused is None and (head.content_length or 0) > self._most_bytes
        return self._too_long() if is_too_long else refused

    def _take_body(self, body: HttpBody) -> None:
        if self._exchange is None:
            self._outlet.fail("a body before its head")
            return
        if self._answered or self._asked:
            if self._watch is not None and self._modes.request == STREAMED:
                self._outlet.send(messages.UNCHANGED_BODY)
            return  # else it was on its way when the answer was
        part = body.body
        self._unanswered += 1
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._most_bytes:
            self._refuse(self._too_long())
        elif self._share is not None and not self._share.reserve(len(part)):
            self._refuse(self.complain(503, "overloaded", _NO_ROOM))
        else:
            self._reserved_bytes += len(part)
            # What Envoy has buffered is the whole body, but its end only where no trailers follow.
            if body.end_of_stream or self._modes.request == BUFFERED:
                self._ask(self._with_body)

    def _take_trailers(self) -> None:
        if self._exchange is None or self._head_only:
            self._outlet.fail("trailers without a body")
        elif self._answered:
            self._outlet.send(messages.UNCHANGED_TRAILERS)
        else:
            self._has_trailers = True
            if not self._asked:
                self._ask(self._with_body)

    def _with_body(self, exchange: EnvoyExchange) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._desk.application.on_request(exchange, body)

    def _ask(self, ask: Callable[[EnvoyExchange], None]) -> None:
        """Hand the request to the application; a fault of our own is an answer, not a silence."""
        assert self._exchange is not None
        self._asked = True
        try:
            if self._is_confined(self._exchange):
                ask(self._exchange)
        except Exception:
            if not self._answered:
                self._refuse(self.complain(500, "internal_error", "the server failed on this request"))
            raise

    def _is_confined(self, exchange: EnvoyExchange) -> bool:
        """Confine the request to the endpoints that Envoy names; refuse it where none of them is ours."""
        if self._subset is None:
            return True
        engine = self._desk.engine_of(self._subset)
        if engine is None:
            self._refuse(self.complain(503, "no_healthy_upstream", _NOT_OURS))
            return False
        exchange.confined_to = engine or None
        return True

    def complain(self, status: int, code: str, message: str) -> RefusedRequest:
        """Write a complaint in the client's dialect."""
        head = None if self._exchange is None else self._exchange.head
        return self._desk.application.bad_request(status, code, message, head)

    @property
    def _most_bytes(self) -> int:
        """The longest body that may come: of a longer one no repeat is of use."""
        most_bytes = self._desk.body_bytes
        return most_bytes if self._share is None else min(most_bytes, self._share.most_bytes)

    def _too_long(self) -> RefusedRequest:
        return self.complain(413, "request_too_large", _TOO_LONG.format(self._most_bytes))

    def _refuse(self, refused: RefusedRequest) -> None:
        self.answer(messages.refusal(refused.status, refused.headers, refused.body))

    # ---- the answer

    def answer(self, response: bytes) -> None:
        """Say no, or answer ourselves; nothing follows."""
        if self._answered:
            return
        self._answered = True
        self._parts.clear()
        self._outlet.send(response)
        self._outlet.close()
        self.release()

    def forward(self, forward: Forward, body: bytes, watcher: Watcher, *, is_changed: bool) -> None:
        """Let the request go on to its engine, in the mode that Envoy sends it in."""
        if self._answered:
            return
        self._answered = True
        send = self._outlet.send
        if self._modes.request == BUFFERED and not self._head_only:
            send(messages.forwarded_whole(forward, body if is_changed else None))
        else:
            send(messages.forwarded_head(forward))
            if self._modes.request == FULL_DUPLEX and not self._head_only:
                for piece in messages.forwarded_body(body, ends=not self._has_trailers):
                    send(piece)
            else:
                for _ in range(self._unanswered):
                    send(messages.UNCHANGED_BODY)
        if self._has_trailers:
            send(messages.UNCHANGED_TRAILERS)
        self.release()
        if self._modes.answer == NO_BODY:
            self._outlet.close()  # the access log tells the rest
        else:
            self._watch = AnswerWatch(self._outlet, watcher, self._modes.answer)

    def release(self) -> None:
        """Give back the bytes that this request has reserved."""
        if self._share is not None:
            self._share.release(self._reserved_bytes)
        self._reserved_bytes = 0
