"""The admin door of a gate of several workers: each question goes to all of them, and one answer is made of theirs.

Numbers are put together by `observe/merging`; what belongs to one request comes from the worker that has it. An imagined
request is judged by the worker that would tell it the best.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client import PROCESS_COLLECTOR, Metric, ProcessCollector
from prometheus_client.registry import Collector

from millgate.gateway.workers.messages import WorkerReport, WorkerVerb
from millgate.gateway.workers.process import ANSWERS_WITHIN_S, WorkerProcess
from millgate.gateway.workers.supervisor import Supervisor
from millgate.observe.explanation import ExplainedAttempt
from millgate.observe.live.banner import Banner, seconds, with_workers
from millgate.observe.live.decision_history import EVERY_S, HistoryPoint
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.picture import Picture
from millgate.observe.live.recent import DecisionRow
from millgate.observe.merging import merged
from millgate.observe.prometheus import Exposition, HeptaminiCollector, Records
from millgate.servers.admin.answers import DecisionQuery, ExplainQuery, plain
from millgate.servers.admin.source import Readiness, SourceSilentError, add_standings, add_traffic
from millgate.servers.line.contract import Readings

_Answer = TypeVar("_Answer")
_SOON_S: Final = 1.0
"""The page, probes and scrapers, which ask again every few seconds, do not wait for a worker that hangs: the last report serves."""
_NONE: Final = "no worker of this gate answers just now"
_RANKS: Final = {"admit": 0, "queue": 1, "yield": 2}


class WorkersSource:
    """Answers of the admin door, gathered from the workers that serve (see `AdminSource`)."""

    keeps_decisions = True

    def __init__(self, supervisor: Supervisor, count: int, *, shows_line: bool = False) -> None:
        self._supervisor = supervisor
        self._count = count
        self._painter = _Painter(self)
        self.feed: LiveFeed[Any] | None = LiveFeed(self._painter)
        self._records: Records | None = None
        self._line: Readings | None = None
        self._exposition = Exposition(lambda: self._seen.snapshot)
        self._exposition.read = lambda: self._seen
        self._exposition.ended = supervisor.crew.ended_counts
        self._exposition.processes = ProcessesCollector(
            lambda: [each.process_id for each in supervisor.crew.running]
        )
        if shows_line:
            self._exposition.add(HeptaminiCollector(lambda: self._line))

    @property
    def _seen(self) -> Records:
        return _known(self._records)

    async def readiness(self) -> Readiness:
        """Return whether work should come here: one worker that is ready is enough; the detail is by worker."""
        detail: dict[str, str] = {}
        is_ready = False
        for worker, report in await self._reports():
            name = f"worker {worker.number}"
            if worker.answers:
                detail |= {f"{name} {part}": state for part, state in report.detail.items()}
                is_ready |= report.ready and worker.serves
            else:
                detail[name] = f"no answer for {seconds(worker.silent_s)}"
        detail["workers"] = f"{len(self._answering())} of {self._count}"
        return Readiness(is_ready and not self._supervisor.is_leaving, detail)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all workers together, and what those have counted that serve no more."""
        await self._gather()
        return await self._exposition.render_in_pieces(accept)

    async def state(self) -> dict[str, Any]:
        """Return the state of all workers together; `workers` names each."""
        reports = await self._gather()
        records = self._seen
        state: dict[str, Any] = plain(records.snapshot)
        state |= {
            "host": reports[0][1].host,
            "verdict": plain(self.judged(merged([report.banner for _, report in reports]))),
        }
        if records.traffic is not None:
            add_traffic(state, records.traffic)
        if (cluster := _known(records.service).cluster) is not None:
            state["cluster"] = plain(cluster)
        add_standings(state, reports[0][1].standings)
        state["workers"] = [
            {
                "number": worker.number,
                "process": worker.process_id,
                "ready": report.ready and worker.answers,
                "silent_s": round(worker.silent_s, 1),
            }
            for worker, report in reports
        ]
        return state

    async def explanation(self, query: ExplainQuery) -> dict[str, Any]:
        """Return what the worker says that lets such an arrival in soonest, and its number."""
        answers = await self._ask_all(
            WorkerVerb.EXPLAIN, msgspec.json.encode(query), dict[str, Any], msgspec.json
        )
        if not answers:
            raise SourceSilentError(_NONE)
        worker, told = min(answers, key=lambda each: _RANKS[each[1]["decision"]["kind"]])
        return {**told, "worker": worker.number}

    async def attempts(self, wanted: str) -> Sequence[ExplainedAttempt]:
        """Return the attempts under a request id or an attempt's number over all workers, newest first."""
        answers = await self._ask_all(WorkerVerb.WHY, wanted.encode(), list[ExplainedAttempt])
        if not any(found for _, found in answers) and (silence := self._silence()):
            raise SourceSilentError(
                f"no decision is kept under this id where it could be asked for; {silence}"
            )
        return sorted((each for _, found in answers for each in found), key=lambda each: -each.at)

    async def decisions(self, query: DecisionQuery) -> Sequence[DecisionRow]:
        """Return the kept decisions of all workers that a query wants, newest first."""
        answers = await self._ask_all(WorkerVerb.DECISIONS, msgspec.json.encode(query), list[DecisionRow])
        found = [row for worker, rows in answers for row in numbered(rows, worker.number)]
        return sorted(found, key=lambda row: -row.at)[: query.most]

    async def open_feed(self) -> None:
        """Have the present picture and the last ten minutes at hand."""
        await self._painter.prepare()

    # ---- workers that do not answer, or are missing

    def judged(self, banner: Banner) -> Banner:
        """Return the sentence that also says what is wrong with the workers."""
        missing = self._count - len(self._supervisor.crew.serving)
        parts = (self._silence(), f"{missing} of {self._count} workers missing" if missing > 0 else "")
        said = [part for part in parts if part]
        if self._supervisor.is_leaving or not said:
            return banner
        return with_workers(banner, said, is_down=not self._answering())

    def _answering(self) -> list[WorkerProcess]:
        return [each for each in self._supervisor.crew.serving if each.answers]

    def _silence(self) -> str:
        """Name the workers that do not answer, nothing where all do."""
        silent = [each for each in self._supervisor.crew.serving if not each.answers]
        longest = seconds(max((each.silent_s for each in silent), default=0.0))
        names = ", ".join([f"worker {each.number} (process {each.process_id})" for each in silent])
        return f"no answer for {longest} from {names}" if names else ""

    # ---- for the page

    async def picture(self) -> Picture | None:
        """Return the picture of all workers together, None while none answers."""
        answers = await self._ask_all(WorkerVerb.PICTURE, b"", Picture, within_s=_SOON_S)
        pictures = [
            replace(picture, decisions=tuple(numbered(picture.decisions, worker.number)))
            for worker, picture in answers
        ]
        return merged(pictures) if pictures else None

    async def history(self) -> tuple[HistoryPoint, ...]:
        """Return the last ten minutes of all workers together, oldest first."""
        answers = await self._ask_all(WorkerVerb.HISTORY, b"", list[HistoryPoint])
        return merged_history([points for _, points in answers])

    # ---- asking

    async def _gather(self) -> list[tuple[WorkerProcess, WorkerReport]]:
        """Take reports, and keep their records put together; raises SourceSilentError when there are none."""
        reports = await self._reports()
        if not reports:
            raise SourceSilentError(_NONE)
        records = merged([report.records for _, report in reports])
        service = replace(
            _known(records.service),
            workers=len(self._answering()),
            workers_wanted=self._count,
            worker_restarts=self._supervisor.restarts,
        )
        threads = records.threads + threading.active_count()
        self._records = records._replace(threads=threads, service=service)
        lines = [report.line for _, report in reports if report.line is not None]
        self._line = merged([self._supervisor.crew.ended_line, *lines]) if lines else None
        return reports

    async def _reports(self) -> list[tuple[WorkerProcess, WorkerReport]]:
        """Return the last report of each worker that runs, taken now where it answers."""
        workers = self._supervisor.crew.running
        asked = (each.take_report(_SOON_S) for each in workers if each.answers)
        await asyncio.gather(*asked, return_exceptions=True)
        return [(worker, worker.report) for worker in workers if worker.runs and worker.report is not None]

    async def _ask_all(
        self,
        verb: WorkerVerb,
        content: bytes,
        kind: type[_Answer],
        coding: Any = msgspec.msgpack,
        within_s: float = ANSWERS_WITHIN_S,
    ) -> list[tuple[WorkerProcess, _Answer]]:
        """Return what each worker that runs answers; one that is silent is left out, and not asked while it is known to be."""
        workers = [each for each in self._supervisor.crew.running if each.answers]
        answers = await asyncio.gather(
            *(each.ask(verb, content, within_s) for each in workers), return_exceptions=True
        )
        return [
            (worker, coding.decode(answer, type=kind))
            for worker, answer in zip(workers, answers, strict=True)
            if isinstance(answer, bytes)
        ]


