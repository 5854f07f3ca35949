"""One line connection as a pure machine: bytes and time in, wishes out. No socket, no loop, no clock.

A job lives so:

    share + manifest -> uploading -- last chunk verified --> asked --> done or aborted, and forgotten
                                          ^                    |
                                          +---- yielded <------+
                                      (the last chunk again)

While a job is asked (waiting or working) the connection answers everything else, and the job itself is kept alive
with `clarify/ok`. After a yield the payload stays here, so that resending the last chunk is enough to ask again.

Bounds: one line, `jobs` unfinished jobs, and the common byte budget for what they have uploaded. The idle clock
counts from the last *valid* frame: bytes that dribble in, and lines that are no frames, do not keep a connection.
"""

from collections.abc import Callable, Iterator
from typing import Final

from millgate.dialects.line import (
    NO_JOB,
    Chunk,
    Complaint,
    Fault,
    JobOutcome,
    Manifest,
    Need,
    OutcomeReason,
    Receipt,
    Request,
    Verb,
    read_request,
)
from millgate.servers.line import replies
from millgate.servers.line.buffer import Buffer, Reserves
from millgate.servers.line.contract import (
    Ask,
    Close,
    Drop,
    LineLimits,
    Readings,
    Send,
    SendAll,
    Wish,
)
from millgate.servers.line.intake import LineIntake, LineTooLongError
from millgate.servers.line.job import Job, State
from millgate.servers.line.replies import To
from millgate.servers.line.upload import Upload

_FULL_HINT_S: Final = 1.0
"""No memory for a chunk now: an upload elsewhere ends about that soon."""
_FORBIDDEN: Final = (Need.UNAUTHORIZED, Fault.BAD_ENVELOPE, OutcomeReason.BAD_FRAME)
_SILENT: Final = (Need.IDLE_TIMEOUT, Fault.TIMEOUT, OutcomeReason.IDLE_TIMEOUT, JobOutcome.TIMEOUT)


