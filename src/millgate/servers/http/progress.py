"""How far streams have come, told to the core once a second: what outgrows its estimate must weigh more."""

import asyncio
from collections.abc import Mapping
from typing import Final

from millgate.core.events import EngineProgress, Growth
from millgate.http1.server.contract import Exchange
from millgate.runtime.driver import Driver
from millgate.servers.requests.ongoing import Ongoing

_PROGRESS_S: Final = 1.0
_AT_ONCE: Final = 500
"""Looked at in one turn of the loop, in half a millisecond: five thousand would make every stream stutter."""


class Progress:
    """Reports on the streams among `ongoing`, between `start` and `stop`."""

    def __init__(self, driver: Driver, ongoing: Mapping[Exchange, Ongoing]) -> None:
        self._driver = driver
        self._ongoing = ongoing
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin to report."""
        self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._report)

    def stop(self) -> None:
        """Stop reporting."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        self._timer = self._turn = None

    def _report(self) -> None:
        self.start()
        self._gather(list(self._ongoing.values()), {})

    def _gather(self, unseen: list[Ongoing], grown: dict[str, list[Growth]]) -> None:
        """Look at some of those that are left, and report when all have been looked at."""
        for ongoing in unseen[-_AT_ONCE:]:
            if found := ongoing.growth():
                engine, growth = found
                grown.setdefault(engine, []).append(growth)
        del unseen[-_AT_ONCE:]
        if unseen:
            self._turn = asyncio.get_running_loop().call_soon(self._gather, unseen, grown)
            return
        for name, streams in grown.items():
            self._driver.post(EngineProgress(name, tuple(streams)))
