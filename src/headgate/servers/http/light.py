"""Requests that cost an engine nothing, like the list of models: passed on without a permit, a few at a time."""

from collections.abc import Callable

from headgate.core.words import FailureKind, Sent
from headgate.dialects.contract import Dialect
from headgate.dialects.refusals import Refuser
from headgate.runtime.upstream import Call
from headgate.servers.http1.contract import Exchange


class LightRequest:
    """Owns the answer to one light request; `done` is called once, when it is over."""

    __slots__ = ("_call", "_done", "dialect", "exchange", "refuser", "request_id")

    def __init__(
        self,
        exchange: Exchange,
        request_id: bytes,
        dialect: Dialect,
        refuser: Refuser,
        done: Callable[[], None],
    ) -> None:
        self._call: Call | None = None
        self._done: Callable[[], None] | None = done
        self.exchange = exchange
        self.request_id = request_id
        self.dialect = dialect
        self.refuser = refuser

    def began(self, call: Call) -> None:
        """Take the call to the engine."""
        self._call = call

    def begun(self) -> None:
        """Nothing: a light answer is whole."""

    def first_token(self) -> None:
        """Nothing: a light answer has no tokens."""

    def finished(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Be over."""
        del prompt_tokens, output_tokens
        self._close()

    def failed(self, kind: FailureKind, sent: Sent, hint_s: float | None = None) -> None:
        """Be over."""
        del kind, sent, hint_s
        self._close()

    def break_off(self) -> None:
        """Abort the call."""
        if self._call is not None:
            self._call.abort()

    def resend(self, complaint: bytes) -> bool:
        """Nothing was added that could be taken back."""
        del complaint
        return False

    def gone(self) -> None:
        """Abort the call for a client that has left."""
        self.break_off()
        self._close()

    def slow(self, slow: bool) -> None:
        """Read from the engine only as fast as the client reads."""
        if self._call is not None:
            if slow:
                self._call.pause()
            else:
                self._call.resume()

    def _close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()
