"""How far streams have come, told to the core once a second: what outgrows its estimate must weigh more."""

import asyncio
from collections.abc import Mapping
from typing import Final

from headgate.core.events import EngineProgress, Growth
from headgate.runtime.driver import Driver
from headgate.servers.http.attempt import Attempt
from headgate.servers.http.contract import Ongoing
from headgate.servers.http1.contract import Exchange

_PROGRESS_S: Final = 1.0


class Progress:
    """Reports on the streams among `ongoing`, between `start` and `stop`."""

    def __init__(self, driver: Driver, ongoing: Mapping[Exchange, Ongoing]) -> None:
        self._driver = driver
        self._ongoing = ongoing
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to report."""
        self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._report)

    def stop(self) -> None:
        """Stop reporting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self) -> None:
        self.start()
        grown: dict[str, list[Growth]] = {}
        for ongoing in self._ongoing.values():
            if isinstance(ongoing, Attempt) and ongoing.stream is not None and ongoing.stream.events:
                grown.setdefault(ongoing.engine, []).append(Growth(ongoing.number, ongoing.stream.events))
        for engine, streams in grown.items():
            self._driver.post(EngineProgress(engine, tuple(streams)))
