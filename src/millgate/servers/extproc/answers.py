"""An engine's answer that passes by here: echoed as it comes, its first token, its usage and its end read.

Only where Envoy's processing mode sends answers; in the mode that `millgate extproc envoy-config` prints it does not,
and the access log tells (`access_log`).
"""

from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from millgate.core.words import FailureKind
from millgate.dialects.contract import Usage
from millgate.dialects.sse import EventFloodError, Splitter
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import OVERLOADED, SAID_NOTHING, verdict
from millgate.servers.extproc import messages
from millgate.servers.extproc.contract import Outlet, Watcher
from millgate.servers.requests.answer_ends import AnswerEnds
from millgate.servers.requests.fields import EVENT_STREAM, media_type

_TAIL_BYTES: Final = 64 * 1024
"""What is kept of the end of an answer that is no stream: where its usage stands, and that the engine gave up."""


class AnswerWatch:
    """Echoes one answer to Envoy and tells its watcher how it went.

    `mode` is how Envoy sends its body; None where Envoy has not said, and the head of an answer will tell that it does.
    """

    def __init__(self, outlet: Outlet, watcher: Watcher, mode: int | None) -> None:
        self._outlet = outlet
        self._watcher: Watcher | None = watcher
        self._mode = mode
        self._sees = mode is not None and mode != messages.NO_BODY
        self._head = AnswerHead(0, (), None)
        self._splitter: Splitter | None = None
        self._ends = AnswerEnds(_TAIL_BYTES)
        self._heard = self._has_finished = self._is_flooded = False
        self._usage = Usage(None, None)

    def feed(self, kind: str | None, message: ProcessingRequest) -> None:
        """Take one message about the answer."""
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
            self._outlet.send(messages.answer_trailers())
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
        watcher = self._watcher
        self._outlet.send(messages.answer_head(watcher.extra if watcher is not None else ()))
        self._sees = self._mode != messages.NO_BODY
        self._head = AnswerHead(messages.read_status(fields), fields, None)
        is_stream = media_type(fields).startswith(EVENT_STREAM)
        if is_stream and 0 < self._head.status < 300:
            self._splitter = Splitter()
        if message.response_headers.end_of_stream:
            self._end()

    def _take(self, data: bytes) -> None:
        splitter = self._splitter
        if splitter is None:
            self._ends.add(data)
        elif self._watcher is not None and not self._is_flooded and not self._goes_on(splitter, data):
            try:
                pieces = splitter.feed(data)
            except EventFloodError:
                self._is_flooded = True
                splitter.rest.clear()
                return
            self._read(self._watcher, pieces)

    def _goes_on(self, splitter: Splitter, data: bytes) -> bool:
        """Whether these are whole events behind the first token of which each says that it does not end the answer: nearly all."""
        if not self._heard or splitter.rest or not data.endswith(b"\n\n") or data.find(b"\r") >= 0:
            return False
        assert self._watcher is not None
        mark = self._watcher.dialect.unfinished
        return all(mark in piece for piece in data[:-2].split(b"\n\n"))

    def _read(self, watcher: Watcher, pieces: list[bytes]) -> None:
        """Read events up to the one that ends the answer, and tell of that at once: many clients leave on it."""
        for piece in pieces:
            event = watcher.dialect.read_event(piece)
            failure: FailureKind | None = None
            if event.error is not None:
                is_refusal = event.error.status in OVERLOADED
                failure = FailureKind.REFUSED if is_refusal else FailureKind.ERROR_EVENT
            elif event.finish == "abort":
                failure = FailureKind.ABORT
            if failure is not None:
                self._watcher = None
                watcher.failed(failure, SAID_NOTHING)
                return
            if event.usage is not None:
                self._usage = event.usage.after(self._usage)
            if event.content and not self._heard:
                self._heard = True
                watcher.first_token()
            self._has_finished = self._has_finished or event.finish is not None
            if event.done:
                self._watcher = None
                watcher.whole(self._usage)
                return

    def _end(self) -> None:
        splitter, tail = self._splitter, self._ends.tail
        if splitter is not None and self._watcher is not None:
            self._read(self._watcher, [bytes(splitter.rest)])
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        if self._head.status >= 300 or not self._head.status:
            watcher.failed(*verdict(self._head, tail))
        elif splitter is not None and self._has_finished:
            watcher.whole(self._usage)
        elif splitter is not None:
            watcher.failed(FailureKind.PROTOCOL if self._is_flooded else FailureKind.BROKEN, SAID_NOTHING)
        elif watcher.dialect.is_aborted(tail):
            watcher.failed(FailureKind.ABORT, SAID_NOTHING)
        else:
            watcher.whole(self._ends.usage(watcher.dialect) or Usage(None, None))
