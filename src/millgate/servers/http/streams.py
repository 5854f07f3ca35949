"""Streams of events on their way back.

This is the hot path of the gateway: per chunk one call, two searches through its bytes, one write. That is enough as
long as every event in the chunk says of itself that it does not end the answer (`Dialect.unfinished`). Any other
chunk is taken apart event by event: the first ones (peek, first token) and the last two or three.

A client must never take a broken answer for a finished one (INV-10), and an SDK raises nothing for a missing
`[DONE]` or for `finish_reason: "abort"`. So an answer that breaks gets an error event and then a cut connection.
"""

from functools import partial

from millgate.core.events import Growth
from millgate.core.words import FailureKind, Reason, Sent
from millgate.dialects.contract import EngineError, StreamEvent, Usage
from millgate.dialects.sse import DONE, EventFloodError, Splitter, payload
from millgate.http1.client import AnswerHead
from millgate.http1.wire.fields import ANSWER_RESERVED, HeaderWriter
from millgate.runtime.verdicts import SAID_NOTHING, event_verdict, is_left_undone, told_instead
from millgate.servers.http.answers import WholeAnswer, tell_failure
from millgate.servers.http.contract import AnswerOwner
from millgate.servers.requests.fields import NO_RETRY, beside_quotas, with_ids
from millgate.servers.requests.judgement import MOST_KEPT_BYTES, is_stream

_NO_ENDING = b"\n\n\n"
"""No event in one line ends so."""
_UNKNOWN = Usage(None, None)
_NULLS = (b',"usage":null', b', "usage": null')
# Proxies between us and the client buffer event streams and caches keep them unless told not to.
_STREAM_FIELDS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_WRITER = HeaderWriter(ANSWER_RESERVED)
_JSON = _WRITER.write([(b"content-type", b"application/json")])
_FINAL_JSON = _WRITER.write([(b"content-type", b"application/json"), NO_RETRY])


def cut_off(owner: AnswerOwner, cause: FailureKind | Reason) -> None:
    """End a stream that has begun: an error event, then a cut connection."""
    words, message = owner.dialect.refuser.broken_off(cause)
    dialect = owner.dialect
    owner.exchange.write(dialect.as_event(dialect.error(words.kind, words.code, message)))
    owner.exchange.abort()


def _complain(owner: AnswerOwner, error: EngineError, kind: FailureKind, told: FailureKind | None) -> None:
    """Answer with the engine's own words as the status that it meant, or with what a client is told instead."""
    if told is not None:
        tell_failure(owner, told)
        return
    lines = _FINAL_JSON if kind is FailureKind.NO_CREDIT else _JSON
    owner.exchange.respond(error.status, with_ids(lines, owner.request_id), error.body)


def _null_in(event: bytes) -> bytes:
    """Return the `usage: null` that engines write into events where usage is asked for, and that strict clients take for none at all.

    Empty without one. Inside a string of JSON these bytes cannot stand: its quotes are escaped.
    """
    return next((null for null in _NULLS if event.find(null) >= 0), b"")


def _each_says(data: bytes, mark: bytes, events: int) -> bool:
    """Whether each of these events has the mark, which stands in them as often as there are events: a single event may have two."""
    return events == 1 or all(mark in piece for piece in data[:-2].split(b"\n\n"))


