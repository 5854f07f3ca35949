"""An engine's answer that passes by here: echoed as it comes, its first token and its usage read.

Only where Envoy's processing mode sends answers; in the mode that `millgate extproc envoy-config` prints it does not,
and the access log tells (`access_log`).
"""

from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from millgate.core.words import FailureKind
from millgate.dialects.contract import Usage
from millgate.dialects.sse import EventFloodError, Splitter
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import SAID_NOTHING, verdict
from millgate.servers.extproc import messages
from millgate.servers.extproc.contract import Outlet, Watcher
from millgate.servers.requests.answer_ends import AnswerEnds
from millgate.servers.requests.fields import EVENT_STREAM, media_type

_TAIL_BYTES: Final = 8 * 1024
"""What is kept of an answer's end."""
_UNKNOWN: Final = Usage(None, None)


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
        if media_type(fields).startswith(EVENT_STREAM):
            self._splitter = Splitter()
        if message.response_headers.end_of_stream:
            self._end()

    def _take(self, data: bytes) -> None:
        self._ends.add(data)
        if self._splitter is not None and self._watcher is not None:
            self._seek_content(self._splitter, self._watcher, data)

    def _seek_content(self, splitter: Splitter, watcher: Watcher, data: bytes) -> None:
        """Look for the first event with content; what comes after it is not taken apart."""
        try:
            pieces = splitter.feed(data)
        except EventFloodError:
            self._splitter = None
            return
        if any(watcher.dialect.read_event(piece).content for piece in pieces):
            self._splitter = None
            watcher.first_token()

    def _end(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        tail = self._ends.tail
        if self._head.status >= 300 or not self._head.status:
            watcher.failed(*verdict(self._head, tail))
        elif media_type(self._head.headers).startswith(EVENT_STREAM):
            self._judge_stream(watcher, tail)
        elif watcher.dialect.is_aborted(tail):
            watcher.failed(FailureKind.ABORT, SAID_NOTHING)
        else:
            watcher.whole(self._ends.usage(watcher.dialect) or _UNKNOWN)

    def _judge_stream(self, watcher: Watcher, tail: bytes) -> None:
        """Read the last events: whole with its terminal event, else broken; usage stands in one of them."""
        usage, ended = _UNKNOWN, False
        for piece in tail.replace(b"\r\n", b"\n").split(b"\n\n"):
            event = watcher.dialect.read_event(piece + b"\n\n")
            if event.error is not None:
                watcher.failed(FailureKind.ERROR_EVENT, SAID_NOTHING)
                return
            if event.usage is not None:
                usage = event.usage.after(usage)
            ended = ended or event.done or event.finish is not None
        if ended:
            watcher.whole(usage.after(self._ends.usage(watcher.dialect) or _UNKNOWN))
        else:
            watcher.failed(FailureKind.BROKEN, SAID_NOTHING)
