"""One request over two engines: the first reads its prompt, the second writes its answer, the client has the second's bytes.

The attempt sees one call. While the first engine reads, that call is to the first engine; then it is to the second, with what the
first has said. Until the client has a byte, whatever goes wrong with what was handed over ends in the second engine reading the
prompt itself, once. What the first engine says of the request itself (most 4xx) is the client's answer. A stream that has not begun
before the first one's lease ends is begun anew: what an engine fetches later may be another prompt (aws-samples/aws-do-eks PR#84).
A whole answer does not show that. It is sent at once, and the engines keep the lease while it waits.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from millgate.core.decisions import Admit
from millgate.core.events import HandoffFailed, Prefilled
from millgate.core.words import FailureKind, Sent
from millgate.dialects.handoff import Handed, handed, is_lost, to_decode, to_prefill, with_cached
from millgate.dialects.openai import OPENAI
from millgate.http1.client import AnswerHead, Call, Receiver
from millgate.http1.wire.fields import Lines, header_lines
from millgate.runtime.driver import Driver
from millgate.runtime.verdicts import OVERLOADED, blame
from millgate.servers.http.contract import HttpDesk
from millgate.servers.http.paired import OnwardLines, PairedEngines, ReaderAnswer, tell_whole
from millgate.servers.requests.fields import EVENT_STREAM, media_type
from millgate.servers.requests.routes import EngineRoute

_MARGIN_SHARE: Final = 1.0 / 6.0
"""Of a lease: the second engine's first event comes so long before its end, or it is asked anew. vLLM's heartbeat is as long."""
_MOST_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""Of a whole answer that is kept to correct its usage; a longer one goes on as it is."""
_GOOD: Final = 200


def over_two(
    desk: HttpDesk, engine: EngineRoute, decision: Admit, lines_for: OnwardLines, *, stream: bool
) -> EngineRoute:
    """Return the route to the second engine of this admission by way of the first."""
    reader = desk.engines[decision.legs[1].engine]
    if reader.bootstrap is not None:
        return engine._replace(upstream=PairedEngines(desk.driver, reader, engine, decision, lines_for))
    two = TwoEngines(desk.driver, reader, engine, decision.attempt, lines_for, stream=stream)
    return engine._replace(upstream=two)


class TwoEngines:
    """An `Upstream` for one attempt."""

    def __init__(
        self,
        driver: Driver,
        reader: EngineRoute,
        engine: EngineRoute,
        attempt: int,
        lines_for: OnwardLines,
        *,
        stream: bool,
    ) -> None:
        self.driver, self.reader, self.engine = driver, reader, engine
        self.attempt, self.lines_for, self.stream = attempt, lines_for, stream
        self._asked = False

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
        """Send one request to the first engine now; one that is sent again goes to the second alone."""
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        call = _TwoLegs(self, method, target, lines, body, receiver, may_retry=may_retry)
        if self._asked:
            call.go_alone(FailureKind.STATUS)
        else:
            self._asked = True
            call.begin()
        return call

    def close(self) -> None:
        """Nothing: the connections are the engines'."""


