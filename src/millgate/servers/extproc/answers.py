"""An engine's answer that passes by here: echoed as it comes, its first token, its usage and its end read.

Only where Envoy's processing mode sends answers; in the mode that `millgate extproc envoy-config` prints it does not,
and the access log tells (`access_log`).
"""

from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from millgate.http1.client import AnswerHead
from millgate.servers.extproc import messages
from millgate.servers.extproc.contract import Outlet, Watcher
from millgate.servers.requests.judgement import AnswerJudge

_READ_BYTES: Final = 64 * 1024
"""So many are judged at once, as they come from a socket: Envoy may send more of them together."""


class AnswerWatch:
    """Echoes one answer to Envoy and tells its watcher how it went.

    `mode` is how Envoy sends its body; None where Envoy has not said, and the head of an answer will tell that it does.
    """

    def __init__(self, outlet: Outlet, watcher: Watcher, mode: int | None) -> None:
        self._outlet = outlet
        self._watcher: Watcher | None = watcher
        self._mode = mode
        self._sees = mode is not None and mode != messages.NO_BODY
        self._judge = AnswerJudge(watcher.dialect)
        self._heard = False

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
        self._judge.take_head(AnswerHead(messages.read_status(fields), fields, None))
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
            watcher.failed(judge.failure, judge.said)
