"""How long one client may take: a single stamp per connection, compared by the sweep, no timer.

    reading a head or a body   408 and close         answering            no limit
    idle between requests      close                 nothing is read      cut
    lingering or closing       cut

A head's deadline is absolute; a body's moves with what has come, so that a slow link passes and a trickle does not. A
client that is to read an answer is looked at four times within its time, and has all of it again whenever it has taken
something.
"""

import enum
import math
from typing import Final

from millgate.http1.client.sweep import Sweep
from millgate.http1.server.contract import ServerLimits
from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.intake import BODY, HEAD, IDLE
from millgate.http1.server.wire import Wire

_LOOKS: Final = 4
_ALL_BYTES: Final = 1 << 62
"""More than any client can take: one that only lingers is given no more time."""


class TimeoutVerdict(enum.Enum):
    """What is to be done about a client whose time is over."""

    WAIT = enum.auto()
    CLOSE = enum.auto()
    CUT = enum.auto()
    REFUSE = enum.auto()


class ConnectionDeadlines:
    """One connection's deadline, `until`, and what it means when it passes."""

    def __init__(self, clock: Sweep, limits: ServerLimits, wire: Wire) -> None:
        self._clock = clock
        self._limits = limits
        self._wire = wire
        self._taken_bytes = 0
        self._cut_at = math.inf  # where its only duty is to read, when it is cut
        self._body_since = self._parted_at = 0.0
        self.phase = HEAD  # a client that connects and sends nothing is late too
        self.until = clock.now + limits.head_s

    def unlimited(self) -> None:
        """Wait as long as the answer takes."""
        self.until = math.inf

    def reading(self, phase: int) -> None:
        """Wait for the rest of a head or a body, or for the next request."""
        limits = self._limits
        self.phase = phase
        self._cut_at = math.inf
        if phase == IDLE:
            self.until = self._clock.now + limits.idle_s
        elif phase == HEAD:
            self.until = self._clock.now + limits.head_s
        else:
            self._body_since = self._clock.now
            self.until = self._clock.now + limits.body_s

    def writing(self) -> None:
        """Wait for a client that is to read what has been written, as long as it goes on reading."""
        self._taken_bytes = self._wire.taken_bytes
        self._cut_at = self._clock.now + self._limits.write_stall_s
        self.until = self._clock.now + self._limits.write_stall_s / _LOOKS

    def parting(self) -> None:
        """Wait for a client that has got its last answer."""
        self._taken_bytes = _ALL_BYTES
        self._parted_at = self._clock.now
        self._cut_at = self.until = self._clock.now + self._limits.linger_s

    def dropping(self) -> None:
        """Wait as long as more comes of a body that is refused, and no longer than a body may take."""
        limits, now = self._limits, self._clock.now
        self._cut_at = self.until = min(now + limits.linger_s, self._parted_at + limits.body_s)

    def forgive(self, lost_s: float) -> None:
        """Give back the time in which this process stood still, to the client that waited for it."""
        self.until += lost_s
        self._body_since += lost_s
        self._cut_at += lost_s

    def judge(self, now: float, body_bytes: int) -> TimeoutVerdict:
        """Say what follows from a deadline that has passed; a body that came fast enough is given more time."""
        if self._cut_at < math.inf:
            return self._judge_reader(now)
        if self.phase == IDLE:
            return TimeoutVerdict.CLOSE
        if self.phase == BODY:
            self.until = self._body_since + self._limits.body_s + body_bytes / self._limits.body_rate
            if self.until > now:
                return TimeoutVerdict.WAIT
        return TimeoutVerdict.REFUSE

    def _judge_reader(self, now: float) -> TimeoutVerdict:
        if self._wire.taken_bytes > self._taken_bytes:
            self.writing()
        elif now >= self._cut_at:
            return TimeoutVerdict.CUT
        else:
            self.until = min(self._cut_at, now + self._limits.write_stall_s / _LOOKS)
        return TimeoutVerdict.WAIT

    def complaint(self) -> UnacceptableError:
        """Say what has not come in time."""
        part, limit_s = (
            ("body", self._limits.body_s) if self.phase == BODY else ("header", self._limits.head_s)
        )
        return UnacceptableError(
            408, "request_timeout", f"the request {part} did not come within {limit_s:g} s"
        )
