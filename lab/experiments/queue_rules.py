"""queue_rules: does anything from the literature still help once the predicted wait bounds the queue?

The gate alone against the gate with one more rule: CoDel drops what has waited too long while none waits short
(Folly's form; Nichols and Jacobson, 2012). Adaptive LIFO serves the newest first while a queue stands (Maurer, Fail at
Scale, 2015). A priority threshold refuses the same part of all users first (DAGOR, SoCC 2018). With the deadline the
gate bounds the wait; without one it queues every request, like a lane without deadlines, and users leave on their own.

The rules live here and not in the gate: this experiment is why.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf

from lab.experiments.scenario import Scenario, play, scenario_fleet
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import Arrived, ClientGone, Event
from millgate.core.governor import Governor
from millgate.core.queues.base import Queued
from millgate.core.queues.ranked import Key, RankedQueue
from millgate.core.settings import LaneSettings, Settings
from millgate.core.words import Reason
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.driver import DecidingCore
from millgate.sim.experiments.contract import Arm, Experiment, Measured
from millgate.sim.laws import constant
from millgate.wiring.governor import INSTRUMENTS, build_governor

_LOADS = (1.2, 2.0, 5.0)
_SLO_S = 2.0
# Algorithm G4: a tenth of the SLO, judged over intervals of at least 100 ms.
_TARGET_S, _INTERVAL_S = 0.1 * _SLO_S, 0.1
# DAGOR: 128 levels, a twentieth down and a hundredth up each second; its 20 ms of queueing became a tenth of the SLO.
_LEVELS = 128
_DOWN, _UP, _WINDOW_S = 0.05, 0.01, 1.0
_COME_BACK_S = 1.0
_WITHOUT = ", no deadline"
_SCENARIO = Scenario(
    lane=LaneSettings("interactive", ttft_slo_s=_SLO_S, deadline_s=_SLO_S, order="short_first", fair=True),
    manners=Manners(constant(5.0), Sdk()),
)


class CoDel:
    """A core that drops what has waited for twice the target while even the shortest wait is above it."""

    def __init__(self, inner: DecidingCore) -> None:
        self._inner = inner
        self._queued: dict[int, float] = {}
        self._shortest_s, self._judged_at = inf, 0.0
        self._overloaded = False

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Pass on, and drop every request that has waited too long."""
        if now >= self._judged_at + _INTERVAL_S:
            self._overloaded = self._shortest_s < inf and self._shortest_s > _TARGET_S
            self._shortest_s, self._judged_at = inf, now
        decisions = list(self._inner.handle(event, now))
        for decision in decisions:
            self._note(decision, now)
        if self._overloaded:
            for attempt in [each for each, since in self._queued.items() if now - since > 2.0 * _TARGET_S]:
                decisions += self._drop(attempt, now)
        return tuple(decisions)

    def next_wake(self) -> float | None:
        """Pass on."""
        return self._inner.next_wake()

    def _note(self, decision: Decision, now: float) -> None:
        if isinstance(decision, Queue):
            self._queued[decision.attempt] = now
        elif isinstance(decision, Admit | Ended | Yield):
            self._queued.pop(decision.attempt, None)
            if isinstance(decision, Admit):
                self._shortest_s = min(self._shortest_s, decision.waited_s)

    def _drop(self, attempt: int, now: float) -> Iterator[Decision]:
        del self._queued[attempt]
        for decision in self._inner.handle(ClientGone(attempt), now):
            if not isinstance(decision, Ended):
                self._note(decision, now)
                yield decision
        yield Yield(attempt, Reason.TOO_LATE, _COME_BACK_S, retry=True)


class Threshold:
    """A core that refuses users above a level; the level falls while admissions have waited for long."""

    def __init__(self, inner: DecidingCore) -> None:
        self._inner = inner
        self._level = float(_LEVELS)
        self._waits_s: list[float] = []
        self._judged_at = 0.0

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Refuse by level, else pass on and learn how long the admitted have waited."""
        self._judge(now)
        if isinstance(event, Arrived) and event.fingerprint is not None:
            # A multiplicative hash (Knuth): the same user has the same level each time.
            level = event.fingerprint() * 2_654_435_761 % 2**32 * _LEVELS >> 32
            if level >= self._level:
                return (Yield(event.attempt, Reason.SATURATED, _COME_BACK_S, retry=True),)
        decisions = self._inner.handle(event, now)
        self._waits_s += [decision.waited_s for decision in decisions if isinstance(decision, Admit)]
        return decisions

    def next_wake(self) -> float | None:
        """Pass on."""
        return self._inner.next_wake()

    def _judge(self, now: float) -> None:
        if now < self._judged_at + _WINDOW_S or not self._waits_s:
            return
        mean_s = sum(self._waits_s) / len(self._waits_s)
        self._waits_s, self._judged_at = [], now
        change = -_DOWN * self._level if mean_s > _TARGET_S else _UP * _LEVELS
        self._level = min(float(_LEVELS), max(1.0, self._level + change))


def adaptive_lifo() -> RankedQueue:
    """Return a line with the newest first; a queue that empties at once never shows it."""
    return RankedQueue(_newest_first)


def _newest_first(queued: Queued) -> Key:
    return (-queued.first_seen, 0.0, 0, -queued.arrival_number)


def _gate(settings: Settings) -> DecidingCore:
    return build_governor(settings, 0.0)


def _newest(settings: Settings) -> DecidingCore:
    return Governor(settings, lambda _lane: adaptive_lifo(), INSTRUMENTS, 0.0)


_RULES: Mapping[str, Callable[[Settings], DecidingCore]] = {
    "gate": _gate,
    "by arrival": lambda settings: _gate(_ordered(settings, "arrival")),
    "with CoDel": lambda settings: CoDel(_gate(settings)),
    "newest first": _newest,
    "with a threshold": lambda settings: Threshold(_gate(settings)),
}


def _ordered(settings: Settings, order: str) -> Settings:
    return replace(settings, lanes=tuple(replace(lane, order=order) for lane in settings.lanes))


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    scenario = _SCENARIO.at_load(arm.x)
    if arm.series.endswith(_WITHOUT):
        scenario = replace(scenario, lane=replace(scenario.lane, deadline_s=1e6))
    core = _RULES[arm.series.removesuffix(_WITHOUT)](scenario_fleet(scenario).settings)
    played = play(scenario, seed, core)
    summary = played.summary
    return [
        (
            arm.x,
            {
                "goodput": played.goodput_share,
                "good": summary.good_share,
                "waste": summary.waste,
                "ttft_p99_s": summary.ttft_s.p99,
                "attempts": summary.amplification,
            },
        )
    ]


QUEUE_RULES = Experiment(
    name="queue_rules",
    question="Does CoDel, newest first, or a threshold help where the predicted wait bounds the queue?",
    arms=tuple(Arm(rule + tail, load) for tail in ("", _WITHOUT) for rule in _RULES for load in _LOADS),
    run=_run,
    metric="goodput",
    x_label="offered load, times capacity",
    y_label="good answers, share of capacity",
)
