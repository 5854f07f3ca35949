"""How long one client may take: a single stamp per connection, compared by the sweep, no timer.

    reading a head or a body   408 and close         answering            no limit
    idle between requests      close                 client too slow      cut
    lingering or closing       cut

A head's deadline is absolute; a body's moves with what has come, so that a slow link passes and a trickle does not.
"""

import enum
import math

from millgate.http1.client.sweep import Sweep
from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.intake import BODY, HEAD, IDLE
from millgate.http1.server.limits import ServerLimits


class TimeoutVerdict(enum.Enum):
    """What is to be done about a client whose time is over."""

    WAIT = enum.auto()
    CLOSE = enum.auto()
    CUT = enum.auto()
    REFUSE = enum.auto()


class ConnectionDeadlines:
    """One connection's deadline, `until`, and what it means when it passes."""

    __slots__ = ("_body_since", "_clock", "_limits", "_parting", "phase", "until")

    def __init__(self, clock: Sweep, limits: ServerLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._parting = False
        self._body_since = 0.0
        self.phase = HEAD  # a client that connects and sends nothing is late too
        self.until = clock.now + limits.head_s

    def unlimited(self) -> None:
        """Wait as long as the answer takes."""
        self.until = math.inf

    def reading(self, phase: int) -> None:
        """Wait for the rest of a head or a body, or for the next request."""
        limits = self._limits
        self.phase = phase
        self._parting = False
        if phase == IDLE:
            self.until = self._clock.now + limits.idle_s
        elif phase == HEAD:
            self.until = self._clock.now + limits.head_s
        else:
            self._body_since = self._clock.now
            self.until = self._clock.now + limits.body_s

    def writing(self) -> None:
        """Wait for a client that is to read what has been written."""
        self._parting = True
        self.until = self._clock.now + self._limits.write_stall_s

    def parting(self) -> None:
        """Wait for a client that has got its last answer."""
        self._parting = True
        self.until = self._clock.now + self._limits.linger_s

    def forgive(self, lost_s: float) -> None:
        """Give back the time in which this process stood still, to the client that waited for it."""
        self.until += lost_s
        self._body_since += lost_s

    def judge(self, now: float, body_bytes: int) -> TimeoutVerdict:
        """Say what follows from a deadline that has passed; a body that came fast enough is given more time."""
        if self._parting:
            return TimeoutVerdict.CUT
        if self.phase == IDLE:
            return TimeoutVerdict.CLOSE
        if self.phase == BODY:
            self.until = self._body_since + self._limits.body_s + body_bytes / self._limits.body_rate
            if self.until > now:
                return TimeoutVerdict.WAIT
        return TimeoutVerdict.REFUSE

    def complaint(self) -> UnacceptableError:
        """Say what has not come in time."""
        part, limit_s = (
            ("body", self._limits.body_s) if self.phase == BODY else ("header", self._limits.head_s)
        )
        return UnacceptableError(
            408, "request_timeout", f"the request {part} did not come within {limit_s:g} s"
        )
