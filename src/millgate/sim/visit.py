"""One user's request on its way: which attempt is under way, and what has come of it so far."""

from typing import TYPE_CHECKING, Protocol

from millgate.core.decisions import Yield
from millgate.sim.jobs import Job

if TYPE_CHECKING:
    from millgate.sim.engines.contract import Station


class User(Protocol):
    """The listener to what becomes of a visit."""

    def yielded(self, visit: "Visit", decision: Yield) -> None:
        """The attempt was refused."""

    def first_token(self, visit: "Visit") -> None:
        """The answer begins."""

    def failed(self, visit: "Visit") -> None:
        """The engine failed the attempt."""

    def answered(self, visit: "Visit") -> None:
        """The answer is whole."""


class Visit:
    """A request over all its attempts; `attempt` is 0 while none is under way, `first_token_at` and `lane` are the last one's. Virtual seconds."""

    def __init__(self, job: Job, user: User, now: float) -> None:
        self.job = job
        self.user = user
        self.first_at = self.asked_at = now
        self.attempt = 0
        self.attempts = 0
        self.number = 0
        self.station: Station | None = None
        self.first_token_at: float | None = None
        self.lane = job.lane
        self.hinted = False

    def fingerprint(self) -> int:
        """Return what a gateway would hash out of the body: equal for every attempt, different between users."""
        return self.number
