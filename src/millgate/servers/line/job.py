"""The unfinished uploads of a session."""

from collections.abc import Callable, Iterator
from enum import Enum, auto

from millgate.dialects.line import Manifest
from millgate.servers.line.buffer import Buffer, Reserves
from millgate.servers.line.contract import Ask, Drop, LineLimits, Withdraw
from millgate.servers.line.replies import To
from millgate.servers.line.upload import Upload


class JobState(Enum):
    """Where it stands; see the head of `session`."""

    UPLOADING = auto()
    ASKED = auto()
    YIELDED = auto()


class LineJob:
    """One unfinished upload; `to` is its newest frame, `due` when it is to be kept alive or given up."""

    __slots__ = ("asked_at", "begun_at", "due", "mark", "number", "state", "to", "upload")

    def __init__(self, number: int, mark: int, to: To, upload: Upload, now: float) -> None:
        self.number = number
        self.mark = mark
        self.to = to
        self.upload = upload
        self.state = JobState.UPLOADING
        self.begun_at = now
        self.asked_at: float | None = None
        self.due = now

    def progressed(self, limits: LineLimits, now: float) -> None:
        """Give it time for the next chunk, unless it dribbles."""
        by_rate = self.begun_at + len(self.upload.buffer) / limits.upload_rate
        self.due = min(now, by_rate) + limits.idle_s


class Jobs:
    """All of them by name, and those that wait or work by number too.

    `next_mark` makes a number that no other job has.
    """

    def __init__(self, limits: LineLimits, budget: Reserves, next_mark: Callable[[], int]) -> None:
        self._limits = limits
        self._budget = budget
        self._next_mark = next_mark
        self._numbers = 0
        self.named: dict[str, LineJob] = {}
        self.asked: dict[int, LineJob] = {}

    def begin(self, to: To, manifest: Manifest, now: float) -> None:
        """Begin an upload, or begin it anew."""
        before = self.named.get(to.job)
        if before is not None:
            before.upload.buffer.wipe()
        self._numbers += 1
        upload = Upload(manifest, Buffer(self._budget))
        self.named[to.job] = job = LineJob(self._numbers, self._next_mark(), to, upload, now)
        job.progressed(self._limits, now)

    def ask(self, job: LineJob, now: float) -> Ask:
        """Let a whole upload ask for a slot."""
        job.state = JobState.ASKED
        job.due = now + self._limits.keep_alive_s
        self.asked[job.number] = job
        ask = Ask(job.number, job.mark, job.asked_at, job.upload.buffer, job.upload.manifest)
        job.asked_at = job.asked_at or now
        return ask

    def yielded(self, number: int, hint_s: float, now: float) -> LineJob | None:
        """Keep a job that got no slot until it has had time to come back."""
        job = self.asked.pop(number, None)
        if job is not None:
            job.state = JobState.YIELDED
            job.due = now + hint_s + self._limits.idle_s
        return job

    def forget(self, number: int) -> LineJob | None:
        """Drop and return a job that was waiting or working."""
        job = self.asked.pop(number, None)
        if job is not None:
            self.discard(job)
        return job

    def discard(self, job: LineJob) -> None:
        """Wipe and drop a job that neither waits nor works."""
        job.upload.buffer.wipe()
        del self.named[job.to.job]

    def leave(self) -> Iterator[Drop | Withdraw]:
        """Wipe and drop them all, and withdraw those that were told when to come back."""
        away = tuple(job.mark for job in self.named.values() if job.state is JobState.YIELDED)
        if away:
            yield Withdraw(away)
        for job in tuple(self.named.values()):
            if job.state is JobState.ASKED:
                yield Drop(job.number)
            job.upload.buffer.wipe()
        self.named.clear()
        self.asked.clear()
