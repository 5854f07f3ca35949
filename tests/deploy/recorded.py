"""What Prometheus reads of a gate every 15 s: a real governor in virtual time, before engines that are arithmetic."""

import heapq
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineProgress,
    Event,
    Failed,
    Finished,
    FirstToken,
    Growth,
    Released,
    Tick,
)
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import FailureKind, Outcome, Sent
from millgate.observe.door import DoorSnapshot, ServiceSnapshot
from millgate.observe.observers import Observers, ObserverSettings
from millgate.observe.prometheus import Exposition
from millgate.wiring.governor import build_governor

SCRAPE_S: Final = 15.0
_TICK_S: Final = 0.25
_ENGINES: Final = ("gpu-0", "gpu-1")
_STREAMS: Final = 4
CALM: Final = 1.0
"""Requests a second, of the two that both engines can do in answers of `SERVICE_S`."""
SERVICE_S: Final = 4.0
_FIRST_TOKEN_S: Final = 0.2
_GIVEN_UP_AFTER_S: Final = 20.0
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_FROM: Final = 'job="millgate",instance="gate:8081"'


class RecordedGate:
    """One gate; what its clients and engines do may be changed while it is recorded.

    `returns` says after how many seconds a refused client comes back, by its hint and how often it has come; None is never.
    """

    def __init__(self) -> None:
        self.now = 0.0
        lanes = (LaneSettings("interactive", ttft_slo_s=5.0, deadline_s=5.0),)
        self.core = build_governor(
            Settings(lanes, tuple(EngineSettings(name, _STREAMS) for name in _ENGINES)), self.now
        )
        self._observers = Observers(ObserverSettings(), boot="b007", first_lane="interactive")
        self.door = DoorSnapshot(8, 0, 0, 0, 256_000_000)
        self.service = ServiceSnapshot(
            reload_success=True,
            reloads=0,
            failed_reloads=0,
            loop_lag_s=0.001,
            worst_loop_lag_s=0.01,
            log_lines_dropped=0,
        )
        self.answers_prometheus = True
        self.shows: dict[tuple[str, str], str] = {}
        """Samples that no event of the core brings about, by metric and labels: they stand in place of its own."""
        self.service_s = SERVICE_S
        self.fails: Callable[[int], bool] = lambda _attempt: False
        self.hanging: set[str] = set()
        """Engines that begin nothing of what they are sent."""
        self.leaves: Callable[[int], bool] = lambda _attempt: False
        self.returns: Callable[[float | None, int], float | None] = lambda hint_s, _tries: hint_s
        self._page = Exposition(
            lambda: self.core.snapshot(self.now),
            lambda: self.door,
            lambda: self.service,
            self._observers.traffic,
        )
        self._numbers = count(1)
        self._order = count()
        self._tries: dict[int, tuple[int, int]] = {}
        self._running: set[int] = set()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.scrapes = 0
        self.series: dict[str, list[str]] = {}

    # ---- what a case does

    def run(self, minutes: float, per_s: float) -> None:
        """Let requests come evenly for so long, and be scraped all the while."""
        until = self.now + 60.0 * minutes
        arrival, scrape, tick = self.now, self.now, self.now
        while self.now < until:
            due = self._agenda[0][0] if self._agenda else until
            self.now = min(arrival, scrape, tick, due, until)
            if due <= self.now and self._agenda:
                heapq.heappop(self._agenda)[2]()
            elif tick <= self.now:
                self.step(Tick())
                tick += _TICK_S
            elif arrival <= self.now:
                self._arrive(next(self._numbers), 0)
                arrival += 1.0 / per_s
            elif scrape <= self.now:
                self._scrape()
                scrape += SCRAPE_S

    def step(self, event: Event) -> None:
        """Handle an event as the gateway does."""
        decisions = self.core.handle(event, self.now)
        self._observers.accounting.on_step(event, decisions, self.now)
        for decision in decisions:
            self._carry_out(decision)

    def say(self, **fields: Any) -> None:
        """Have the process say these numbers of its door and of its service."""
        of_door = {name: value for name, value in fields.items() if hasattr(self.door, name)}
        of_service = {name: value for name, value in fields.items() if name not in of_door}
        self.door = replace(self.door, **of_door)
        self.service = replace(self.service, **of_service)

    def rise(self, name: str, minutes: int) -> None:
        """Count this number of the process up, once before every scrape, for so long in calm."""
        for total in range(int(minutes * 60 / SCRAPE_S)):
            self.say(**{name: total})
            self.run(SCRAPE_S / 60.0, CALM)

    # ---- clients and engines

    def _later(self, wait_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + wait_s, next(self._order), what))

    def _arrive(self, request: int, tries: int) -> None:
        attempt = next(self._numbers)
        self._tries[attempt] = request, tries
        prompt = 400 + request % 97
        self.step(
            Arrived(
                attempt,
                prompt_bytes=prompt,
                body_bytes=prompt,
                max_tokens=100,
                retry_count=tries or None,
                fingerprint=lambda: request,
            )
        )

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            self._begin(decision.attempt, decision.legs[0].engine)
        elif isinstance(decision, Yield):
            request, tries = self._tries[decision.attempt]
            wait_s = self.returns(decision.retry_after_s if decision.retry else None, tries)
            if wait_s is not None:
                self._later(wait_s, lambda: self._arrive(request, tries + 1))
        elif isinstance(decision, Cancel) or (
            isinstance(decision, Ended) and decision.outcome is Outcome.ENGINE_FAILED
        ):
            self._running.discard(decision.attempt)
            self._later(0.0, lambda: self.step(Released(decision.attempt)))

    def _begin(self, attempt: int, engine: str) -> None:
        self._running.add(attempt)
        if engine in self.hanging:
            given_up = Failed(attempt, FailureKind.TIMEOUT, Sent.REQUEST)
            self._later(_GIVEN_UP_AFTER_S, lambda: self._tell(attempt, given_up))
            return
        if self.fails(attempt):
            failed = Failed(attempt, FailureKind.STATUS, Sent.BYTES)
            self._later(_FIRST_TOKEN_S, lambda: self._tell(attempt, failed))
            return
        self._later(_FIRST_TOKEN_S, lambda: self._tell(attempt, FirstToken(attempt)))
        if self.leaves(attempt):
            written = EngineProgress(engine, (Growth(attempt, 90),))
            self._later(self.service_s * 0.9, lambda: self._tell(attempt, written))
            self._later(self.service_s * 0.9, lambda: self._tell(attempt, ClientGone(attempt)))
        self._later(self.service_s, lambda: self._finish(attempt))

    def _tell(self, attempt: int, event: Event) -> None:
        if attempt in self._running:
            self.step(event)

    def _finish(self, attempt: int) -> None:
        if attempt in self._running:
            self._running.discard(attempt)
            self.step(Finished(attempt, prompt_tokens=100, output_tokens=100))
            self.step(Released(attempt))

    # ---- what Prometheus reads

    def _scrape(self) -> None:
        if self.answers_prometheus:
            matches = map(_SAMPLE.match, self._page.render()[0].decode().splitlines())
            samples = {(match[1], match[2] or ""): match[3] for match in matches if match is not None}
            for (name, labels), value in (samples | self.shows).items():
                self._note(name, labels, value)
        self._note("up", "", str(int(self.answers_prometheus)))
        self.scrapes += 1

    def _note(self, name: str, labels: str, value: str) -> None:
        """Keep one sample of the scrape that is under way."""
        series = f"{name}{{{','.join(filter(None, (labels, _FROM)))}}}"
        values = self.series.setdefault(series, [])
        values += ["_"] * (self.scrapes - len(values)) + [value]

    def of(self, metrics: set[str]) -> dict[str, str]:
        """Return the series of these metrics as promtool reads them."""
        return {
            series: " ".join(values)
            for series, values in self.series.items()
            if series.partition("{")[0] in metrics
        }
