"""Requests that cost an engine nothing, like the list of models: passed on without a permit, a few at a time."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from millgate.core.words import FailureKind, Sent
from millgate.dialects.contract import Dialect, Usage
from millgate.http1.client import AnswerHead, Call
from millgate.http1.server.contract import Exchange
from millgate.runtime.verdicts import SAID_NOTHING, Said
from millgate.servers.http.answers import CallHolder, tell_broken, tell_failure
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.judgement import let_end
from millgate.servers.requests.routes import EngineRoute


class LightRequest(CallHolder):
    """Owns the answer to one light request; `done` is called once, when it is over, and of a stream `begun` when it begins.

    `send` posts it to one of `engines`: to the first, and to the second if the first cannot be reached.
    """

    is_work: ClassVar[bool] = False

    __slots__ = ("_begun", "_done", "_engines", "_send", "dialect", "exchange", "extra", "request_id")

    def __init__(
        self,
        exchange: Exchange,
        request_id: bytes,
        dialect: Dialect,
        done: Callable[[], None],
        begun: Callable[[], None] | None,
        send: Callable[[EngineRoute, "LightRequest"], Call],
        engines: Sequence[EngineRoute],
    ) -> None:
        self._call = None
        self._done: Callable[[], None] | None = done
        self._begun = begun
        self._send = send
        self._engines = list(engines[:2])
        self.exchange = exchange
        self.extra: Pairs = []
        self.request_id = request_id
        self.dialect = dialect

    def begin(self) -> None:
        """Ask the first engine that has not been asked."""
        try:
            self._call = self._send(self._engines.pop(0), self)
        except Exception:
            self.broken()
            raise

    def unsent(self, kind: FailureKind) -> None:
        """Ask the next engine, once; without one tell the client."""
        if self._done is None:
            return
        if self._engines:
            self.begin()
        else:
            tell_failure(self, kind)
            self._close()

    def answered(self, head: AnswerHead) -> None:
        """Keep the body: few of these are under way at a time, and not for long."""
        del head

    def begun(self) -> None:
        """Let a stream take its time, and no other request's place."""
        if self._call is not None and self._begun is not None:
            self._call.expire_at(None)
            self._begun()

    def first_token(self) -> None:
        """Nothing: it was counted when it was made."""

    def stored(self, answer_id: str) -> None:
        """Nothing: a client that asks by id knows it."""
        del answer_id

    def finished(self, usage: Usage) -> None:
        """Be over, but for the end of the framing."""
        del usage
        if self._done is not None:
            let_end(self._call)
        self._close()

    def failed(self, kind: FailureKind, sent: Sent, said: Said = SAID_NOTHING) -> None:
        """Be over."""
        del kind, sent, said
        self._close()

    def broken(self) -> None:
        """Tell the client that there is no answer, or cut it off, and be over."""
        if self._done is None:
            return
        try:
            tell_broken(self)
        finally:
            self._close()

    def resend(self, complaint: bytes) -> bool:
        """Nothing was added that could be taken back."""
        del complaint
        return False

    def gone(self) -> None:
        """Abort the call for a client that has left."""
        self.break_off()
        self._close()

    def _close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()
