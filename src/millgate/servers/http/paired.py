"""One request on two engines at once, as SGLang has it: both get it with a room where they meet, the client has the answer of one.

The engine that reads does not begin before the other one has come to the room, and is done when that has the prompt. So until the answer
begins each of them waits for the other, and what ends one ends both at once: one that is left alone holds its memory until SGLang's
bootstrap timeout, 300 s (sgl-project/sglang#29482 and #9726, vllm-project/aibrix#2289). Once the answer has begun, the prompt is over there,
and what becomes of the engine that read it changes nothing. What either of them refuses is the client's answer. A request that is sent
again has a new room.
"""

from collections.abc import Callable, Sequence
from itertools import count, islice
from secrets import randbits
from typing import Final, Protocol

from millgate.core.decisions import Admit
from millgate.core.events import HandoffFailed, Prefilled
from millgate.core.words import FailureKind, Sent
from millgate.dialects.contract import Usage
from millgate.dialects.handoff import is_given_up, to_both
from millgate.dialects.openai import OPENAI
from millgate.http1.client import AnswerHead, Call, Receiver
from millgate.http1.wire.fields import Lines, header_lines
from millgate.runtime.driver import Driver
from millgate.servers.requests.judgement import let_end
from millgate.servers.requests.routes import EngineRoute

