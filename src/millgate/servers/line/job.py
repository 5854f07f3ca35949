"""The unfinished uploads of a session: every chunk is checked before it is kept, in memory that does not grow with the check."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final

from millgate.dialects.line import Need
from millgate.dialects.line_requests import LineChunk, Manifest
from millgate.http1.server.budget import Share
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import Ask, Drop, LineLimits, Withdraw
from millgate.servers.line.replies import To

FULL_HINT_S: Final = 1.0
"""No memory for a chunk now: an upload elsewhere ends about that soon. A gate that drains says it, too, as over HTTP."""
_LONGEST_FULL_HINT_S: Final = 5.0
"""The published client sleeps no longer."""


class Upload:
    """Takes the chunks of one manifest in order; a chunk that is refused may be sent again.

    The last chunk stays known by its digest: after a yield it is sent again, to ask again.
    """

    def __init__(self, manifest: Manifest, buffer: Buffer) -> None:
        self.manifest = manifest
        self.buffer = buffer
        self._digest = hashlib.sha256()
        self._next = 0
        self._last_digest = b""

    @property
    def whole(self) -> bool:
        """Whether every chunk is here and verified."""
        return self._next == self.manifest.chunks

    def take(self, chunk: LineChunk) -> Need | None:
        """Keep this chunk, or return what is wrong with it; SERVER_BUSY when there is no memory for it now."""
        manifest = self.manifest
        if chunk.payload_id != manifest.payload_id:
            return Need.PAYLOAD_ID_MISMATCH
        again = self.whole
        if chunk.number != (manifest.chunks - 1 if again else self._next):
            return Need.CHUNK_EXPECTED_INDEX
        data = _decode(chunk.bytes_b64)
        if data is None:
            return Need.CHUNK_B64_INVALID
        if len(data) > manifest.chunk_bytes:
            return Need.CHUNK_TOO_LARGE
        digest = hashlib.sha256(data)
        if digest.hexdigest() != chunk.sha256.lower():
            return Need.CHUNK_HASH_MISMATCH
        if again:
            return None if digest.digest() == self._last_digest else Need.CHUNK_HASH_MISMATCH
        return self._append(data, digest.digest())

    def _append(self, data: bytes, digest: bytes) -> Need | None:
        manifest = self.manifest
        size = len(self.buffer) + len(data)
        if size > manifest.total_bytes:
            return Need.PAYLOAD_TOO_LARGE
        whole_digest = self._digest.copy()
        whole_digest.update(data)
        if self._next == manifest.chunks - 1:
            if size != manifest.total_bytes:
                return Need.PAYLOAD_SIZE_MISMATCH
            if manifest.sha256 and whole_digest.hexdigest() != manifest.sha256.lower():
                return Need.PAYLOAD_HASH_MISMATCH
        if not self.buffer.append(data, max(0, manifest.most_bytes - size)):
            return Need.SERVER_BUSY
        self._digest = whole_digest
        self._last_digest = digest
        self._next += 1
        if self.whole:
            self.buffer.settle()
        return None


def _decode(text: str) -> bytes | None:
    """Decode standard base64, line ends allowed as the published decoder allows them; None for anything else."""
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except ValueError:
        return None


class JobState(Enum):
    """Where it stands; see the head of `session`."""

    UPLOADING = auto()
    ASKED = auto()
    YIELDED = auto()


class LineJob:
    """One unfinished upload; `to` is its newest frame, `due` when it is to be kept alive or given up."""

    def __init__(self, number: int, mark: int, to: To, upload: Upload, now: float) -> None:
        self.number = number
        self.mark = mark
        self.to = to
        self.upload = upload
        self.state = JobState.UPLOADING
        self.begun_at = self.refused_at = now
        self.asked_at: float | None = None
        self.refusals = 0
        self.due = now

    def waits(self, limits: LineLimits, now: float) -> float:
        """Begin its time anew, as it has no room yet; return when to ask again: its client asks 50 times, so later each time.

        `refused_at` is when it began to find none.
        """
        refusals = self.refusals + 1
        if refusals == 1:
            self.refused_at = now
        self.begun_at = now
        self.progressed(limits, now)
        self.refusals = refusals
        return min(refusals * FULL_HINT_S, _LONGEST_FULL_HINT_S)

    def progressed(self, limits: LineLimits, now: float) -> None:
        """Give it time for the next chunk, unless it dribbles."""
        self.refusals = 0
        by_rate = self.begun_at + len(self.upload.buffer) / limits.upload_rate
        self.due = min(now, by_rate) + limits.idle_s


class Jobs:
    """All of them by name, and those that wait or work by number too.

    `next_mark` makes a number that no other job has.
    """

    def __init__(self, limits: LineLimits, share: Share, next_mark: Callable[[], int]) -> None:
        self._limits = limits
        self._share = share
        self._next_mark = next_mark
        self._numbers = 0
        self.named: dict[str, LineJob] = {}
        self.asked: dict[int, LineJob] = {}

    def too_large(self, manifest: Manifest) -> str:
        """Say what is wrong with a payload for which there will never be room, if that is so."""
        of_door, of_budget = self._limits.payload_bytes, self._share.most_bytes
        if manifest.most_bytes <= min(of_door, of_budget):
            return ""
        source = "half of limits.byte_budget" if of_budget < of_door else "the bound of the line door"
        return f"the payload has {manifest.most_bytes:,} bytes, the most is {min(of_door, of_budget):,}: {source}"

    def begin(self, to: To, manifest: Manifest, now: float) -> Iterator[Withdraw]:
        """Begin an upload, or begin it anew, and withdraw what was told when to come back."""
        before = self.named.get(to.job)
        if before is not None:
            if before.state is JobState.YIELDED:
                yield Withdraw((before.mark,))
            before.upload.buffer.wipe()
        self._numbers += 1
        upload = Upload(manifest, Buffer(self._share))
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
