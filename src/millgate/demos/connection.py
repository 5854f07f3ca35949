"""The cheapest user that is still a real one: the gate's own client of engines, and of an answer only what the demos need.

One request costs this process 0.09 ms and one event 0.01 ms, where an SDK costs 2 ms a call. That is what
lets a demo offer twice an engine's capacity from the same two cores. What is read of an answer is its status, hint, first
token, and whether it ended whole.
"""

import asyncio
import re
from math import inf
from typing import Final, NamedTuple

from millgate.client.answers import read_hint_s
from millgate.core.words import FailureKind, Sent
from millgate.http1.client import AnswerHead, UpstreamPool, UpstreamSettings

TAIL_BYTES = 4096
"""The end of a stream that is kept: the last events, its finish reason and [DONE] are well within it."""
CONTENT = re.compile(rb'"content":\s*"[^"]')
FINISHED = re.compile(rb'"finish_reason":\s*"(?:stop|length)"')
DONE = b"data: [DONE]"
CHAT_PATH: Final = "/v1/chat/completions"
_HEADERS: Final = ((b"content-type", b"application/json"), (b"accept", b"text/event-stream"))


class AttemptAnswer(NamedTuple):
    """What one attempt got. Times are absolute loop seconds; `status` 0 means no answer head came.

    `whole` is a 200 with a finish reason, its [DONE] and its proper end; `hung_up` that the user lost patience.
    `hint_s` is how long the answer asks to wait, `retry` False when it says that coming back is useless.
    """

    status: int = 0
    first_token_at: float | None = None
    ended_at: float = 0.0
    whole: bool = False
    hung_up: bool = False
    hint_s: float | None = None
    retry: bool = True
    reason: str = ""


class GateAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class Endpoint:
    """A server as its users see it: any number of attempts at once over kept connections."""

    def __init__(self, address: GateAddress, path: str = CHAT_PATH) -> None:
        self.address = address
        self._target = path.encode()
        # How long an answer may be silent is the user's to say.
        self._pool = UpstreamPool(*address, settings=UpstreamSettings(chunk_idle_s=inf))

    async def ask(self, body: bytes, patience_s: float) -> AttemptAnswer:
        """Make one attempt; hang up when no token has come within the patience. Never raises on bad answers."""
        attempt = _Attempt(asyncio.get_running_loop())
        call = self._pool.request(b"POST", self._target, _HEADERS, body, attempt)
        patience = attempt.loop.call_later(patience_s, attempt.lose_patience)
        try:
            return await attempt.answer
        finally:
            patience.cancel()
            call.abort()  # where the user has left; an answer that is over it leaves alone

    def close(self) -> None:
        """Drop every connection."""
        self._pool.close()


class _Attempt:
    """How far one answer has come; the `Receiver` of its call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[AttemptAnswer] = loop.create_future()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._tail = b""
        self._first_token_at: float | None = None

    def on_head(self, head: AnswerHead) -> None:
        self._status = head.status
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}

    def on_data(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._first_token_at is None and self._status == 200 and CONTENT.search(self._tail):
            self._first_token_at = self.loop.time()

    def on_end(self, *, delimited: bool) -> None:
        """The answer has ended; one that only its connection's close ends is broken off."""
        whole = delimited and self._status == 200 and DONE in self._tail
        self._tell(whole=whole and FINISHED.search(self._tail) is not None)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        del kind, sent, detail
        self._tell()

    def on_raised(self) -> None:
        """What could not be read ends it as broken off."""
        self._tell()

    def lose_patience(self) -> None:
        """Hang up, unless the answer has begun."""
        if self._first_token_at is None:
            self._tell(hung_up=True)

    def _tell(self, *, whole: bool = False, hung_up: bool = False) -> None:
        if not self.answer.done():
            self.answer.set_result(
                AttemptAnswer(
                    status=self._status,
                    first_token_at=self._first_token_at,
                    ended_at=self.loop.time(),
                    whole=whole,
                    hung_up=hung_up,
                    hint_s=read_hint_s(self._headers),
                    retry=self._headers.get("x-should-retry") != "false",
                    reason=self._headers.get("x-millgate-reason", ""),
                )
            )
