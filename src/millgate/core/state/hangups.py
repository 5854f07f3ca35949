"""When does an engine let go of a client that has left? After a learned lag, or, where it ignores hang-ups, at the end."""

from typing import Final

from millgate.core.measure.ewma import Ewma
from millgate.core.state.permit import Permit
from millgate.core.words import IgnoresHangups

# How long an engine takes to notice a hang-up before it has been measured (design section 4).
PRIOR_ABORT_LAG_S: Final = 0.3
# An engine that has not let go after this many abort lags ignores hang-ups.
_IGNORING_LAGS: Final = 3.0


class Hangups:
    """What is known of one engine: its abort `lag`, and whether hang-ups are `ignored`, as configured or as learned."""

    __slots__ = ("_configured", "ignored", "lag")

    def __init__(self, configured: IgnoresHangups) -> None:
        self._configured = configured
        self.ignored = configured is IgnoresHangups.YES
        self.lag = Ewma(PRIOR_ABORT_LAG_S, memory=20.0)

    def reconfigured(self, configured: IgnoresHangups) -> None:
        """Take this setting; what was learned stays where it says to learn."""
        self._configured = configured
        if configured is not IgnoresHangups.AUTO:
            self.ignored = configured is IgnoresHangups.YES

    def departs_at(self, permit: Permit) -> float:
        """Return when the permit of a client that has left is expected to end: after the engine's abort lag.

        `due_at` is when the permit ends at the latest. Where a gauge will show that the engine has stopped, that is the
        whole rest of the answer, and is expected only of an engine that is known to ignore hang-ups.
        """
        if permit.gone_at is None or self.ignored:
            return permit.due_at
        return min(permit.due_at, permit.gone_at + self.lag.mean)

    def learn(self, permit: Permit, seen_at: float, *, ignoring: bool) -> None:
        """Learn from one reading of the gauge: how long the engine took to let go, or that it does not."""
        assert permit.gone_at is not None
        lag_s = seen_at - permit.gone_at
        patience_s = _IGNORING_LAGS * self.lag.mean
        auto = self._configured is IgnoresHangups.AUTO
        if ignoring:
            self.ignored = self.ignored or (auto and lag_s > patience_s)
        elif lag_s <= patience_s:
            self.lag.add(lag_s)
            self.ignored = self.ignored and not auto