class StreamAnswer:
    """Receives the answer to a streaming request and passes its events on as they come.

    `events` counts the events with content so far: the output tokens, as far as they are known before the usage.
    With `strip_usage` the event that exists only because we asked for usage is taken out again, and the nulls before it. `alone` says that the
    request has one answer: then an event that says that one goes on has no other in it, which may end. One that `is_kept`
    was accepted long ago: even its opening is passed on at once.
    """

    def __init__(
        self, owner: AnswerOwner, *, strip_usage: bool, alone: bool = True, is_kept: bool = False
    ) -> None:
        self._owner = owner
        self._exchange = owner.exchange
        self._write = owner.exchange.write
        self._dialect = owner.dialect
        self._unfinished = owner.dialect.unfinished
        self._strip_usage = strip_usage
        # What stands for no usage in the events that are taken apart, the first ones among them.
        self._no_usage = b""
        self._alone, self._is_kept = alone, is_kept
        self._ending = _NO_ENDING
        self._splitter = Splitter()
        self._head: AnswerHead | None = None
        self._whole: WholeAnswer | None = None
        self._peeked: list[bytes] = []
        self._peeked_bytes = 0
        self._started = False
        self._flowing = False
        self._heard = self._heard_content = False
        self._done = False
        self._finish: str | None = None
        self._usage: Usage | None = None
        self.events = 0

    @property
    def has_begun(self) -> bool:
        """Whether a token of it, or the length of its prompt, is known."""
        return self.events > 0 or self._usage is not None

    def growth(self, number: int) -> Growth:
        """Return how far this attempt has come."""
        prompt, _, cached = self._usage or _UNKNOWN
        return Growth(number, self.events, prompt, cached)

    @property
    def is_events(self) -> bool:
        """Whether the answer is a stream of events, as far as is known."""
        return self._whole is None

    def on_head(self, head: AnswerHead) -> None:
        """Take a stream as a stream and anything else whole."""
        if is_stream(head):
            self._head = head
            self._owner.answered(head)
        else:
            self._whole = WholeAnswer(self._owner)
            self._whole.on_head(head)

    def on_data(self, data: bytes) -> None:
        """Pass a chunk on; the chunks in the middle of an answer take the short way."""
        if self._flowing and data.find(b"\r") < 0:  # another way to end a line, and so an event
            # The usual chunk is one event in one line (its first line end is the last but one byte) that ends as the
            # one before did, and that one's ending said that it does not end the answer.
            if data.endswith(self._ending) and data.find(b"\n") == len(data) - 2:
                self.events += 1
                self._write(data.replace(self._no_usage, b"") if self._no_usage else data)
                return
            if data.endswith(b"\n\n"):
                events = data.count(b"\n\n")
                if data.count(self._unfinished) == events and _each_says(data, self._unfinished, events):
                    if events == 1 and data.find(b"\n") == len(data) - 2:
                        # How an event in one line ends, from the mark that it is not the last one on.
                        self._ending = data[data.rfind(self._unfinished) :]
                    self.events += events
                    self._write(data.replace(self._no_usage, b"") if self._no_usage else data)
                    return
        self._examine(data)

    def _examine(self, data: bytes) -> None:
        """Take the long way: split into events, read each."""
        if self._whole is not None:
            self._whole.on_data(data)
            return
        try:
            pieces = self._splitter.feed(data)
        except EventFloodError:
            self._break(FailureKind.PROTOCOL, Sent.REQUEST)
            return
        if self._take(pieces):
            is_quiet = not self._done and not self._splitter.rest
            self._flowing = is_quiet and self._heard_content and self._alone

    def on_end(self, *, delimited: bool) -> None:
        """Judge the end: whole with its terminal event, or at least with a finish reason and a framed end."""
        if self._whole is not None:
            self._whole.on_end(delimited=delimited)
            return
        rest = bytes(self._splitter.rest)
        event = self._read(rest)
        ends = self._done or event.done or (delimited and (self._finish or event.finish) is not None)
        # Half an event is not passed on: it would take the error event behind it for its own end.
        if rest and (ends or event.error is not None or rest.isspace()) and not self._take([rest]):
            return
        if ends:
            self._complete()
        else:
            self._break(FailureKind.BROKEN, Sent.REQUEST)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Hand on what was never sent; else break the answer off, unless its terminal event has passed."""
        self._owner.because(detail)
        if sent is Sent.NONE:
            self._owner.unsent(kind)
        elif self._whole is not None:
            self._whole.on_failed(kind, sent, detail)
        elif self._done:
            self._complete()
        else:
            self._break(kind, sent)

    def on_raised(self) -> None:
        """End it as failed."""
        self._owner.broken()

    # ---- event by event

    def _take(self, pieces: list[bytes]) -> bool:
        """Look at whole events and pass them on; return whether the answer goes on."""
        onward: list[bytes] = []
        surplus = False
        for piece in pieces:
            event = self._read(piece)
            # Behind the terminal event: blanks, comments, and the `[DONE]` that engines add in any dialect.
            if self._done and not (event.silent or payload(piece) == DONE):
                surplus = True
                break
            if event.error is not None:
                shown = piece if payload(piece) else self._dialect.as_event(event.error.body)
                self._engine_error(event.error, b"".join(onward), shown)
                return False
            self._heard = self._heard or not (event.silent or (event.opening and not self._is_kept))
            self._note(event)
            if self._strip_usage:
                self._no_usage = self._no_usage or _null_in(piece)
            if not (self._strip_usage and event.usage_only):
                onward.append(piece.replace(self._no_usage, b"") if self._no_usage else piece)
            if event.finish == "abort":
                self._send(onward)
                self._break(FailureKind.ABORT, Sent.REQUEST)
                return False
        self._send(onward)
        if self.events and not self._heard_content:
            self._heard_content = True
            self._owner.first_token()
        if surplus:
            self._owner.break_off()
            self._complete()
        elif self._done:
            self._report()
        return not surplus

    def _read(self, piece: bytes) -> StreamEvent:
        """Read an event; the end of what has not begun says nothing, so that this stream breaks off like an empty one."""
        event = self._dialect.read_event(piece)
        return (
            StreamEvent(silent=True) if event.done and not self._heard and payload(piece) == DONE else event
        )

    def _note(self, event: StreamEvent) -> None:
        if event.content:
            self.events += 1
        if event.finish is not None:
            self._finish = event.finish
        if event.usage is not None:
            self._usage = event.usage if self._usage is None else event.usage.after(self._usage)
        if event.answer_id is not None:
            self._owner.stored(event.answer_id)
        if event.done:
            self._done = True

    def _send(self, onward: list[bytes]) -> None:
        """Write events; until one is heard that the engine writes once it works, keep those before it back and the status open."""
        if self._started:
            if onward:
                self._exchange.write(b"".join(onward))
            return
        self._peeked += onward
        self._peeked_bytes += sum(map(len, onward))
        if not self._heard and self._peeked_bytes <= MOST_KEPT_BYTES:
            return
        self._start()
        self._exchange.write(b"".join(self._peeked))
        self._peeked.clear()

    def _start(self) -> None:
        assert self._head is not None
        self._started = True
        extra = self._owner.extra
        theirs = beside_quotas(self._head.headers, extra, own_key=self._owner.own_key)
        headers = [pair for pair in theirs if pair[0] != b"cache-control"]
        lines = _WRITER.write(headers + _STREAM_FIELDS + extra)
        self._exchange.start(200, with_ids(lines, self._owner.request_id))
        self._owner.begun()

    # ---- the ends

    def _complete(self) -> None:
        if not self._started:
            self._start()
        self._exchange.finish()
        self._report()

    def _report(self) -> None:
        """Report a whole answer, once its terminal event has been passed on: many clients close on it, before the last chunk."""
        seen = Usage(None, self.events)
        self._owner.finished(seen if self._usage is None else self._usage.after(seen))

    def _break(self, kind: FailureKind, sent: Sent) -> None:
        self._owner.break_off()
        if self._started:
            cut_off(self._owner, kind)
            self._owner.failed(kind, Sent.BYTES)
        else:
            tell_failure(self._owner, kind)
            self._owner.failed(kind, sent)

    def _engine_error(self, error: EngineError, before: bytes, shown: bytes) -> None:
        """Ask another engine, or turn an error event into a status while it is open; later pass it on, and cut what does not end with it."""
        self._owner.break_off()
        kind, said = event_verdict(error)
        told = told_instead(kind, error.status, own_key=self._owner.own_key)
        if self._started:
            self._exchange.write(before if told is not None else before + shown)
            if told is not None:
                cut_off(self._owner, told)
            elif error.final:
                self._exchange.finish()
            else:
                self._exchange.abort()
            self._owner.failed(kind, Sent.BYTES, said if kind is FailureKind.REFUSED else SAID_NOTHING)
            return
        tell = partial(_complain, self._owner, error, kind, told)
        if not self._heard and is_left_undone(kind, said, own_key=self._owner.own_key):
            self._owner.unsent(kind, said, tell)
        else:
            tell()
            self._owner.failed(kind, Sent.REQUEST, said)
