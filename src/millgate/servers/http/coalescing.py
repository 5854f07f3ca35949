"""Requests for embeddings that share a call to their engine: group commit, for lanes that ask for it.

A small model spends more on a call than on a text, and a provider that counts calls counts a merged one once. A request goes at once while
fewer than two calls of its kind are under way; the others gather until a call returns, a window ends, or a batch is full. So nothing
waits at low load, and at high load batches form by themselves. Every request keeps its attempt, its permit and its outcome.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from millgate.core.decisions import Admit
from millgate.core.words import FailureKind, Sent
from millgate.dialects.embedding_batches import TextsRequest, joined, parted, texts_of
from millgate.http1.client import AnswerHead, Call, Receiver, Upstream
from millgate.http1.client.contract import ID_NAMES
from millgate.http1.wire.fields import Lines, header_lines
from millgate.servers.http.contract import CoalescingSettings, DoorSettings
from millgate.servers.requests.routes import EngineRoute

_PATH: Final = b"/v1/embeddings"
_AT_ONCE: Final = 2
"""Calls of one kind under way before others gather: one is computed while the next one is on its way."""
_MOST_BYTES: Final = 64 * 1024
"""Of the bodies of one batch, some 16,000 tokens: longer texts keep an engine busy by themselves."""
_MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
_OF_ONE_REQUEST: Final = ID_NAMES | frozenset(
    b"x-client-request-id x-ms-client-request-id x-correlation-id x-stainless-retry-count traceparent tracestate b3 x-b3-traceid"
    b" x-b3-spanid x-b3-parentspanid x-b3-sampled x-b3-flags x-amzn-trace-id x-cloud-trace-context x-envoy-attempt-count".split()
)
"""Fields that are another in each request and say nothing of its client; in all others the requests of one call are equal."""
_OF_ONE_CLIENT: Final = (_OF_ONE_REQUEST - ID_NAMES) | set(
    b"set-cookie authentication-info traceresponse".split()
)
"""Fields of an answer that are for the client which made the call; the answer's own id is of use to all that shared it."""
_GOOD: Final = 200
_LIMITED: Final = 429

_Key = tuple[bytes, bytes, tuple[bytes, ...]]


class Coalescing:
    """An `Upstream` that merges what may be merged and passes everything else on; `merged` counts requests that shared a call."""

    def __init__(self, upstream: Upstream, settings: CoalescingSettings) -> None:
        self.upstream = upstream
        self.settings = settings
        self.merged = 0
        self._lines: dict[_Key, _Line] = {}

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
        """Send one request now, or within the window together with others."""
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        texts = texts_of(body) if target.endswith(_PATH) and len(body) <= _MOST_BYTES else None
        if texts is None or len(texts.texts) >= self.settings.most_inputs:
            return self.upstream.request(method, target, lines, body, receiver, may_retry=may_retry)
        part = _Part(self, _Outgoing(method, target, lines, body, receiver), texts)
        own = [line for line in lines.split(b"\r\n") if line.partition(b":")[0] not in _OF_ONE_REQUEST]
        key = (target, texts.key, tuple(own))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(self, lambda: self._lines.pop(key, None))
        line.add(part)
        return part

    def close(self) -> None:
        """Close the connections to the engine."""
        self.upstream.close()


