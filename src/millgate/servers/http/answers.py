"""Answers that are no streams of events: JSON, sound, and the errors of engines."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final

from millgate.core.words import FailureKind, Sent
from millgate.dialects.contract import Usage
from millgate.http1.client import AnswerHead
from millgate.http1.wire.fields import ANSWER_RESERVED, Lines, header_lines
from millgate.runtime.verdicts import OVERLOADED, hint_s, is_left_undone, lacks_credit, told_instead, verdict
from millgate.servers.http.contract import AnswerOwner
from millgate.servers.http.whole_bound import WholeBound
from millgate.servers.requests.fields import (
    NO_RETRY,
    beside_quotas,
    first,
    lines_for_client,
    may_tell_quotas,
    media_type,
    with_ids,
)
from millgate.servers.requests.judgement import MOST_KEPT_BYTES, AnswerEnds, as_its_body_says, flaw, is_usable

_TAIL_BYTES: Final = 8 * 1024
_UNREADABLE: Final = (400, 422)
"""How engines refuse a field that they do not know; 422 is Mistral's and that of `transformers serve`."""
_AS_IT_COMES: Final = (b"audio/", b"image/", b"video/", b"application/octet-stream")
"""Kinds that are of use from their first byte on, and in which no engine says that it gave up."""
_UNKNOWN: Final = Usage(None, None)
_NO_HEAD: Final = AnswerHead(0, (), None)


def tell_failure(owner: AnswerOwner, kind: FailureKind) -> None:
    """Answer a client that has not had a byte yet."""
    hint_s = owner.restart_hint_s if kind is FailureKind.CONNECT else None
    answer = owner.dialect.refuser.failed(kind, owner.request_id, hint_s)
    owner.exchange.respond(answer.status, answer.headers, answer.body)


def tell_broken(owner: AnswerOwner) -> None:
    """End the answer that our own code has failed on: a failure where nothing is sent, else a cut connection."""
    owner.break_off()
    if owner.exchange.started:
        owner.exchange.abort()
        return
    try:
        tell_failure(owner, FailureKind.BROKEN)
    except Exception:
        owner.exchange.abort()  # what cannot be said must not be waited for
        raise


