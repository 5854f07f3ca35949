"""The one place outside the tests where time is read for the core."""

import time
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """A source of core time: seconds that never go backward."""

    def now(self) -> float:
        """Return the present core time in seconds."""


class MonotonicClock:
    """Core time is the system's monotonic time, the same that event loops count in.

    A loop's own `time()` is taken once per turn of the loop: up to a whole turn too early, and rounded to
    milliseconds by uvloop. Service times of fast engines need better.
    """

    now = staticmethod(time.monotonic)


boot_time: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that go on while the machine is suspended, as CLOCK_MONOTONIC does on macOS alone."""
