"""What the exchanges of the doors are to their servers, and to the reports about running answers."""

from typing import Protocol

from millgate.core.events import EngineProgress, Growth
from millgate.runtime.driver import Driver


class Ongoing(Protocol):
    """A request that is not over, as its client's connection and the reports of progress find it."""

    def gone(self) -> None:
        """The client has left: abort everything at once."""

    def slow(self, slow: bool) -> None:
        """Hold the engine back while the client lags behind; nothing by default."""
        del slow

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine that it runs on and the tokens that are known of its stream so far; None before there are any."""
        return None


def tell_growth(driver: Driver, growth: tuple[str, Growth] | None) -> None:
    """Tell the core how far a stream has come whose end will not come: the last report may be a second old."""
    if growth is not None:
        driver.post(EngineProgress(growth[0], (growth[1],)))
