"""Time that stands still until a test moves it."""


class ManualClock:
    """A clock for `runtime.Driver` and for playbooks; seconds, never backward."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s

    def now(self) -> float:
        """Return the present time."""
        return self._now

    def advance(self, by_s: float) -> float:
        """Let so many seconds pass and return the new time."""
        if by_s < 0:
            raise ValueError(f"by_s is {by_s}: time never goes backward")
        self._now += by_s
        return self._now
