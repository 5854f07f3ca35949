"""The loop of every process of a gate: uvloop, but no silent name server or file server keeps a process from its end.

uvloop looks names up in four threads of its own and waits for them when it is closed, so that four names without an answer
keep every other one waiting, too. Here each look-up has a daemon thread, as each read of a file has, and each name one at a time.
"""

import socket
from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from errno import EAGAIN
from functools import partial
from ssl import SSLError
from threading import Thread
from typing import Any

from uvloop import Loop

from millgate.sockets.listening import is_ip


class GateLoop(Loop):
    """uvloop with look-ups of names that end with the process."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[tuple[object, ...], Future[Any]] = {}

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        """Return the addresses of this name as `socket.getaddrinfo` does; raises OSError."""
        question = (host, port, *sorted(hints.items()))
        answer = self._asked.get(question)
        if answer is None or answer.done():
            try:  # several may wait for it: one of them who leaves must not cancel it
                answer = self._asked[question] = _begin(partial(socket.getaddrinfo, host, port, **hints))
            except RuntimeError as error:  # no thread is left; the next question tries again
                raise OSError(EAGAIN, str(error)) from None
        return await wrap_future(answer)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Call this in a daemon thread of its own where no executor is named; raises RuntimeError when no thread is left."""
        theirs = super().run_in_executor
        return theirs(executor, func, *args) if executor else wrap_future(_begin(partial(func, *args)))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **how: Any
    ) -> Any:
        """Connect as uvloop does, to the first address of a name that takes the connection."""
        connect = partial(super().create_connection, protocol_factory, **how)
        if host is None or is_ip(host.partition("%")[0]):
            return await connect(host, port)
        if how.get("ssl") and not how.get("server_hostname"):
            connect = partial(connect, server_hostname=host)
        refused = OSError(f"{host} has no address")
        for *_kind, (address, *_port) in await self.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await connect(address, port)
            except SSLError:
                raise
            except OSError as error:
                refused = error
        raise refused


def _begin(call: Callable[[], Any]) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_running_or_notify_cancel()
    Thread(target=_answer, args=(answer, call), daemon=True).start()
    return answer


def _answer(answer: Future[Any], call: Callable[[], Any]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
        answer.set_exception(error)
