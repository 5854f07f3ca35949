"""An engine's own gauges, read ten times a second while something goes on, beside the moments at which clients left."""

import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from engines.process import Engine, Load

GAP_S = 0.1
LETS_GO_S = 0.3
"""How long after a hang-up an engine may still count those who have left: what vLLM takes to abort."""


class Reading(NamedTuple):
    """What the engine said, and between which times it can have been so."""

    asked_at: float
    told_at: float
    load: Load


class Watch:
    """Reads an engine's gauges every 100 ms within a `with` block."""

    def __init__(self, engine: Engine) -> None:
        self.readings: list[Reading] = []
        self.hangups: list[float] = []
        self._engine = engine
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def hung_up(self) -> None:
        """Note that a client leaves now."""
        self.hangups.append(time.monotonic())

    @property
    def peak(self) -> int:
        """The most that it had at any reading."""
        return max(reading.load.total for reading in self.readings)

    @property
    def settled_peak(self) -> int:
        """The most that it had at any reading that was not within 300 ms after a hang-up."""
        return max(reading.load.total for reading in self.readings if not self._unsettled(reading))

    def _unsettled(self, reading: Reading) -> bool:
        return any(left <= reading.told_at and reading.asked_at <= left + LETS_GO_S for left in self.hangups)

    def _read(self) -> None:
        while not self._over.wait(GAP_S):
            asked_at = time.monotonic()
            load = self._engine.load()
            self.readings.append(Reading(asked_at, time.monotonic(), load))
