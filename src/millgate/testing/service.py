"""How the kit's servers run: inside an event loop with `async with`, or beside synchronous code with `with`."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

_T = TypeVar("_T")

START_WITHIN_S = 10.0
"""How long `with` waits for a service to listen, or to end; a loopback server needs a millisecond."""


class Startable(Protocol):
    """What `with` and `async with` ask of a service."""

    async def start(self) -> None:
        """Listen; return when clients can connect."""

    async def stop(self) -> None:
        """Close every connection and stop listening."""


class LoopThread:
    """One event loop in one daemon thread, for services that synchronous code uses."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="millgate testing", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run one coroutine in the thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_WITHIN_S)

    def call(self, work: Callable[[], _T]) -> _T:
        """Call a plain function in the thread and return its result."""

        async def called() -> _T:
            return work()

        return self.run(called())

    def end(self) -> None:
        """Stop the loop and wait for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_WITHIN_S)
        self.loop.close()


class Service:
    """Base of the kit's servers: gives a class with `start` and `stop` both kinds of `with`.

    In a `with` block the service runs in a thread of its own; `on_loop` reaches into that thread.
    """

    _thread: LoopThread | None = None

    async def start(self) -> None:
        """Listen; return when clients can connect."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        raise NotImplementedError

    def on_loop(self, work: Callable[[], _T]) -> _T:
        """Call `work` where the service runs: in its thread, or at once inside an event loop."""
        return self._thread.call(work) if self._thread is not None else work()

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._thread.run(self.start())
        except BaseException:
            self._leave_thread()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        try:
            self._thread.run(self.stop())
        finally:
            self._leave_thread()

    def _leave_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
