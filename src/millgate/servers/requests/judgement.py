"""Whether an engine's answer is a whole and a good one (INV-10): every door judges alike, by its head, its events and its end."""

import asyncio
import re
from typing import Final

from millgate.core.words import FailureKind
from millgate.dialects.contract import Dialect, EngineError, Usage, in_one_line
from millgate.dialects.sse import DONE, EventFloodError, Splitter, payload
from millgate.http1.client import AnswerHead, Call
from millgate.runtime.verdicts import SAID_NOTHING, event_verdict, verdict
from millgate.servers.requests.fields import EVENT_STREAM, first, media_type

HEAD_BYTES: Final = 4 * 1024
"""Engines that write the usage first (vLLM's rerank, llama.cpp's embeddings) write it right behind the ids."""
MOST_KEPT_BYTES: Final = 64 * 1024
"""What is kept of an answer that is no stream: one of usual size is judged whole, a longer one by its end."""
ENDING_S = 5.0
"""How long after its terminal event an answer may take to end: no engine has anything to say in between."""

_JSON: Final = (b"json",)
_PLAIN: Final = (b"", b"identity")
_NO_HEAD: Final = AnswerHead(0, (), None)
_ERROR: Final = re.compile(rb'\s*\{\s*"(?:error"|type"\s*:\s*"error")')
"""How a whole answer begins that is an error, by dialect; providers send blank lines while they compute."""


class AnswerEnds:
    """Keeps the first bytes of an answer, and of its end `tail_bytes` or the newest piece, whichever is longer."""

    def __init__(self, tail_bytes: int) -> None:
        self._head = b""
        self._tail = bytearray()
        self._tail_bytes = tail_bytes

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        self._tail += data
        kept = max(self._tail_bytes, len(data))
        if len(self._tail) > 2 * kept:
            del self._tail[:-kept]

    def wipe(self) -> None:
        """Forget all of it."""
        self._head = b""
        self._tail.clear()

    @property
    def tail(self) -> bytes:
        """The end, which of a short answer is the whole."""
        return bytes(self._tail)

    def usage(self, dialect: Dialect) -> Usage | None:
        """Find the usage at the end, completed by what the beginning says."""
        last = dialect.read_usage(self.tail)
        if last is not None and last.prompt_tokens is not None and last.output_tokens is not None:
            return last
        first = dialect.read_usage(self._head)
        return first if last is None else last if first is None else last.after(first)


def is_stream(head: AnswerHead) -> bool:
    """Whether events follow that can be read: compressed ones, which no engine is asked for, would be told as broken at their end."""
    return (
        head.status == 200
        and media_type(head.headers).startswith(EVENT_STREAM)
        and first(head.headers, b"content-encoding").lower() in _PLAIN
    )


def is_usable(head: AnswerHead, dialect: Dialect) -> bool:
    """Whether a whole answer or an error follows: no redirect (never followed) and nothing of another kind, such as a page of HTML."""
    return head.status >= 400 or (head.status < 300 and _is_kind(head, dialect.answer_kinds))


def as_its_body_says(head: AnswerHead, body: bytes, dialect: Dialect) -> AnswerHead:
    """Return the head of a whole answer with the status of the error that it is: routers answer 200 once they have asked their own engine."""
    is_error = head.status < 300 and _ERROR.match(body) is not None
    error = dialect.read_event(b"data: " + in_one_line(body)).error if is_error else None
    return head if error is None else head._replace(status=error.status, notes=None)


def flaw(
    head: AnswerHead, body: bytes, dialect: Dialect, *, delimited: bool, is_all: bool, is_work: bool = True
) -> FailureKind | None:
    """Return why this body is no whole answer and no whole error, None where it is one; `is_all` False where only its end was kept.

    Of an error that nothing has been passed on of, the status and the hint count, whole or not. What `is_work` no more, as a kept answer, may
    still be under way.
    """
    is_good = head.status < 300
    if is_good and is_work and dialect.is_aborted(body):
        return FailureKind.ABORT
    if (is_good or not is_all) and not delimited and not body.rstrip().endswith((b"}", b"]")):
        return FailureKind.BROKEN
    if is_good and is_all and not _is_json(body) and _is_kind(head, _JSON):
        return FailureKind.PROTOCOL
    return None


def let_end(call: Call | None) -> None:
    """Give an answer whose terminal event has passed its time to end; a client that has left watches it no more."""
    if call is not None:
        call.expire_at(asyncio.get_running_loop().time() + ENDING_S)