class WholeAnswer:
    """Receives an answer that is no stream of events: kept until it is whole or too long to keep, then passed on; sound passes as it comes.

    What is passed on comes at its client's pace, so its deadline has ended. `bound` hears when it was given up; None where a stream was asked for.
    """

    def __init__(self, owner: AnswerOwner, bound: WholeBound | None = None) -> None:
        self._owner = owner
        self._bound = bound
        self._head = _NO_HEAD
        self._kept: list[bytes] = []
        self._size = 0
        self._started = self._flows = False
        self._ends: AnswerEnds | None = None  # once it is too long to keep

    def on_head(self, head: AnswerHead) -> None:
        """Refuse what no client of this dialect can use."""
        self._head = head
        self._owner.answered(head)
        if head.notes is not None and head.notes.kept is not None:
            return  # it has been sent to a client before
        if not is_usable(head, self._owner.dialect):
            self._owner.break_off()
            self._fail(FailureKind.PROTOCOL, Sent.REQUEST)
        elif head.status < 300 and media_type(head.headers).startswith(_AS_IT_COMES):
            self._flows = True
            self._head = head._replace(notes=None)  # its repeats are to be looked at too

    def on_data(self, data: bytes) -> None:
        """Keep it; beyond the bound pass on all but the newest piece, which may say that the engine gave up."""
        if self._flows:
            self._flow(data)
            return
        self._kept.append(data)
        if self._ends is not None:
            self._ends.add(data)
            self._owner.exchange.write(self._kept.pop(0))
            return
        self._size += len(data)
        if self._size > MOST_KEPT_BYTES:
            self._ends = AnswerEnds(_TAIL_BYTES)
            self._ends.add(b"".join(self._kept))
            self._note_id(self._kept[0])
            self._start()
            self._owner.widen()
            if len(self._kept) > 1:
                self._owner.exchange.write(b"".join(self._kept[:-1]))
                del self._kept[:-1]

    def _flow(self, data: bytes) -> None:
        """Pass sound on; its first byte is the first token, and from then on only silence can expire it."""
        begins, before = not self._started, self._size
        self._size += len(data)
        if begins and self._owner.exchange.started:  # signs of life have promised events
            self._owner.break_off()
            self._fail(FailureKind.PROTOCOL, Sent.REQUEST)
            return
        if begins:
            self._bound = None
            self._start()
        self._owner.exchange.write(data)
        if begins:
            self._owner.first_token()
        if before <= MOST_KEPT_BYTES < self._size:
            self._owner.widen()

    def _start(self) -> None:
        self._started = True
        self._owner.exchange.start(self._head.status, self._headers(), length=self._head.length)
        if self._bound is not None:
            self._bound.begun()
        self._owner.begun()

    def on_end(self, *, delimited: bool) -> None:
        """Pass the rest on and report how it went."""
        owner = self._owner
        dialect = owner.dialect
        rest = self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)
        if not self._started:
            self._head = as_its_body_says(self._head, rest, dialect)
        status = self._head.status
        end = rest if self._ends is None else self._ends.tail
        failure = flaw(
            self._head,
            end,
            dialect,
            delimited=delimited,
            is_all=not self._started,
            is_work=owner.is_work,
        )
        if failure is not None:
            self._fail(failure, Sent.REQUEST)
        elif status < 300:
            if not self._started:
                self._note_id(rest)
            self._pass_on(rest)
            usage = dialect.read_usage(rest) if self._ends is None else self._ends.usage(dialect)
            owner.finished(usage or _UNKNOWN)
        elif self._started or not (status in _UNREADABLE and owner.resend(rest)):
            kind, said = verdict(self._head, end)
            tell = self._complaint(kind, rest)
            if not self._started and is_left_undone(kind, said, own_key=owner.own_key):
                owner.unsent(kind, said, tell)
            else:
                tell()
                owner.failed(kind, Sent.REQUEST, said)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """Hand on what was never sent; else tell the client, or cut it off if it has had a part."""
        self._owner.because(detail)
        if sent is Sent.NONE:
            self._owner.unsent(kind)
            return
        if kind is FailureKind.TIMEOUT and self._bound is not None:
            self._bound.acted(self._owner.request_id, detail)
        self._fail(kind, sent)

    def on_raised(self) -> None:
        """End it as failed."""
        self._owner.broken()

    def _note_id(self, beginning: bytes) -> None:
        answer_id = self._owner.dialect.read_id(beginning)
        if answer_id is not None and self._head.status < 300:
            self._owner.stored(answer_id)

    def _pass_on(self, rest: bytes) -> None:
        exchange = self._owner.exchange
        if self._started:
            exchange.write(rest)
            exchange.finish()
        else:
            exchange.respond(self._head.status, self._headers(), rest)

    def _complaint(self, kind: FailureKind, rest: bytes) -> Callable[[], None]:
        """Return what tells the client of an engine's error: its own words, but for those about the gate's key and account."""
        told = told_instead(kind, self._head.status, own_key=self._owner.own_key)
        if told is None or self._started:
            return partial(self._pass_on, rest)
        return partial(tell_failure, self._owner, told)

    def _fail(self, kind: FailureKind, sent: Sent) -> None:
        if self._started:
            self._owner.exchange.abort()
            self._owner.failed(kind, Sent.BYTES)
        else:
            tell_failure(self._owner, kind)
            self._owner.failed(kind, sent)

    def _is_final(self) -> bool:
        """Whether this error says that no retry mends it."""
        head = self._head
        said = first(head.headers, b"x-should-retry").lower() == b"false"
        return said or lacks_credit(head.status, b"".join(self._kept))

    def _headers(self) -> Lines:
        """An engine's retry hint is passed on clamped, and only where it refused; of no use, only that."""
        owner, head = self._owner, self._head
        if head.status < 300:
            lines = lines_for_client(head, owner.request_id, own_key=owner.own_key)
            if not owner.extra:
                return lines
            if not may_tell_quotas(lines):
                return Lines(lines + header_lines(owner.extra, ANSWER_RESERVED))
        headers = beside_quotas(head.headers, owner.extra, own_key=owner.own_key) + owner.extra
        if head.status >= 400 and self._is_final():
            headers.append(NO_RETRY)
            return with_ids(header_lines(headers, ANSWER_RESERVED), owner.request_id)
        hint = hint_s(head.headers) if head.status in OVERLOADED else None
        if hint is not None:
            headers.append((b"retry-after", b"%d" % ceil(hint)))
            headers.append((b"retry-after-ms", b"%d" % ceil(hint * 1000.0)))
        return with_ids(header_lines(headers, ANSWER_RESERVED), owner.request_id)
