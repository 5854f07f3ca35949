"""A real governor with everything that the page reads, and a clock that stands where it is put."""

from millgate.core.decisions import Decision
from millgate.core.events import Arrived, Event
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.observe.live.decision_history import DecisionHistory
from millgate.observe.live.page_model import PageModel
from millgate.observe.observers import Observers, ObserverSettings
from millgate.wiring.governor import build_governor

EPOCH = 1_700_000_000.0
"""Seconds since the epoch when the core's clock was 0."""


class Room:
    """One gate; `streams` on one engine, lanes `interactive` (10 s) and `throughput` (60 s)."""

    def __init__(
        self,
        streams: int = 1,
        max_queue: int | None = None,
        window_s: float = 0.0,
        engines: tuple[EngineSettings, ...] = (),
    ) -> None:
        lanes = (
            LaneSettings("interactive", max_queue=max_queue, window_s=window_s),
            LaneSettings("throughput", ttft_slo_s=60.0, deadline_s=60.0),
        )
        self.now = 100.0
        self.core = build_governor(Settings(lanes, engines or (EngineSettings("gpu", streams),)), self.now)
        self.observers = Observers(ObserverSettings(), boot="b007", first_lane="interactive")
        self.history = DecisionHistory(lambda: self.core.snapshot(self.now))
        self.observers.accounting.on_beat.append(self.history.look)
        self.page_model = PageModel(
            lambda: self.core.snapshot(self.now),
            lambda arrival: self.core.explain(arrival, self.now),
            self.observers,
            self.history,
            lambda: EPOCH + self.now,
            "gate-7",
        )

    def step(self, event: Event) -> tuple[Decision, ...]:
        """Handle an event as the driver does."""
        decisions = self.core.handle(event, self.now)
        self.observers.accounting.on_step(event, decisions, self.now)
        return decisions

    def arrive(
        self, attempt: int, lane: str | None = None, max_wait_s: float | None = None, tenant: str = ""
    ) -> None:
        """Let an attempt arrive."""
        arrival = Arrived(attempt, tenant, lane, prompt_bytes=400, body_bytes=400)
        self.step(arrival._replace(max_wait_s=max_wait_s))
