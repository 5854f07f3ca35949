"""One worker as its supervisor sees it: a process, the channel to it, and the last report that it gave."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from millgate.cluster.frames import FrameConnection
from millgate.gateway.workers.messages import (
    UNASKED,
    News,
    WorkerNews,
    WorkerOrder,
    WorkerReport,
    WorkerStart,
    WorkerVerb,
    encode,
    read_news,
    read_reply,
    read_report,
)

COMMAND: Final = (sys.executable, "-P", "-m", "millgate.cli.worker")
"""It imports from where this process does: without `-P` a `redis.py` in the working directory were the library."""
ANSWERS_WITHIN_S: Final = 2.0
"""A command waits 5 s for the admin door (cli/asking), which may have to ask twice."""
_LAST_WORDS_S: Final = 1.0
_OURS: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
"""Variables by which systemd talks to the supervisor alone."""


class WorkerFailedError(Exception):
    """A worker could not begin to serve; `code` is its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class WorkerSilentError(Exception):
    """A worker does not answer, or could not do what it was ordered."""


class WorkerProcess:
    """One worker from its start to its end; `on_news` is told what it tells after it is ready, `on_end` that it has ended.

    `ready` fails with WorkerFailedError where it ends before. `code` is its exit code, None while it runs. `report` is the last
    one, None before the first; `silent_looks` counts those in a row that did not come, `heard_at` is the loop's time of its last
    word. `number` and `slot` are those of its start.
    """

    def __init__(
        self,
        start: WorkerStart,
        on_news: Callable[["WorkerProcess", WorkerNews], None],
        on_end: Callable[["WorkerProcess"], None],
    ) -> None:
        self.slot = start.slot
        self.number = start.number
        self.report: WorkerReport | None = None
        self.process_id = 0
        self.code: int | None = None
        self.ready_at = 0.0
        self.silent_looks = 0
        self.heard_at = 0.0
        self.is_leaving = False
        self._start = start
        self._on_news = on_news
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[WorkerNews] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._told: asyncio.Future[None] = self._loop.create_future()
        self._channel = FrameConnection(self._take, lambda: self._told.set_result(None))
        self._orders = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=(theirs.fileno(), *self._start.http, *self._start.line),
                stdin=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name not in _OURS}
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.process_id = process.pid
        await self._loop.create_unix_connection(lambda: self._channel, sock=ours)
        self.tell(WorkerVerb.START, encode(self._start))
        # At the end, for the crew learns of no end before it has listed the worker.
        self._watch = self._loop.create_task(self._await_end(process))

    def tell(self, verb: WorkerVerb, content: bytes) -> None:
        """Give an order that has no answer; nothing where the process has ended."""
        self._channel.send(encode(WorkerOrder(UNASKED, verb, content)))

    async def ask(self, verb: WorkerVerb, content: bytes = b"", within_s: float = ANSWERS_WITHIN_S) -> bytes:
        """Give an order and return what it brings; WorkerSilentError when that does not come in time."""
        self._orders = number = self._orders + 1
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = answer
        self._channel.send(encode(WorkerOrder(number, verb, content)))
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise WorkerSilentError(f"worker {self.number} does not answer") from None
        finally:
            self._waiting.pop(number, None)

    async def take_report(self, within_s: float = ANSWERS_WITHIN_S) -> WorkerReport:
        """Ask for a report and keep it; WorkerSilentError when none comes in time."""
        self.report = read_report(await self.ask(WorkerVerb.REPORT, within_s=within_s))
        return self.report

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a process that has not ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, number)

    @property
    def how_it_ended(self) -> str:
        """Say it in words for people: an exit code of -9 tells most of them nothing."""
        if self.code == -signal.SIGKILL:
            by = "by this gate: it hung" if self.silent_looks else "from outside, most often for memory"
            return f"killed {by}"
        code = self.code or 0
        return signal.strsignal(-code) or "a signal" if code < 0 else f"exit code {code}"

    @property
    def runs(self) -> bool:
        """Whether it is ready and has not ended; it may be leaving."""
        return self.ready_at > 0.0 and self.code is None

    @property
    def serves(self) -> bool:
        """Whether it is ready, has not ended and is not leaving."""
        return self.runs and not self.is_leaving

    @property
    def answers(self) -> bool:
        """Whether it runs, and has not left the last look at it without an answer."""
        return self.runs and not self.silent_looks

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard of it, 0 while it answers."""
        return self._loop.time() - self.heard_at if self.silent_looks else 0.0

    # ---- within

    async def _await_end(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        await asyncio.wait((self._told,), timeout=_LAST_WORDS_S)
        self.code = code
        self._on_end(self)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerSilentError(f"worker {self.number} has ended"))
        if not self.ready.done():
            text = f"worker {self.number} ended with {code} before it was ready"
            self._fail(WorkerFailedError(text, 1))
        self.ended.set_result(code)

    def _fail(self, error: WorkerFailedError) -> None:
        self.ready.set_exception(error)
        self.ready.exception()  # it is no fault that nothing waits for it any more

    def _take(self, frame: bytes) -> None:
        reply = read_reply(frame)
        self.silent_looks, self.heard_at = 0, self._loop.time()
        if reply.number == UNASKED:
            self._hear(read_news(reply.content))
            return
        waiting = self._waiting.get(reply.number)
        if waiting is None or waiting.done():
            return
        if reply.error:
            waiting.set_exception(WorkerSilentError(f"worker {self.number}: {reply.error}"))
        else:
            waiting.set_result(reply.content)

    def _hear(self, news: WorkerNews) -> None:
        if news.kind is News.READY and not self.ready.done():
            self.ready_at = self._loop.time()
            self.ready.set_result(news)
        elif news.kind is News.FAILED and not self.ready.done():
            self._fail(WorkerFailedError(news.text, news.code))
        elif news.kind is News.LEFT:
            self.report = read_report(news.running)
        else:
            self._on_news(self, news)
