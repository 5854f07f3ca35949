"""One line connection as a pure machine: bytes and time in, wishes out. No socket, no loop, no clock.

A job lives so:

    share + manifest -> uploading -- last chunk verified --> asked --> done or aborted, and forgotten
                                          ^                    |
                                          +---- yielded <------+
                                      (the last chunk again)

While a job is asked (waiting or working) the connection answers everything else, and the job itself is kept alive
with `clarify/ok`. After a yield the payload stays here, so that resending the last chunk is enough to ask again.

Bounds: one line, `jobs` unfinished jobs, and the common byte budget for lines and for what they have uploaded. The
idle clock counts from the last *valid* frame: bytes that dribble in, and lines that are no frames, do not keep a
connection.

Where a token is asked for, the first line has to be a short frame with it. Anything else ends the connection with one
reply, which shows none of the gate's numbers.
"""

from collections.abc import Callable, Iterator
from typing import Final

from millgate.dialects.line import (
    NO_JOB,
    Complaint,
    Fault,
    JobOutcome,
    Need,
    OutcomeReason,
    Receipt,
    read_request,
)
from millgate.dialects.line_requests import LineChunk, LineRequest, Manifest, Verb
from millgate.http1.server.budget import Share
from millgate.servers.line import replies
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import Close, ErrorWords, LineLimits, Readings, SendAll, SendBytes, Wish
from millgate.servers.line.intake import LineIntake, LineTooLongError, NoRoomError
from millgate.servers.line.job import FULL_HINT_S, Jobs, JobState, LineJob
from millgate.servers.line.replies import To

_FORBIDDEN: Final = (Need.UNAUTHORIZED, Fault.BAD_ENVELOPE, OutcomeReason.BAD_FRAME)
_FULL: Final = (Need.SERVER_BUSY, Fault.BUSY, OutcomeReason.BUSY)
_SILENT: Final = (Need.IDLE_TIMEOUT, Fault.TIMEOUT, OutcomeReason.IDLE_TIMEOUT, JobOutcome.TIMEOUT)


