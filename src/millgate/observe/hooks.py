"""The contract of an observer: what may watch the core decide, without being able to disturb it."""

from typing import Protocol

from millgate.core.decisions import Decision
from millgate.core.events import Event


class Observer(Protocol):
    """Sees every step right after it was made, on the loop's thread; it is quick, bounded, and posts nothing."""

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Take note that `event` was handled at core time `now` with these decisions."""