class Session:
    """One connection's side of the contract; every method that says something returns wishes to be carried out in order.

    `readings` are the numbers for replies, `budget` books what is uploaded, `next_mark` makes a number that no other
    job has; `trusts` judges the token of the first frame. Carry out each wish of `receive` before you take the next: a decision about a job must come before the
    answer to the frame behind it.
    """

    def __init__(
        self,
        limits: LineLimits,
        readings: Callable[[], Readings],
        budget: Reserves,
        next_mark: Callable[[], int],
        now: float,
        trusts: Callable[[str], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._readings = readings
        self._budget = budget
        self._next_mark = next_mark
        self._trusts = trusts
        self._intake = LineIntake(limits.line_bytes)
        self._jobs: dict[str, Job] = {}
        self._asked: dict[int, Job] = {}
        self._numbers = 0
        self._heard_at = now
        self._draining = False
        self.over = False
        self.bytes_in = 0

    # ---- what is asked of it

    @property
    def busy(self) -> bool:
        """Whether a job waits or works."""
        return bool(self._asked)

    def due(self) -> float:
        """Return when `tick` has something to do at the latest."""
        if self._jobs:
            return min(job.due for job in self._jobs.values())
        return self._heard_at + self._limits.idle_s

    # ---- input

    def receive(self, data: bytes, now: float) -> Iterator[Wish]:
        """Take bytes as they came."""
        self.bytes_in += len(data)
        try:
            for line in () if self.over else self._intake.lines(data):
                yield from self._take_line(line, now)
                if self.over:
                    return
        except LineTooLongError:
            yield from self._end(Need.LINE_TOO_LARGE, Fault.BAD_FRAME, OutcomeReason.BAD_FRAME)

    def end_input(self, now: float) -> Iterator[Wish]:
        """The peer sends nothing more: an unterminated last line is a line, and then nobody waits for anything."""
        if not self.over and self._intake:
            yield from self.receive(b"\n", now)
        yield from self.leave()
        yield Close()

    def leave(self) -> Iterator[Wish]:
        """The peer has gone: drop its jobs, wipe what it sent."""
        self.over = True
        self._intake.wipe()
        for job in tuple(self._jobs.values()):
            if job.state is State.ASKED:
                yield Drop(job.number)
            job.upload.buffer.wipe()
        self._jobs.clear()
        self._asked.clear()

    def tick(self, now: float) -> Iterator[Wish]:
        """Do what is due: keep jobs alive, give up uploads that stall, end a connection that says nothing."""
        for job in tuple(self._jobs.values()):
            if job.due > now:
                continue
            if job.state is State.ASKED:
                job.due = now + self._limits.keep_alive_s
                yield Send(replies.taken(job.to, self._core()))
            else:
                self._discard(job)
                yield Send(replies.aborted(job.to, self._core(), *_SILENT))
        if not self.over and not self._jobs and self.due() <= now:
            yield from self._end(*_SILENT)

    def drain(self) -> Iterator[Wish]:
        """Close as soon as no job waits or works."""
        self._draining = True
        if not self.over and not self._asked:
            yield from self.leave()
            yield Close()

    # ---- what became of a job

    def yielded(self, number: int, hint_s: float, now: float) -> Iterator[Wish]:
        """It got no slot; its last chunk may be sent again."""
        job = self._asked.pop(number, None)
        if job is None:
            return
        job.state = State.YIELDED
        job.due = now + hint_s + self._limits.idle_s
        self._heard_at = now
        yield Send(replies.yielded(job.to, self._core(), hint_s))
        yield from self._drained()

    def done(
        self, number: int, backend_ms: int, result: Buffer | None, content_type: str, now: float
    ) -> Iterator[Wish]:
        """It was executed; with `result` the answer goes out first."""
        job = self._forget(number, now)
        if job is None:
            if result is not None:
                result.wipe()
            return
        core = self._core()
        last = replies.done(job.to, core, backend_ms)
        if result is None:
            yield Send(last)
        else:
            payload_id = job.upload.manifest.payload_id
            lines = replies.result_lines(job.to, core, payload_id, content_type, result, last)
            yield SendAll(lines, result)
        yield from self._drained()

    def failed(
        self, number: int, need: Need, fault: Fault, reason: OutcomeReason, now: float
    ) -> Iterator[Wish]:
        """It will never be executed."""
        job = self._forget(number, now)
        if job is not None:
            yield Send(replies.aborted(job.to, self._core(), need, fault, reason))
            yield from self._drained()

    # ---- frames

    def _take_line(self, line: bytes, now: float) -> Iterator[Wish]:
        if not line.strip():
            return
        frame = read_request(line)
        if isinstance(frame, Complaint):
            to = To(frame.job, frame.seq, frame.ttl_ms)
            yield Send(replies.needed(to, self._core(), frame.need, frame.fault))
            return
        if self._trusts is not None:
            if not self._trusts(frame.token):
                yield from self._end(*_FORBIDDEN, to=_to(frame))
                return
            self._trusts = None
        self._heard_at = now
        if frame.verb is Verb.PING:
            yield Send(replies.pong(_to(frame), self._core()))
        elif frame.manifest is not None:
            yield from self._take_manifest(frame, frame.manifest, now)
        else:
            assert frame.chunk is not None
            yield from self._take_chunk(frame, frame.chunk, now)

    def _take_manifest(self, frame: Request, manifest: Manifest, now: float) -> Iterator[Wish]:
        """Begin an upload, or begin it anew."""
        job = self._jobs.get(frame.job)
        working = job is not None and job.state is State.ASKED
        if working or not manifest.is_valid(self._limits.payload_bytes):
            need, fault = Need.MANIFEST_INVALID, Fault.NEED_MANIFEST_FIX
            yield Send(replies.needed(_to(frame), self._core(), need, fault))
            return
        if job is not None:
            job.upload.buffer.wipe()
        elif len(self._jobs) >= self._limits.jobs:
            yield from self._end(Need.TOO_MANY_JOBS, Fault.QUOTA, OutcomeReason.QUOTA, to=_to(frame))
            return
        self._numbers += 1
        upload = Upload(manifest, Buffer(self._budget))
        self._jobs[frame.job] = job = Job(self._numbers, self._next_mark(), _to(frame), upload, now)
        job.progressed(self._limits, now)
        yield Send(replies.taken(_to(frame), self._core()))

    def _take_chunk(self, frame: Request, chunk: Chunk, now: float) -> Iterator[Wish]:
        job = self._jobs.get(frame.job)
        if job is None:
            yield self._need_more(frame, Need.MANIFEST_MISSING)
            return
        if job.state is State.ASKED:
            yield self._while_asked(job, frame, chunk)
            return
        trouble = job.upload.take(chunk)
        if trouble is Need.SERVER_BUSY:
            yield Send(replies.yielded(_to(frame), self._core(), _FULL_HINT_S))
        elif trouble is not None:
            yield self._need_more(frame, trouble)
        elif not job.upload.whole:
            job.to = _to(frame)
            job.progressed(self._limits, now)
            yield Send(replies.taken(_to(frame), self._core()))
        else:
            job.to = _to(frame)
            job.state = State.ASKED
            job.due = now + self._limits.keep_alive_s
            self._asked[job.number] = job
            yield Ask(job.number, job.mark, job.asked_at, job.upload.buffer, job.upload.manifest)
            job.asked_at = job.asked_at or now

    def _while_asked(self, job: Job, frame: Request, chunk: Chunk) -> Wish:
        """The last chunk of a job that is already waiting or working changes nothing."""
        if chunk.number == job.upload.manifest.chunks - 1:
            job.to = _to(frame)
            return Send(replies.taken(job.to, self._core()))
        return self._need_more(frame, Need.CHUNK_EXPECTED_INDEX)

    def _need_more(self, frame: Request, need: Need) -> Send:
        return Send(replies.needed(_to(frame), self._core(), need, Fault.NEED_MORE))

    # ---- endings

    def _end(
        self,
        need: Need,
        fault: Fault,
        reason: OutcomeReason,
        outcome: JobOutcome = JobOutcome.ABORTED,
        to: To | None = None,
    ) -> Iterator[Wish]:
        """Say why, drop everything, close."""
        yield Send(replies.aborted(to or To(NO_JOB), self._core(), need, fault, reason, outcome))
        yield from self.leave()
        yield Close()

    def _forget(self, number: int, now: float) -> Job | None:
        job = self._asked.pop(number, None)
        if job is not None:
            self._discard(job)
            self._heard_at = now
        return job

    def _discard(self, job: Job) -> None:
        job.upload.buffer.wipe()
        del self._jobs[job.to.job]

    def _drained(self) -> Iterator[Wish]:
        if self._draining and not self._asked:
            yield from self.leave()
            yield Close()

    def _core(self) -> list[Receipt]:
        return replies.core_receipts(self._readings(), self.bytes_in)


def _to(frame: Request) -> To:
    return To(frame.job, frame.seq, frame.ttl_ms)
