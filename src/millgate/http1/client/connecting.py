"""Makes a connection without a task: each step is taken at once, because a turn of a busy loop takes milliseconds.

A task begins, and goes on after each wait, one turn of its loop later than it could. With a thousand streams a turn
is some hundred events long, and a new stream would wait for three of them before its request is sent.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millgate.http1.client.connection import UpstreamCall


def reason_of(error: BaseException) -> str:
    """Return in words why there is no connection."""
    late = isinstance(error, asyncio.CancelledError)
    return "no answer in time" if late else str(error) or type(error).__name__


class Connecting:
    """Drives the loop's own coroutine for `call`, to be given up at `by`; `failed` hears why there is no connection.

    `failed` is never called before `start` has returned, and neither after `stop`.
    """

    def __init__(
        self,
        call: UpstreamCall,
        by: float,
        coroutine: Coroutine[Any, Any, Any],
        failed: Callable[["Connecting", str], None],
    ) -> None:
        self.call = call
        self.by = by
        self._coroutine = coroutine
        self._failed = failed
        self._awaited: asyncio.Future[Any] | None = None
        self._started = False
        self._stopped = self._late = False

    def start(self) -> None:
        """Take the first step now."""
        self._step()
        self._started = True

    def stop(self) -> None:
        """Give it up as a task is given up: what it waits for is cancelled, and it closes what it has opened."""
        self._stopped = True
        self.expire()

    def expire(self) -> None:
        """Have it fail for its time, in its own words: whatever it waits for is cancelled."""
        self._late = True
        if self._awaited is not None:
            self._awaited.cancel()

    def _step(self, _awaited: object = None) -> None:
        """Go on to the next wait."""
        try:
            self._awaited = awaited = self._coroutine.send(None)
        except StopIteration:
            self._awaited = None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a name that cannot be one is no OSError
            self._awaited = None
            reason = reason_of(error)
            if self._started:
                self._end(reason)
            else:
                asyncio.get_running_loop().call_soon(self._end, reason)
        else:
            if awaited is None:
                asyncio.get_running_loop().call_soon(self._step)
            else:
                awaited.add_done_callback(self._step)
                if self._late:
                    awaited.cancel()

    def _end(self, reason: str) -> None:
        if not self._stopped:
            self._failed(self, reason)