_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of the answer of the engine that reads: a token of each sequence, and the numbers of the blocks."""
_GOOD: Final = 200
_NOTHING: Final = Usage(None, None)
_rooms: Final = count(randbits(62))
"""63 bits (SGLang's are signed): counted, so that no two attempts meet, from a beginning that no other gate has."""

OnwardLines = Callable[[EngineRoute], Lines]
"""Writes the header lines of the request for an engine."""


class ReaderCall(Protocol):
    """What hears of the engine that reads."""

    @property
    def is_over(self) -> bool:
        """Whether the attempt wants no more of it."""

    def has_read(self, head: AnswerHead, body: bytes) -> None:
        """It has answered."""

    def lost(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """It has failed."""

    def raised(self) -> None:
        """A callback has raised."""


def tell_whole(call: ReaderCall, receiver: Receiver, head: AnswerHead, body: bytes) -> None:
    """Give the client the answer of the engine that reads."""
    receiver.on_head(AnswerHead(head.status, head.headers, len(body)))
    if not call.is_over:
        receiver.on_data(body)
    if not call.is_over:
        receiver.on_end(delimited=True)


class PairedEngines:
    """An `Upstream` for one attempt."""

    def __init__(
        self, driver: Driver, reader: EngineRoute, engine: EngineRoute, legs: Admit, lines_for: OnwardLines
    ) -> None:
        self._driver, self._reader, self._engine = driver, reader, engine
        self._legs, self._lines_for = legs, lines_for

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
        """Send one request to both engines now, to meet in a new room."""
        engine, reader, legs = self._engine, self._reader, self._legs
        bootstrap = reader.bootstrap
        assert bootstrap is not None
        host = f"[{bootstrap.host}]" if ":" in bootstrap.host else bootstrap.host
        both = to_both(body, host, bootstrap.port, list(islice(_rooms, legs.legs[1].streams)))
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        call = _PairedCall(self._driver, legs.attempt, receiver)
        at_reader = reader.base_path + target[len(engine.base_path) :]
        call.begun_with(
            engine.upstream.request(
                method, target, lines, both, _Answering(call, receiver), may_retry=may_retry
            ),
            reader.upstream.request(
                method, at_reader, self._lines_for(reader), both, ReaderAnswer(call), may_retry=may_retry
            ),
        )
        return call

    def close(self) -> None:
        """Nothing: the connections are the engines'."""


class _PairedCall:
    """Implements `Call`: the calls to both engines, known before either says anything; that to the one that reads is None once it is over."""

    def __init__(self, driver: Driver, attempt: int, receiver: Receiver) -> None:
        self._driver, self._attempt, self._receiver = driver, attempt, receiver
        self._answering: Call
        self._reading: Call | None = None
        self.is_over = self._has_begun = False

    def begun_with(self, answering: Call, reading: Call) -> None:
        self._answering, self._reading = answering, reading

    # ---- what the engine that answers says

    def answers(self, data: bytes) -> None:
        """The answer begins, so the prompt is there; or it says that it is not, and the other engine waits for nothing."""
        if self._has_begun:
            return
        if is_given_up(data):
            self.leave_reader()
        elif not data.startswith(b":"):  # a comment is sent while nothing is known
            self._has_begun = True

    def leave_reader(self) -> None:
        """Hang up on the engine that reads, if it is not done."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.abort()

    def let_reader_end(self) -> None:
        """The answer is over: what the other engine still has to say takes no time."""
        let_end(self._reading)

    # ---- what the engine that reads says

    def has_read(self, head: AnswerHead, body: bytes) -> None:
        """It has answered: the prompt is read and over there, or there will be no answer."""
        self._reading = None
        if self.is_over:
            return
        if head.status == _GOOD and not is_given_up(body):
            usage = OPENAI.read_usage(body) or _NOTHING
            self._driver.post(Prefilled(self._attempt, usage.prompt_tokens, usage.cached_tokens))
        elif head.status == _GOOD:
            self.lost(FailureKind.ERROR_EVENT, Sent.REQUEST, "")
        elif not self._has_begun:
            # The other engine was asked the same.
            self._leave_answer(FailureKind.STATUS)
            tell_whole(self, self._receiver, head, body)

    def lost(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """It has failed: so does the attempt, unless the answer has begun."""
        self._reading = None
        if not (self.is_over or self._has_begun):
            self._leave_answer(kind)
            self._receiver.on_failed(kind, sent, detail)

    def raised(self) -> None:
        """A callback has raised: the attempt ends as failed."""
        self.abort()
        self._receiver.on_raised()

    def _leave_answer(self, kind: FailureKind) -> None:
        self._answering.abort()
        self._driver.post(HandoffFailed(self._attempt, kind))

    # ---- what the attempt asks

    @property
    def written(self) -> bool:
        """Whether the request has left this process, both times."""
        return all(call is None or call.written for call in (self._answering, self._reading))

    def abort(self) -> None:
        self.is_over = True
        self.leave_reader()
        self._answering.abort()

    def unfit(self) -> None:
        """Count it as a failure of the engine that answers."""
        self._answering.unfit()

    def pause(self) -> None:
        self._answering.pause()

    def resume(self) -> None:
        self._answering.resume()

    def widen(self) -> None:
        self._answering.widen()

    def expire_at(self, at_s: float | None) -> None:
        """Take a deadline for both engines; where it is taken away, it stays that of the one that reads."""
        self._answering.expire_at(at_s)
        if self._reading is not None and at_s is not None:
            self._reading.expire_at(at_s)


class _Answering:
    """Receives the answer and passes it on as it comes."""

    def __init__(self, call: _PairedCall, receiver: Receiver) -> None:
        self._call, self._receiver = call, receiver
        self._is_good = False

    def on_head(self, head: AnswerHead) -> None:
        """Pass it on; of a refusal the other engine need not know more."""
        self._is_good = head.status == _GOOD
        if not self._is_good:
            self._call.leave_reader()
        self._receiver.on_head(head)

    def on_data(self, data: bytes) -> None:
        if self._is_good:
            self._call.answers(data)
        self._receiver.on_data(data)

    def on_end(self, *, delimited: bool) -> None:
        self._call.let_reader_end()
        self._receiver.on_end(delimited=delimited)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """The other engine waits for nothing."""
        self._call.leave_reader()
        self._receiver.on_failed(kind, sent, detail)

    def on_raised(self) -> None:
        self._call.raised()


class ReaderAnswer:
    """Receives the answer of the engine that reads, whole; it is empty where it is too long."""

    def __init__(self, call: ReaderCall) -> None:
        self._call = call
        self._head = AnswerHead(0, (), None)
        self._parts: list[bytes] = []
        self._room = _MOST_BYTES

    def on_head(self, head: AnswerHead) -> None:
        """Keep it until the answer is whole."""
        self._head = head

    def on_data(self, data: bytes) -> None:
        """Keep it, up to a bound."""
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)

    def on_end(self, *, delimited: bool) -> None:
        """Say what it has answered."""
        del delimited
        self._call.has_read(self._head, b"".join(self._parts) if self._room >= 0 else b"")

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Say so."""
        self._call.lost(kind, sent, detail)

    def on_raised(self) -> None:
        """End it as failed."""
        self._call.raised()
