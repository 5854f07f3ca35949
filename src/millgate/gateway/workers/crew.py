"""The workers of one gate: started, listed, drained and killed; what those have counted that have ended is kept."""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millgate import __version__
from millgate.cluster.contract import Store
from millgate.cluster.socket_store import StoreServer
from millgate.gateway.workers.messages import (
    News,
    Recipe,
    WorkerNews,
    WorkerStart,
    WorkerVerb,
    encode,
    read_kept,
)
from millgate.gateway.workers.process import WorkerFailedError, WorkerProcess
from millgate.observe.merging import merged
from millgate.observe.prometheus import EndedCounts
from millgate.servers.http.kept_answers import Keeper, KeptAnswers
from millgate.servers.line.contract import Readings

_READY_WITHIN_S: Final = 60.0
"""A worker is ready 2 s after its start; on a machine that is busy with a model's start it may take ten times that."""
_DRAIN_MARGIN_S: Final = 5.0
_CUT_WITHIN_S: Final = 2.0
_MOST_ROWS: Final = 10_000
"""Of stored answers in one frame: 3 MB where ids are as long as they may be."""


@dataclass(frozen=True, slots=True)
class WorkersPlan:
    """What the supervisor is to run: `count` workers, and how each of them makes its configuration at first (`recipe`).

    `http` and `line` are the doors' sockets, one for each worker; `line` is empty without a line door. `store` is the one that
    the workers share through this process, None where the configuration names one of its own.
    """

    count: int
    recipe: Recipe
    ticket_key: bytes
    http: Sequence[socket.socket]
    line: Sequence[socket.socket]
    store: Store | None


class Crew:
    """All workers that have not ended. `on_reloaded` and `on_end` are called with the worker that it is about."""

    def __init__(
        self,
        plan: WorkersPlan,
        on_reloaded: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        self.plan = plan
        self.ended_counts, self.ended_line = EndedCounts(), Readings(0, 0, 0, 0)
        """Of workers that serve no more."""
        self._kept = KeptAnswers()
        """Of all workers: one that is started learns them, and then what the others tell."""
        self._store = None if plan.store is None else StoreServer(plan.store)
        self._on_reloaded = on_reloaded
        self._on_end = on_end
        self._workers: list[WorkerProcess] = []
        self._beginning: set[int] = set()
        """Slots whose worker has no process yet, or one that is not listed yet."""
        self._numbers = 0
        self._grace_s = 0.0
        self._recipe = plan.recipe
        self._reloads = 0

    @property
    def all(self) -> list[WorkerProcess]:
        """Every worker that has not ended, ready or not."""
        return list(self._workers)

    @property
    def running(self) -> list[WorkerProcess]:
        """Those that are ready, the leaving ones included, by number."""
        return sorted((each for each in self._workers if each.runs), key=lambda each: each.number)

    @property
    def serving(self) -> list[WorkerProcess]:
        """Those that are ready and not leaving, by slot."""
        return sorted((each for each in self._workers if each.serves), key=lambda each: each.slot)

    def fills(self, slot: int) -> bool:
        """Return whether a worker that is to stay has this slot, from the moment when its start was asked for."""
        has_one = any(worker.slot == slot and not worker.is_leaving for worker in self._workers)
        return has_one or slot in self._beginning

    async def open(self) -> None:
        """Serve the store to workers that are started from now on."""
        if self._store is not None:
            await self._store.start()

    async def start(self, slot: int) -> WorkerProcess:
        """Start a worker and return it when it is ready; WorkerFailedError where it never is."""
        self._numbers += 1
        start = WorkerStart(
            slot=slot,
            number=self._numbers,
            http=tuple(sock.fileno() for sock in self.plan.http),
            line=tuple(sock.fileno() for sock in self.plan.line),
            store="" if self._store is None else self._store.address,
            ticket_key=self.plan.ticket_key,
            recipe=self._recipe,
            version=__version__,
        )
        reloads = self._reloads
        worker = WorkerProcess(start, self._hear, self._ended)
        self._beginning.add(slot)
        try:
            await worker.begin()
        except OSError as error:
            raise WorkerFailedError(f"no process can be started: {error.strerror}", 1) from None
        finally:
            self._beginning.discard(slot)
        self._workers.append(worker)
        kept = [(answer_id, *keeper) for answer_id, keeper in self._kept]
        for at in range(0, len(kept), _MOST_ROWS):
            worker.tell(WorkerVerb.KEPT, encode(kept[at : at + _MOST_ROWS]))
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                news = await asyncio.shield(worker.ready)
        except TimeoutError:
            worker.is_leaving = True
            worker.signal(signal.SIGKILL)
            text = f"worker {worker.number} was not ready within {_READY_WITHIN_S:.0f} s"
            raise WorkerFailedError(text, 1) from None
        self._grace_s = max(self._grace_s, news.grace_s)
        if reloads != self._reloads:  # it could not hear it yet
            worker.signal(signal.SIGHUP)
        return worker

    def reload(self) -> list[WorkerProcess]:
        """Have those that serve, and those that are about to, read the configuration anew; return the former."""
        self._reloads += 1
        serving = self.serving
        for worker in serving:
            worker.signal(signal.SIGHUP)
        return serving

    async def drain(self, workers: Sequence[WorkerProcess]) -> None:
        """Have these workers drain, and kill those that take longer than they may."""
        for worker in workers:
            worker.signal(signal.SIGTERM)
        await _all_ended(workers, self._grace_s + _DRAIN_MARGIN_S)
        for worker in workers:
            worker.signal(signal.SIGKILL)
        await _all_ended(workers, _CUT_WITHIN_S)

    async def cut(self, workers: Sequence[WorkerProcess]) -> None:
        """Have workers that drain cut what they serve, and return when they have ended."""
        for worker in workers:
            worker.signal(signal.SIGINT)
        await _all_ended(workers, _CUT_WITHIN_S)

    async def close(self) -> None:
        """Leave no worker behind, and close the store."""
        left = self.all
        for worker in left:
            worker.is_leaving = True
            worker.signal(signal.SIGKILL)
        await _all_ended(left, _CUT_WITHIN_S)
        if self._store is not None:
            await self._store.close()

    def _hear(self, worker: WorkerProcess, news: WorkerNews) -> None:
        if news.kind is News.RELOADED:
            self._grace_s = max(self._grace_s, news.grace_s)
            self._recipe = self._recipe._replace(text=news.text)
            self._on_reloaded(worker)
        elif news.kind is News.KEPT:
            for answer_id, engine, tenant in read_kept(news.running):
                self._kept.add(answer_id, Keeper(engine, tenant))
            self._pass_on(worker, WorkerVerb.KEPT, news.running)
        elif news.kind is News.TOLD:
            self._pass_on(worker, WorkerVerb.TOLD, news.running)

    def _pass_on(self, worker: WorkerProcess, verb: WorkerVerb, content: bytes) -> None:
        for other in self._workers:
            if other is not worker:
                other.tell(verb, content)

    def _ended(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        if worker.report is not None:
            self.ended_counts.add(worker.report.records)
            if (line := worker.report.line) is not None:
                self.ended_line = merged([self.ended_line, line._replace(inflight=0, cap=0)])
        self._on_end(worker)


async def _all_ended(workers: Sequence[WorkerProcess], within_s: float) -> None:
    ended = [worker.ended for worker in workers if not worker.ended.done()]
    if ended:
        await asyncio.wait(ended, timeout=within_s)
