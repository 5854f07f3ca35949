"""The supervisor: owns the addresses, keeps its workers running, and replaces them one by one without refusing a client.

It opens every door's sockets, one for each worker, and keeps them open for as long as it lives. So what has connected
to the socket of a worker that dies waits there, and a neighbour accepts it until there is a new worker. A worker that is
replaced on purpose stops accepting only when the new one on the same socket is ready.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from millgate.gateway.notify import ServiceNotifier
from millgate.gateway.serve import ProcessEnding
from millgate.gateway.workers.crew import Crew, WorkersPlan
from millgate.gateway.workers.messages import WorkerNews, WorkerVerb
from millgate.gateway.workers.process import WorkerFailedError, WorkerProcess, WorkerSilentError
from millgate.gateway.workers.stand_ins import StandIns
from millgate.gateway.workers.worker import RETIRES_WITHIN_S
from millgate.observe.logs import ProcessLog

MOST_QUICK_DEATHS: Final = 5
"""Workers that die one after the other, each within `QUICK_S` of being ready, or before it: starting more does not help."""
QUICK_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_SAID_EACH: Final = 12  # of starts that fail: a line a minute at the longest pause
REPORT_EVERY_S: Final = 2.0
"""What a worker that is killed has counted since its last report is lost."""
ASK_WITHIN_S: Final = 1.0
_ASKS: Final = 2
"""Of one look: after a pause of the whole machine the time of the first is up before an answer can come."""
HANGS_AFTER_LOOKS: Final = 8
"""A worker that answers none of so many in a row, in 32 s, is ended and replaced. While a machine is paused no look is counted."""
_TELL_EVERY_S: Final = 1.0


class WorkersLostError(Exception):
    """Workers die as fast as they are started."""


class Supervisor:
    """Runs the workers of one gate; build it on the loop that runs it, and call `run` once.

    `on_ready` is called once when all workers are ready, with what the last of them says.
    """

    def __init__(
        self,
        plan: WorkersPlan,
        log: ProcessLog,
        notifier: ServiceNotifier,
        on_ready: Callable[[WorkerNews], Awaitable[None]],
    ) -> None:
        self.crew = Crew(plan, self._answered, self._on_worker_end)
        self.restarts = 0
        """Workers that were started because another had died."""
        self._log = log
        self._notifier = notifier
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._asked, self._insisted = asyncio.Event(), asyncio.Event()
        self._failure: WorkersLostError | None = None
        self._quick_deaths = 0
        self._reloading: set[WorkerProcess] = set()
        self._silent: dict[WorkerProcess, float] = {}
        """Workers that were seen not to answer, and when each was heard last."""
        self._stand_ins = StandIns(self.crew)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replacing: asyncio.Task[None] | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether all workers drain."""
        return self._asked.is_set()

    async def run(self) -> ProcessEnding:
        """Serve until SIGTERM or SIGINT, then drain all workers; SIGHUP reloads them, SIGUSR2 replaces them one by one.

        Raises WorkerFailedError when a worker cannot begin to serve, WorkersLostError when they die again and again.
        """
        await self.crew.open()
        try:
            with self._signals():
                await self._start_all()
                if not self.is_leaving:
                    self._notifier.ready()
                    self._spawn(self._look())
                    await self._asked.wait()
                return await self._leave()
        finally:
            self._cancel_tasks()
            await self.crew.close()

    async def _start_all(self) -> None:
        """Start every worker, and return when all are ready or the process is to end."""
        starting = [self._loop.create_task(self.crew.start(slot)) for slot in range(self.crew.plan.count)]
        asked = self._loop.create_task(self._asked.wait())
        try:
            pending: set[asyncio.Task[Any]] = {asked, *starting}
            while not all(each.done() for each in starting) and not asked.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()  # raises what kept a worker from serving
            if not asked.done():
                await self._on_ready(starting[-1].result().ready.result())
        finally:
            for each in (asked, *starting):
                each.cancel()

    # ---- workers that die

    def _on_worker_end(self, worker: WorkerProcess) -> None:
        self._answered(worker)
        self._silent.pop(worker, None)
        if worker.ready_at and not worker.is_leaving and not self.is_leaving:
            words = {"code": worker.code, "why": worker.how_it_ended, "process": worker.process_id}
            self._log.error("worker died", worker=worker.number, **words)
            self._judge_death(self._loop.time() - worker.ready_at)
            if not self.crew.fills(worker.slot):  # its replacement may be being started
                self._spawn(self._revive(worker.slot))

    def _judge_death(self, lived_s: float) -> None:
        self._quick_deaths = self._quick_deaths + 1 if lived_s < QUICK_S else 1
        if self._quick_deaths >= MOST_QUICK_DEATHS:
            text = f"{self._quick_deaths} workers died one after the other, each within {QUICK_S:.0f} s"
            self._failure = WorkersLostError(text)
            self._asked.set()

    async def _revive(self, slot: int) -> None:
        """Have a neighbour accept for a slot without a worker until there is one again.

        While others serve it tries for ever: what keeps a worker from starting, a mistake in the file, must not end theirs.
        """
        failed = 0
        while not self.is_leaving:
            await self._stand_ins.cover(slot)
            if (tries := max(self._quick_deaths, failed + 1)) > 1:
                await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**tries))
            try:
                worker = await self.crew.start(slot)
            except WorkerFailedError as error:
                if failed % _SAID_EACH == 0:
                    self._log.error(
                        "worker did not start", problem=str(error), serving=len(self.crew.serving)
                    )
                failed += 1
                if not self.crew.serving:
                    self._judge_death(0.0)
                continue
            self.restarts += 1
            self._log.info("worker ready", worker=worker.number, process=worker.process_id)
            break
        await self._stand_ins.uncover(slot)

    # ---- replacing one by one

    async def _replace_all(self) -> None:
        """Replace every worker: a new one is ready before the old one accepts no more, and one leaves at a time."""
        for old in self.crew.serving:
            if old not in self.crew.serving:
                continue  # it has died since, and a new one takes its place
            try:
                new = await self.crew.start(old.slot)
            except WorkerFailedError as error:
                self._log.error("workers are not replaced: a new one did not start", problem=str(error))
                if old not in self.crew.serving:
                    self._spawn(self._revive(old.slot))
                return
            self._log.info("worker replaced", worker=old.number, by=new.number)
            if old in self.crew.serving:
                old.is_leaving = True
                with contextlib.suppress(WorkerSilentError):
                    await old.ask(WorkerVerb.RETIRE, within_s=RETIRES_WITHIN_S + 1.0)
                await self.crew.drain([old])
        self._log.info("all workers replaced")

    # ---- leaving

    async def _leave(self) -> ProcessEnding:
        """Drain all workers, unless a second signal insists; raises what made it leave."""
        self._cancel_tasks()
        workers = self.crew.all
        drain = self._loop.create_task(self.crew.drain(workers))
        insist = self._loop.create_task(self._insisted.wait())
        tell = self._loop.create_task(self._tell_draining())
        await asyncio.wait((drain, insist), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, insist, tell):
            task.cancel()
        if self._insisted.is_set():
            await self.crew.cut(workers)
        if self._failure is not None:
            raise self._failure
        was_cut = any(worker.code != 0 for worker in workers if worker.ready_at)  # others have served nothing
        return ProcessEnding.CUT_SHORT if was_cut else ProcessEnding.DRAINED

    async def _tell_draining(self) -> None:
        while True:
            self._notifier.stopping(f"draining, {len(self.crew.all)} workers left")
            await asyncio.sleep(_TELL_EVERY_S)

    # ---- reports

    async def _look(self) -> None:
        """Take a report of every worker again and again, and end one that does not answer for long."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            await asyncio.gather(*(self._look_at(worker) for worker in self.crew.running))

    async def _look_at(self, worker: WorkerProcess) -> None:
        for _ask in range(_ASKS):
            with contextlib.suppress(WorkerSilentError):
                await worker.take_report(ASK_WITHIN_S)
                if (since := self._silent.pop(worker, None)) is not None:
                    silent_s = round(worker.heard_at - since, 1)
                    self._log.info("worker answers again", worker=worker.number, silent_s=silent_s)
                    await self._stand_ins.uncover(worker.slot)
                return
        if worker.runs:
            worker.silent_looks += 1
            await self._on_silence(worker)

    async def _on_silence(self, worker: WorkerProcess) -> None:
        """Have a neighbour accept for a worker that does not answer, and end it when it has not for long."""
        if worker not in self._silent:
            self._silent[worker] = worker.heard_at
            self._log.warning("worker does not answer", worker=worker.number, process=worker.process_id)
        if worker.silent_looks >= HANGS_AFTER_LOOKS:
            self._log.error("worker hangs", worker=worker.number, process=worker.process_id)
            worker.signal(signal.SIGKILL)
        elif worker.serves:
            await self._stand_ins.cover(worker.slot)

    # ---- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self._on_end,
            signal.SIGINT: self._on_end,
            signal.SIGHUP: self._on_reload,
            signal.SIGUSR2: self._on_replace,
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        try:
            yield
        finally:
            for number in handlers:
                self._loop.remove_signal_handler(number)
            for number in (signal.SIGHUP, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)  # by default each would end what is about to end well

    def _on_end(self) -> None:
        (self._insisted if self.is_leaving else self._asked).set()

    def _on_reload(self) -> None:
        """Have all workers read the configuration anew, and open their logs anew."""
        if self.is_leaving:
            return
        if serving := self.crew.reload():
            self._notifier.reloading()
            self._reloading.update(serving)

    def _answered(self, worker: WorkerProcess) -> None:
        """Tell systemd that a reload is over when all workers have answered, or ended."""
        if worker in self._reloading:
            self._reloading.discard(worker)
            if not self._reloading:
                self._notifier.ready()

    def _on_replace(self) -> None:
        is_under_way = self._replacing is not None and not self._replacing.done()
        if self.is_leaving or is_under_way or not self.crew.serving:
            self._log.warning("workers are not replaced now", under_way=is_under_way)
            return
        self._log.info("replacing workers")
        self._replacing = self._spawn(self._replace_all())

    # ---- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cancel_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
