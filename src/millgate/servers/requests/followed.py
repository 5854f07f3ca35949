"""Attempts of other doors than HTTP's, as the reports about running answers find them."""

from millgate.core.events import Growth


class FollowedAttempt:
    """An attempt that says itself how far its answer has come."""

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine that it runs on and the tokens that its stream has so far; None before there are any."""
        return None