def _is_kind(head: AnswerHead, kinds: tuple[bytes, ...]) -> bool:
    given = media_type(head.headers)
    return any(kind in given for kind in kinds)


def _is_json(body: bytes) -> bool:
    """Look at both ends of a body: enough to tell an answer from a page, a stump or nothing at all."""
    if body.endswith(b"}") and body.startswith(b"{"):  # nearly all
        return True
    text = body.strip()
    return text.startswith((b"{", b"[")) and text.endswith((b"}", b"]"))


class AnswerJudge:
    """Judges one answer that is kept or passed on elsewhere: told its head, its bytes and its end.

    Once it `is_over` what follows does not count: `failure` is None for a good answer, else `said` and `complaint` are
    what the engine said with it. `heard` says that a stream has begun, `events` counts its events with content.
    """

    def __init__(self, dialect: Dialect, *, may_stream: bool = True) -> None:
        self._dialect = dialect
        self._may_stream = may_stream
        self._head = _NO_HEAD
        self._splitter: Splitter | None = None
        self._ends = AnswerEnds(MOST_KEPT_BYTES)
        self._size = 0
        self._has_finished = False
        self.heard = False
        self.events = 0
        self.usage = Usage(None, None)
        self.is_over = False
        self.failure: FailureKind | None = None
        self.said = SAID_NOTHING
        self.complaint: EngineError | None = None

    def take_head(self, head: AnswerHead) -> None:
        """Judge the head: what no client of this dialect can use is over with it."""
        self._head = head
        if self._may_stream and is_stream(head):
            self._splitter = Splitter()
        elif not is_usable(head, self._dialect):
            self._close(FailureKind.PROTOCOL)

    def take(self, data: bytes) -> None:
        """Read what has come."""
        if self.is_over:
            return
        splitter = self._splitter
        if splitter is not None:
            try:
                if not self._goes_on(splitter, data):
                    self._read(splitter.feed(data))
            except EventFloodError:
                self._close(FailureKind.PROTOCOL)
            return
        self._ends.add(data)
        self._size += len(data)

    def _goes_on(self, splitter: Splitter, data: bytes) -> bool:
        """Whether these are whole events behind the first token of which each says that it does not end the answer: nearly all. Count them."""
        if not self.events or splitter.rest or not data.endswith(b"\n\n") or data.find(b"\r") >= 0:
            return False
        pieces = data[:-2].split(b"\n\n")
        mark = self._dialect.unfinished
        goes_on = all(mark in piece for piece in pieces)
        self.events += len(pieces) if goes_on else 0
        return goes_on

    def end(self, *, delimited: bool = True) -> None:
        """Judge the end: a stream is whole with its terminal event, or at least with a finish reason and a framed end."""
        if self._splitter is not None:
            if self._splitter.rest and not self.is_over:
                self._read([bytes(self._splitter.rest)])
            self._close(None if delimited and self._has_finished else FailureKind.BROKEN)
        elif not self.is_over:
            self._end_whole(self._ends.tail, delimited=delimited)

    def _end_whole(self, body: bytes, *, delimited: bool) -> None:
        is_all = self._size <= MOST_KEPT_BYTES
        if is_all:
            self._head = as_its_body_says(self._head, body, self._dialect)
        failure = flaw(self._head, body, self._dialect, delimited=delimited, is_all=is_all)
        if failure is None and self._head.status >= 300:
            failure, self.said = verdict(self._head, body)
            self.complaint = EngineError(self._head.status, body)
        elif failure is None:
            self.usage = self._ends.usage(self._dialect) or self.usage
        self._close(failure)

    def _read(self, pieces: list[bytes]) -> None:
        """Read whole events up to the one that ends the answer."""
        for piece in pieces:
            event = self._dialect.read_event(piece)
            if event.error is not None:
                failure, self.said = event_verdict(event.error)
                self.complaint = event.error
                self._close(failure)
                return
            if event.done and not self.heard and payload(piece) == DONE:
                continue  # it breaks off like an empty one
            self.heard = self.heard or not (event.silent or event.opening)
            if event.content:
                self.events += 1
            if event.usage is not None:
                self.usage = event.usage.after(self.usage)
            if event.finish is not None:
                self._has_finished = True
            if event.done or event.finish == "abort":
                self._close(FailureKind.ABORT if event.finish == "abort" else None)
                return

    def _close(self, failure: FailureKind | None) -> None:
        """Be over, once; the events stand for the tokens of a stream that does not say them."""
        if not self.is_over:
            self.is_over = True
            self.failure = failure
            if self._splitter is not None:
                self.usage = self.usage.after(Usage(None, self.events))
            self._ends.wipe()
