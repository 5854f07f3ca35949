"""What a driver asks of a governor."""

from typing import Protocol

from millgate.core.decisions import Decision, Explanation
from millgate.core.events import Arrived, Event, QuotaUse
from millgate.core.settings import Settings
from millgate.core.snapshot import Capacity, SharedUse, Snapshot


class Core(Protocol):
    """The verbs of a governor (design section 4)."""

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Take one event and return what is decided."""

    def next_wake(self) -> float | None:
        """Return when a Tick is due at the latest."""

    def is_awaited(self) -> bool:
        """Return whether anything may follow from that Tick: else it may come with the next event or question."""

    def snapshot(self, now: float) -> Snapshot:
        """Return frozen numbers."""

    def capacity(self) -> Capacity:
        """Return how many streams run and may run."""

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """Return what this arrival would get, changing nothing."""

    def reconfigure(self, settings: Settings, now: float) -> tuple[Decision, ...]:
        """Take new settings and return what they decide."""

    def shared_use(self, now: float) -> SharedUse:
        """Return what this replica holds and wants of what a cluster shares."""

    def quota_uses(self, now: float) -> tuple[QuotaUse, ...]:
        """Return what is used of quotas, for the process that comes after this one."""