class ProcessesCollector(Collector):
    """The standard `process_*` metrics of this process and its workers, summed, the bounds too; the beginning is this one's."""

    def __init__(self, workers: Callable[[], Sequence[int]]) -> None:
        self._workers = workers
        self._cpu_s: dict[int, float] = {}
        self._ended_cpu_s = 0.0

    def collect(self) -> list[Metric]:
        """Return the families of this process with the values of all; the CPU time of workers that have ended stays in them."""
        found = list(PROCESS_COLLECTOR.collect())
        others = {number: _values(number) for number in self._workers()}
        cpu_s = {number: values.get(_CPU, 0.0) for number, values in others.items()}
        self._ended_cpu_s += sum(value for number, value in self._cpu_s.items() if number not in cpu_s)
        self._cpu_s = cpu_s
        parts = [*others.values(), {_CPU: self._ended_cpu_s}]
        for each in found:
            each.samples = [
                sample._replace(value=sample.value + sum(part.get(sample.name, 0.0) for part in parts))
                for sample in each.samples
            ]
        return found


_CPU: Final = "process_cpu_seconds_total"
_BEGAN: Final = "process_start_time_seconds"


def _values(process_id: int) -> dict[str, float]:
    collector = ProcessCollector(pid=lambda: process_id, registry=None)
    samples = [sample for each in collector.collect() for sample in each.samples]
    return {sample.name: sample.value for sample in samples if sample.name != _BEGAN}


