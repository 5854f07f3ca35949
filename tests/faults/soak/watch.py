"""Memory and descriptors of the gate while the soak runs: where they began, where they are, and their slope."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from faults.process import GateProcess

_EVERY_S = 0.25
WARM_SHARE = 0.25
"""Of the time: until then, what the gate keeps for good (its last decisions, lines of heads, pools) may grow."""

_NEAR = 5
"""How many samples a figure is the median of: one alone may fall on a large body."""


class Sample(NamedTuple):
    """What the gate had at a time, in seconds since the start."""

    at_s: float
    resident_mb: float
    descriptors: int


class Course(NamedTuple):
    """One quantity at the start, after the warm-up, at the end under load, and when all was quiet; slope a minute."""

    start: float
    warm: float
    end: float
    quiet: float
    slope_per_minute: float


class Watch:
    """Looks at a gate four times a second."""

    def __init__(self, gate: GateProcess) -> None:
        self._gate = gate
        self._began_s = time.monotonic()
        self.samples = [self.look()]

    def look(self) -> Sample:
        """Return what the gate has now."""
        at_s = time.monotonic() - self._began_s
        return Sample(at_s, self._gate.resident_bytes / 1e6, self._gate.descriptors)

    async def run(self, seconds: float) -> None:
        """Take samples for so long, or until the gate has died."""
        while self.samples[-1].at_s < seconds and self._gate.alive:
            await asyncio.sleep(_EVERY_S)
            self.samples.append(self.look())

    def courses(self, quiet: Sample) -> tuple[Course, Course]:
        """Return how memory and descriptors went; `quiet` was taken when nothing was in flight any more."""
        warm_s = self.samples[-1].at_s * WARM_SHARE
        warm = [sample for sample in self.samples if sample.at_s >= warm_s]
        minutes = [sample.at_s / 60 for sample in warm]
        start = self.samples[0]
        return (
            _course(minutes, [each.resident_mb for each in warm], start.resident_mb, quiet.resident_mb),
            _course(minutes, [each.descriptors for each in warm], start.descriptors, quiet.descriptors),
        )


def _course(minutes: list[float], values: Sequence[float], start: float, quiet: float) -> Course:
    slope = statistics.linear_regression(minutes, values).slope if len(values) > 1 else 0.0
    return Course(start, statistics.median(values[:_NEAR]), statistics.median(values[-_NEAR:]), quiet, slope)
