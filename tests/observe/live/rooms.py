"""A real governor with everything that the page reads, and a clock that stands where it is put."""

from headgate.core.decisions import Decision
from headgate.core.events import Arrived, Event
from headgate.core.settings import EngineSettings, LaneSettings, Settings
from headgate.observe.live.painter import Painter, Sources
from headgate.observe.live.recent import RecentDecisions
from headgate.observe.live.trail import Trail
from headgate.wiring.governor import build_governor

EPOCH = 1_700_000_000.0
"""Seconds since the epoch when the core's clock was 0."""


class Room:
    """One gate; `streams` on one engine, lanes `interactive` (10 s) and `throughput` (60 s)."""

    def __init__(self, streams: int = 1, max_queue: int | None = None) -> None:
        lanes = (
            LaneSettings("interactive", max_queue=max_queue),
            LaneSettings("throughput", ttft_slo_s=60.0, deadline_s=60.0),
        )
        self.now = 100.0
        self.core = build_governor(Settings(lanes, (EngineSettings("gpu", streams),)), self.now)
        self.recent = RecentDecisions()
        self.trail = Trail(lambda: self.core.snapshot(self.now))
        self.painter = Painter(
            Sources(
                lambda: self.core.snapshot(self.now),
                lambda arrival: self.core.explain(arrival, self.now),
                self.recent,
                self.trail,
                lambda: EPOCH + self.now,
            )
        )

    def step(self, event: Event) -> tuple[Decision, ...]:
        """Handle an event as the driver does."""
        decisions = self.core.handle(event, self.now)
        self.recent.on_step(event, decisions, self.now)
        self.trail.on_step(event, decisions, self.now)
        return decisions

    def arrive(self, attempt: int, lane: str | None = None, max_wait_s: float | None = None) -> None:
        """Let an attempt arrive."""
        self.step(Arrived(attempt, lane=lane, prompt_bytes=400, body_bytes=400, max_wait_s=max_wait_s))