class _Painter:
    """Shows the pictures of all workers: each frame is the one that was asked for at the frame before."""

    def __init__(self, source: WorkersSource) -> None:
        self._source = source
        self._picture: Picture | None = None
        self._history: tuple[HistoryPoint, ...] = ()
        self._asking: asyncio.Task[None] | None = None

    def paint(self) -> Picture:
        """Return the last picture, and ask for the next one."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        picture = _known(self._picture)
        return replace(picture, banner=self._source.judged(picture.banner))

    def history(self) -> tuple[HistoryPoint, ...]:
        return self._history

    async def prepare(self) -> None:
        """Have a picture and the history before the first frame; raises SourceSilentError when there is none."""
        await self._ask()
        self._history = await self._source.history()
        if self._picture is None:
            raise SourceSilentError(_NONE)

    async def _ask(self) -> None:
        picture = await self._source.picture()
        if picture is not None:
            self._picture = picture


def numbered(rows: Sequence[DecisionRow], worker: int) -> list[DecisionRow]:
    """Return decisions with numbers that no other worker's have."""
    return [replace(row, number=row.number + worker * _ROWS_PER_WORKER) for row in rows]


_ROWS_PER_WORKER: Final = 1_000_000_000


def merged_history(histories: Sequence[Sequence[HistoryPoint]]) -> tuple[HistoryPoint, ...]:
    """Return the steps of the longest history, each with those of the others that ended within half a step of it."""
    known = sorted((points for points in histories if points), key=len, reverse=True)
    if not known:
        return ()
    first, *others = known
    return tuple(
        merged(
            [step, *(each for each in (_nearest(points, step.at) for points in others) if each is not None)]
        )
        for step in first
    )


def _nearest(points: Sequence[HistoryPoint], at: float) -> HistoryPoint | None:
    nearest = min(points, key=lambda point: abs(point.at - at))
    return nearest if abs(nearest.at - at) <= EVERY_S / 2.0 else None


def _known(value: _Answer | None) -> _Answer:
    assert value is not None, "asked for before anything was gathered"
    return value
