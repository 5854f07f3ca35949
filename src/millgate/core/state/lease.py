"""What this replica has of the limits that a cluster shares, and until when; without a cluster all of them, for ever."""

from math import inf

from millgate.core.events import LeaseGranted


class Lease:
    """The shares that were `granted` last, None without a cluster; from `until` on there are none. While it `is_closed` nothing new is taken in."""

    def __init__(self) -> None:
        self.granted: LeaseGranted | None = None
        self.until, self.is_closed = inf, False

    def grants(self, granted: LeaseGranted, now: float) -> None:
        """Have these shares; none where their time is over already."""
        self.granted, self.until, self.is_closed = granted, granted.until, granted.closed
        if now >= self.until:
            self.ends()

    def ends(self) -> None:
        """Have no shares until some are granted again."""
        replicas = 1 if self.granted is None else self.granted.replicas
        self.granted, self.until = LeaseGranted(inf, replicas), inf
