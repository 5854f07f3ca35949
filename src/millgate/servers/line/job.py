"""One unfinished upload of a session."""

from enum import Enum, auto

from millgate.servers.line.contract import LineLimits
from millgate.servers.line.replies import To
from millgate.servers.line.upload import Upload


class State(Enum):
    """Where it stands; see the head of `session`."""

    UPLOADING = auto()
    ASKED = auto()
    YIELDED = auto()


class Job:
    """One unfinished upload; `to` is its newest frame, `due` when it is to be kept alive or given up."""

    __slots__ = ("asked_at", "begun_at", "due", "mark", "number", "state", "to", "upload")

    def __init__(self, number: int, mark: int, to: To, upload: Upload, now: float) -> None:
        self.number = number
        self.mark = mark
        self.to = to
        self.upload = upload
        self.state = State.UPLOADING
        self.begun_at = now
        self.asked_at: float | None = None
        self.due = now

    def progressed(self, limits: LineLimits, now: float) -> None:
        """Give it time for the next chunk, unless it dribbles."""
        by_rate = self.begun_at + len(self.upload.buffer) / limits.upload_rate
        self.due = min(now, by_rate) + limits.idle_s