class SharedRoutes:
    """The routes to engines by which calls are shared, one for each engine and settings; `merged` as in `Coalescing`."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, CoalescingSettings], tuple[EngineRoute, EngineRoute, Coalescing]] = {}
        self._merged = 0

    @property
    def merged(self) -> int:
        """How many requests have shared a call."""
        return sum([sharing.merged for _own, _shared, sharing in self._routes.values()], self._merged)

    def route(
        self, engine: EngineRoute, decision: Admit, lane: str | None, door: DoorSettings
    ) -> EngineRoute:
        """Return the engine's own route, or the shared one where the lane of this attempt, which named `lane`, asks for it."""
        if not door.coalesce:
            return engine
        classed = decision.classed
        settings = door.coalesce.get(classed.lane if classed is not None else lane or door.first_lane)
        return engine if settings is None else self._shared(engine, settings)

    def _shared(self, engine: EngineRoute, settings: CoalescingSettings) -> EngineRoute:
        """Return the route that shares calls to this engine; a new one where a reload has changed the engine's own."""
        kept = self._routes.get((engine.name, settings))
        if kept is None or kept[0] is not engine:
            if kept is not None:
                self._merged += kept[2].merged
            sharing = Coalescing(engine.upstream, settings)
            kept = engine, engine._replace(upstream=sharing), sharing
            self._routes[engine.name, settings] = kept
        return kept[1]


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """One owner's request as it came."""

    method: bytes
    target: bytes
    headers: Lines
    body: bytes
    receiver: Receiver


class _Line:
    """Requests of one kind: batches under way, and the one that gathers; `idle` is called when nothing is left."""

    def __init__(self, house: Coalescing, idle: Callable[[], object]) -> None:
        self._house = house
        self._idle = idle
        self._under_way = 0
        self._gathering: list[_Part] = []
        self._texts = self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, part: "_Part") -> None:
        """Send it, or let it gather."""
        texts, size = len(part.texts.texts), len(part.outgoing.body)
        if self._texts + texts > self._house.settings.most_inputs or self._bytes + size > _MOST_BYTES:
            self._flush()
        self._gathering.append(part)
        part.line = self
        self._texts += texts
        self._bytes += size
        if self._under_way < _AT_ONCE or self._texts >= self._house.settings.most_inputs:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._house.settings.window_s, self._flush)

    def left(self, part: "_Part") -> None:
        """Drop one that gathers: its client has left."""
        if part in self._gathering:
            self._gathering.remove(part)
            self._texts -= len(part.texts.texts)
            self._bytes -= len(part.outgoing.body)

    def returned(self) -> None:
        """A batch is over: what has gathered goes."""
        self._under_way -= 1
        self._flush()
        if not self._under_way:
            self._idle()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts, self._gathering = self._gathering, []
        self._texts = self._bytes = 0
        if not parts:
            return
        self._under_way += 1
        if len(parts) > 1:
            self._house.merged += len(parts)
        _Batch(self, parts).send(self._house.upstream)


class _Part:
    """One owner's share of a batch, which its attempt holds as its call."""

    def __init__(self, house: Coalescing, outgoing: _Outgoing, texts: TextsRequest) -> None:
        self._house = house
        self._alone: Call | None = None
        self.expires_at: float | None = None  # when its own answer must be there
        self.outgoing = outgoing
        self.texts = texts
        self.line: _Line | None = None
        self.batch: _Batch | None = None
        self.gone = False

    @property
    def written(self) -> bool:
        """Whether the request has left this process; its body is kept until its answer has come."""
        return self._alone is not None and self._alone.written

    def send_alone(self) -> None:
        """Ask for this owner alone: what others sent must not fail it."""
        if self.gone:
            return
        out = self.outgoing
        self.batch = None
        self._alone = self._house.upstream.request(
            out.method, out.target, out.headers, out.body, out.receiver
        )
        self._alone.expire_at(self.expires_at)

    def hand_over(self, head: AnswerHead, body: bytes, delimited: bool, receiver: Receiver) -> None:
        """Say this answer, until its owner wants no more of it."""
        receiver.on_head(head)
        if not self.gone:
            receiver.on_data(body)
        if not self.gone:
            receiver.on_end(delimited=delimited)

    def abort(self) -> None:
        """Leave the batch; the engine sees a hang-up when the last owner has left."""
        self.gone = True
        if self._alone is not None:
            self._alone.abort()
        elif self.batch is not None:
            self.batch.left()
        elif self.line is not None:
            self.line.left(self)

    def unfit(self) -> None:
        """Count it as a failure of the engine: once, though the call is shared."""
        call = self._alone if self.batch is None else self.batch.call
        if call is not None:
            call.unfit()

    def pause(self) -> None:
        """Hold the engine back, where it answers this owner alone."""
        if self._alone is not None:
            self._alone.pause()

    def resume(self) -> None:
        if self._alone is not None:
            self._alone.resume()

    def widen(self) -> None:
        if self._alone is not None:
            self._alone.widen()

    def expire_at(self, at_s: float | None) -> None:
        """Take a deadline; a batch has the latest of its owners'."""
        self.expires_at = at_s
        if self._alone is not None:
            self._alone.expire_at(at_s)
        elif self.batch is not None:
            self.batch.expire()


