"""Attempts of other doors than HTTP's, as the reports about running answers find them."""

from millgate.core.events import EngineProgress, Growth
from millgate.runtime.driver import Driver


class FollowedAttempt:
    """An attempt that says itself how far its answer has come."""

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine that it runs on and the tokens that its stream has so far; None before there are any."""
        return None


def tell_growth(driver: Driver, growth: tuple[str, Growth] | None) -> None:
    """Tell the core how far a stream has come whose end will not come: the last report may be a second old."""
    if growth is not None:
        driver.post(EngineProgress(growth[0], (growth[1],)))