class Session:
    """One connection's side of the contract; every method that says something returns wishes to be carried out in order.

    `readings` are the numbers for replies, `lines` and `uploads` book what is kept of them, `next_mark` makes a number
    that no other job has; `trusts` judges the token of the first frame. Carry out each wish of `receive` before you take
    the next: a decision about a job must come before the answer to the frame behind it.
    """

    def __init__(
        self,
        limits: LineLimits,
        readings: Callable[[], Readings],
        lines: Share,
        uploads: Share,
        next_mark: Callable[[], int],
        now: float,
        trusts: Callable[[str], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._readings = readings
        self._trusts = trusts
        most_bytes = limits.line_bytes if trusts is None else limits.first_line_bytes
        self._intake = LineIntake(limits, lines, most_bytes)
        self._jobs = Jobs(limits, uploads, next_mark)
        self._heard_at = now
        self._draining = self.over = False
        self.bytes_in = 0

    # ---- what is asked of it

    @property
    def busy(self) -> bool:
        """Whether a job waits or works."""
        return bool(self._jobs.asked)

    @property
    def pending(self) -> bool:
        """Whether lines may be left for another turn: call `receive` without bytes."""
        return self._intake.pending

    def due(self) -> float:
        """Return when `tick` has something to do at the latest."""
        if self._jobs.named:
            return min(job.due for job in self._jobs.named.values())
        return self._heard_at + self._limits.idle_s

    # ---- input

    def receive(self, data: bytes, now: float) -> Iterator[Wish]:
        """Take bytes as they came, or none, and of the lines that have come as many as belong to one turn."""
        self.bytes_in += len(data)
        if not self.over:
            self._intake.feed(data)
        try:
            for line in self._intake.turn():
                yield from self._take_line(line, now)
                if self.over:
                    return
        except LineTooLongError:
            yield from self._end(Need.LINE_TOO_LARGE, Fault.BAD_FRAME, OutcomeReason.BAD_FRAME)
        except NoRoomError:
            yield SendBytes(replies.yielded(To(), self._core(), FULL_HINT_S))
            yield from self.leave()
            yield Close()

    def end_input(self, now: float) -> Iterator[Wish]:
        """The peer sends nothing more: an unterminated last line is a line, and then no job has a waiting client."""
        if not self.over and self._intake:
            yield from self.receive(b"\n", now)
        yield from self.leave()
        yield Close()

    def leave(self) -> Iterator[Wish]:
        """The peer has gone: drop its jobs, wipe what it sent."""
        self.over = True
        self._intake.wipe()
        yield from self._jobs.leave()

    def tick(self, now: float) -> Iterator[Wish]:
        """Do what is due: keep jobs alive, give up uploads that stall, end a connection that says nothing."""
        for job in [each for each in self._jobs.named.values() if each.due <= now]:
            if job.state is JobState.ASKED:
                job.due = now + self._limits.keep_alive_s
                yield SendBytes(replies.taken(job.to, self._core()))
            else:
                self._jobs.discard(job)
                yield SendBytes(replies.aborted(job.to, self._core(), *_SILENT))
        if not self.over and not self._jobs.named and self.due() <= now:
            yield from self._end(*_SILENT)

    def drain(self) -> Iterator[Wish]:
        """Close as soon as no job waits or works."""
        self._draining = True
        if not self.over:
            yield from self._drained()

    # ---- what became of a job

    def yielded(self, number: int, hint_s: float, now: float) -> Iterator[Wish]:
        """It got no slot; its last chunk may be sent again."""
        job = self._jobs.yielded(number, hint_s, now)
        if job is None:
            return
        self._heard_at = now
        yield SendBytes(replies.yielded(job.to, self._core(), hint_s))
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
            yield SendBytes(last)
        else:
            payload_id = job.upload.manifest.payload_id
            lines = replies.result_lines(job.to, core, payload_id, content_type, result, last)
            yield SendAll(lines, result)
        yield from self._drained()

    def failed(
        self, number: int, need: Need, fault: Fault, reason: OutcomeReason, words: ErrorWords, now: float
    ) -> Iterator[Wish]:
        """It will never be executed."""
        job = self._forget(number, now)
        if job is not None:
            yield SendBytes(replies.aborted(job.to, self._core(), need, fault, reason, words=words))
            yield from self._drained()

    # ---- frames

    def _take_line(self, line: bytes, now: float) -> Iterator[Wish]:
        if not line.strip() and self._trusts is None:
            return
        frame = read_request(line)
        if isinstance(frame, Complaint):
            yield from self._complain(frame)
            return
        if self._trusts is not None:
            if not self._trusts(frame.token):
                yield from self._end(*_FORBIDDEN, to=_to(frame))
                return
            self._trusts = None
            self._intake.most_bytes = self._limits.line_bytes
        self._heard_at = now
        if frame.verb is Verb.PING:
            yield SendBytes(replies.taken(_to(frame), self._core(), Verb.CONFIRM))
        elif frame.manifest is not None:
            yield from self._take_manifest(frame, frame.manifest, now)
        else:
            assert frame.chunk is not None
            yield self._take_chunk(frame, frame.chunk, now)

    def _complain(self, complaint: Complaint) -> Iterator[Wish]:
        """Say what is wrong with a line; before the token that is the end."""
        need, fault = complaint.need, complaint.fault
        to = To(complaint.job, complaint.seq, complaint.ttl_ms)
        if self._trusts is not None:
            yield from self._end(need, fault, OutcomeReason.BAD_FRAME, to=to)
        else:
            yield SendBytes(replies.needed(to, self._core(), need, fault))

    def _take_manifest(self, frame: LineRequest, manifest: Manifest, now: float) -> Iterator[Wish]:
        """Begin an upload, or begin it anew."""
        job = self._jobs.named.get(frame.job)
        working = job is not None and job.state is JobState.ASKED
        words = self._jobs.too_large(manifest)
        if working or words or not manifest.is_valid():
            need, fault = Need.MANIFEST_INVALID, Fault.NEED_MANIFEST_FIX
            yield SendBytes(replies.needed(_to(frame), self._core(), need, fault, words))
        elif job is None and len(self._jobs.named) >= self._limits.jobs:
            yield from self._end(Need.TOO_MANY_JOBS, Fault.QUOTA, OutcomeReason.QUOTA, to=_to(frame))
        else:
            yield from self._jobs.begin(_to(frame), manifest, now)
            yield SendBytes(replies.taken(_to(frame), self._core()))

    def _take_chunk(self, frame: LineRequest, chunk: LineChunk, now: float) -> Wish:
        job = self._jobs.named.get(frame.job)
        if job is None:
            return self._need_more(frame, Need.MANIFEST_MISSING)
        if job.state is JobState.ASKED:
            return self._while_asked(job, frame, chunk)
        trouble = job.upload.take(chunk)
        if trouble is not None and trouble is not Need.SERVER_BUSY:
            return self._need_more(frame, trouble)
        job.to = _to(frame)
        if trouble is not None:
            return self._without_room(job, now)
        if job.upload.whole:
            return self._jobs.ask(job, now)
        job.progressed(self._limits, now)
        return SendBytes(replies.taken(job.to, self._core()))

    def _without_room(self, job: LineJob, now: float) -> Wish:
        """Have a job wait for room, but not for good: what others hold may never come free, and it holds a part of the room itself."""
        hint_s, most_s = job.waits(self._limits, now), self._limits.room_s
        if now - job.refused_at < most_s:
            return SendBytes(replies.yielded(job.to, self._core(), hint_s))
        self._jobs.discard(job)
        words = ErrorWords(f"no room in limits.byte_budget for {most_s:.0f} s; send the job again later")
        return SendBytes(replies.aborted(job.to, self._core(), *_FULL, words=words, hint_s=hint_s))

    def _while_asked(self, job: LineJob, frame: LineRequest, chunk: LineChunk) -> Wish:
        """The last chunk of a job that is already waiting or working changes nothing."""
        if chunk.number == job.upload.manifest.chunks - 1:
            job.to = _to(frame)
            return SendBytes(replies.taken(job.to, self._core()))
        return self._need_more(frame, Need.CHUNK_EXPECTED_INDEX)

    def _need_more(self, frame: LineRequest, need: Need) -> SendBytes:
        return SendBytes(replies.needed(_to(frame), self._core(), need, Fault.NEED_MORE))

    # ---- endings

    def _end(
        self,
        need: Need,
        fault: Fault,
        reason: OutcomeReason,
        outcome: JobOutcome = JobOutcome.ABORTED,
        to: To | None = None,
    ) -> Iterator[Wish]:
        yield SendBytes(replies.aborted(to or To(NO_JOB), self._core(), need, fault, reason, outcome))
        yield from self.leave()
        yield Close()

    def _forget(self, number: int, now: float) -> LineJob | None:
        job = self._jobs.forget(number)
        if job is not None:
            self._heard_at = now
        return job

    def _drained(self) -> Iterator[Wish]:
        if self._draining and not self.busy:
            # On another connection; a job that the peer has begun meanwhile has not run either.
            away = replies.yielded(To(), self._core(), FULL_HINT_S)
            yield from self.leave()
            yield Close(away)

    def _core(self) -> list[Receipt]:
        """Return the gate's numbers; a stranger gets none."""
        return replies.core_receipts(self._readings(), self.bytes_in) if self._trusts is None else []


def _to(frame: LineRequest) -> To:
    return To(frame.job, frame.seq, frame.ttl_ms)