class _Batch:
    """One call for several owners; receives its answer and parts it."""

    def __init__(self, line: _Line, parts: list[_Part]) -> None:
        self._line = line
        self._parts = parts
        self.call: Call | None = None
        self._head: AnswerHead | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._over = False

    def send(self, upstream: Upstream) -> None:
        """Send it, the only owner's request as it came."""
        out = self._parts[0].outgoing
        body = out.body if len(self._parts) == 1 else joined([part.texts for part in self._parts])
        for part in self._parts:
            part.batch = self
        self.call = upstream.request(out.method, out.target, out.headers, body, self)
        self.expire()

    def expire(self) -> None:
        """Fail when the last of its owners would."""
        if self.call is None or self._over:
            return
        times = [part.expires_at for part in self._parts if not part.gone]
        known = [at for at in times if at is not None]
        self.call.expire_at(max(known) if known and len(known) == len(times) else None)

    def left(self) -> None:
        """Abort the call when every owner has left."""
        if not self._over and all(part.gone for part in self._parts):
            self._end()
            if self.call is not None:
                self.call.abort()

    # ---- what the answer says

    def on_head(self, head: AnswerHead) -> None:
        self._head = head

    def on_data(self, data: bytes) -> None:
        """Keep it whole, up to a bound."""
        self._body.append(data)
        self._size += len(data)
        if self._size > _MOST_ANSWER_BYTES and self.call is not None:
            self.call.abort()
            self._fail(FailureKind.PROTOCOL, Sent.REQUEST, "the answer to several requests is too long")

    def on_end(self, *, delimited: bool) -> None:
        """Give each owner its own; an answer that is not all owners' is asked for again, by each alone."""
        head, body = self._head, b"".join(self._body)
        if head is None or self._over:
            return
        self._end()
        answers: list[bytes] | None = [body] * len(self._parts)
        if len(self._parts) > 1 and head.status == _GOOD:
            answers = parted(body, [part.texts for part in self._parts])
            if answers is None and self.call is not None:
                self.call.unfit()
        elif len(self._parts) > 1 and _GOOD < head.status < 500 and head.status != _LIMITED:
            answers = None
        if answers is None:
            for part in self._parts:
                part.send_alone()
            return
        is_shared = len(self._parts) > 1
        fields = [pair for pair in head.headers if pair[0] not in _OF_ONE_CLIENT] if is_shared else ()
        for part, answer in zip(self._parts, answers, strict=True):
            own = AnswerHead(head.status, fields, len(answer)) if is_shared else head
            self._tell(part, partial(part.hand_over, own, answer, delimited))

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        self._fail(kind, sent, detail)

    def on_raised(self) -> None:
        if not self._over:
            self._end()
            for part in self._parts:
                self._tell(part, lambda to: to.on_raised())

    def _fail(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        if self._over:
            return
        self._end()
        for part in self._parts:
            self._tell(part, lambda to: to.on_failed(kind, sent, detail))

    def _end(self) -> None:
        self._over = True
        self._body = []
        self._line.returned()

    def _tell(self, part: _Part, say: Callable[[Receiver], None]) -> None:
        """Tell one owner; what it raises ends it alone, and is reported as any callback's error is."""
        if part.gone:
            return
        try:
            say(part.outgoing.receiver)
        except Exception as error:  # noqa: BLE001  # the other owners must get theirs
            context = {"message": "an embedding could not be handed on", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            part.outgoing.receiver.on_raised()