class _TwoLegs:
    """Implements `Call`: the call that is under way, to one engine or the other."""

    def __init__(
        self,
        house: TwoEngines,
        method: bytes,
        target: bytes,
        lines: Lines,
        body: bytes,
        receiver: Receiver,
        *,
        may_retry: bool,
    ) -> None:
        self._house = house
        self._method, self._target, self._lines, self._body = method, target, lines, body
        self._receiver = receiver
        self._may_retry = may_retry
        self._call: Call | None = None
        self._expires_at: float | None = None
        self._fetch_by: float | None = None
        self._is_last = self.is_over = self._paused = False

    def begin(self) -> None:
        """Let the first engine read the prompt."""
        house = self._house
        path = self._target[len(house.engine.base_path) :]
        self._send(house.reader, path, to_prefill(self._body), ReaderAnswer(self))

    def go_alone(self, kind: FailureKind) -> None:
        """Let the second engine do all of it; `kind` says why."""
        house = self._house
        house.driver.post(HandoffFailed(house.attempt, kind))
        if self.is_over:
            return
        if self._has_expired:
            self._receiver.on_failed(FailureKind.TIMEOUT, Sent.REQUEST, "its time is over")
        else:
            self._fetch_by = None
            self._is_last = True
            self._send(house.engine, None, self._body, self._receiver)

    def _send(self, engine: EngineRoute, path: bytes | None, body: bytes, receiver: Receiver) -> None:
        target = self._target if path is None else engine.base_path + path
        lines = self._lines if path is None else self._house.lines_for(engine)
        self._call = call = engine.upstream.request(
            self._method, target, lines, body, receiver, may_retry=self._may_retry
        )
        if self._is_last and self._paused:
            call.pause()
        call.expire_at(self._due_at)

    @property
    def _due_at(self) -> float | None:
        if self._fetch_by is None or self._expires_at is None:
            return self._expires_at
        return min(self._fetch_by, self._expires_at)

    # ---- what the legs say

    def prefilled(self, said: Handed) -> None:
        """The prompt is read: ask the second engine, while the lease lasts."""
        house = self._house
        usage, now = said.usage, asyncio.get_running_loop().time()
        house.driver.post(Prefilled(house.attempt, usage.prompt_tokens, usage.cached_tokens))
        if self.is_over:
            return
        if house.stream:  # of a whole answer nothing shows when its prompt was fetched
            self._fetch_by = now + house.reader.kv_lease_s * (1.0 - _MARGIN_SHARE)
        self._is_last = True
        body = to_decode(self._body, said.params)
        self._send(house.engine, None, body, _SecondLeg(self, self._receiver, usage.cached_tokens or 0))

    def has_read(self, head: AnswerHead, body: bytes) -> None:
        """The first engine has answered: hand over what it says, or go on without."""
        said = handed(body) if head.status == _GOOD else None
        if said is not None:
            self.prefilled(said)
        elif blame(head.status).blames_request:
            tell_whole(self, self._receiver, head, body)  # the request is at fault, and that is the answer
        elif head.status == _GOOD:
            if OPENAI.read_usage(body) is None:
                self.unfit()  # not even an answer: a proxy's page, or nothing
            self.lost(FailureKind.PROTOCOL, Sent.REQUEST, "")
        else:
            kind = FailureKind.REFUSED if head.status in OVERLOADED else FailureKind.STATUS
            self.lost(kind, Sent.REQUEST, "")

    def lost(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """The first engine has failed; where that is for want of time, there is none for the second."""
        del sent
        if kind is FailureKind.TIMEOUT and self._has_expired:
            self._receiver.on_failed(kind, Sent.REQUEST, detail)
        else:
            self.go_alone(kind)

    def refused(self, kind: FailureKind) -> None:
        """The second engine cannot have what was handed over: it reads the prompt itself."""
        if self._call is not None:
            self._call.abort()
        self.go_alone(kind)

    def broke(self, kind: FailureKind, sent: Sent, detail: str, *, begun: bool) -> None:
        """The second engine has failed; only for want of a lease it is asked once more."""
        if kind is FailureKind.TIMEOUT and not begun and self._fetch_by is not None and not self._has_expired:
            self.go_alone(kind)
        else:
            self._receiver.on_failed(kind, sent, detail)

    def raised(self) -> None:
        """A leg has raised: the attempt ends as failed."""
        self._receiver.on_raised()

    def fetched(self) -> None:
        """The second engine answers: the lease no longer counts, and the body is not sent again."""
        self._fetch_by = None
        self._body = b""
        if self._call is not None and not self.is_over:
            self._call.expire_at(self._expires_at)

    @property
    def _has_expired(self) -> bool:
        return self._expires_at is not None and asyncio.get_running_loop().time() >= self._expires_at

    # ---- what the attempt asks

    @property
    def written(self) -> bool:
        """Whether the request has left this process for the last time."""
        return self._is_last and not self._body and self._call is not None and self._call.written

    def abort(self) -> None:
        """Hang up on the engine that has it now."""
        self.is_over = True
        if self._call is not None:
            self._call.abort()

    def unfit(self) -> None:
        """Count it as a failure of the engine that was asked last."""
        if self._call is not None:
            self._call.unfit()

    def pause(self) -> None:
        """Hold the second engine back."""
        self._paused = True
        if self._is_last and self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        self._paused = False
        if self._is_last and self._call is not None:
            self._call.resume()

    def widen(self) -> None:
        if self._is_last and self._call is not None:
            self._call.widen()

    def expire_at(self, at_s: float | None) -> None:
        """Take a deadline for both engines together; until the answer has begun the lease is one too."""
        self._expires_at = at_s
        if self._call is not None:
            self._call.expire_at(self._due_at)


class _SecondLeg:
    """Receives the answer and passes it on, its cached tokens corrected, once it shows that the prompt was there."""

    def __init__(self, call: _TwoLegs, receiver: Receiver, cached_tokens: int) -> None:
        self._call = call
        self._receiver = receiver
        self._cached = cached_tokens
        self._head: AnswerHead | None = None
        self._is_stream = self._begun = False
        self._rest = bytearray()
        self._room = _MOST_WHOLE_BYTES

    def on_head(self, head: AnswerHead) -> None:
        """Take a refusal as one of what was handed over; keep the head of anything else until the answer begins."""
        if head.status != _GOOD:
            self._call.refused(FailureKind.REFUSED if head.status in OVERLOADED else FailureKind.STATUS)
            return
        self._head = head
        self._is_stream = media_type(head.headers).startswith(EVENT_STREAM)

    def on_data(self, data: bytes) -> None:
        """Pass on whole events of a stream; keep another answer until it is whole."""
        rest = self._rest
        rest += data
        end = _end_of_events(rest) if self._is_stream else 0
        if len(rest) > self._room:
            end = len(rest)
        if end:
            part = bytes(rest[:end])
            del rest[:end]
            self._pass_on(part)

    def on_end(self, *, delimited: bool) -> None:
        rest, self._rest = bytes(self._rest), bytearray()
        if (rest or not self._begun) and not self._pass_on(rest):
            return
        self._receiver.on_end(delimited=delimited)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Say so, unless the prompt can be read anew."""
        self._call.broke(kind, sent, detail, begun=self._begun)

    def on_raised(self) -> None:
        self._call.raised()

    def _pass_on(self, data: bytes) -> bool:
        """Pass this part on; return whether the answer goes on."""
        if not self._begun:
            if is_lost(data):
                self._call.refused(FailureKind.ERROR_EVENT)
                return False
            assert self._head is not None
            self._begun = True
            self._call.fetched()
            self._receiver.on_head(self._head)
        if data and not self._call.is_over:
            self._receiver.on_data(with_cached(data, self._cached))
        return not self._call.is_over


def _end_of_events(data: bytearray) -> int:
    """Return where the last whole event ends, 0 without any."""
    for mark in (b"\n\n", b"\r\n\r\n"):
        at = data.rfind(mark)
        if at >= 0:
            return at + len(mark)
    return 0
