"""What is counted: one lane with its queues by route and its accounts, and the gate as a whole since it began."""

from collections.abc import Callable
from typing import Final
from zlib import crc32

from millgate.core.decisions import Cause, Ended
from millgate.core.littles_law.law import LittlesLaw
from millgate.core.measure.ewma import Window
from millgate.core.queues.base import Order, Queued
from millgate.core.settings import LaneSettings
from millgate.core.slo import SloWatch
from millgate.core.snapshot import LittleSnapshot
from millgate.core.state.pool import LaneQueue, Route
from millgate.core.words import FailureKind, Outcome, Reason, Stage

# What is refused for these was never to be served.
_RULES: Final = (Reason.QUOTA, Reason.TENANT_LIMIT, Reason.TOO_LARGE)

MakeOrder = Callable[[LaneSettings], Order]


class Lane:
    """One lane: its queues by route, what they hold, its accounts, and Little's law of its stays and of their two parts.

    `tag` stands for its name in records, which are rows of numbers.
    """

    def __init__(self, settings: LaneSettings, make_order: MakeOrder, now: float) -> None:
        self.settings = settings
        self.tag = crc32(settings.name.encode())
        self.make_order = make_order
        self.queues: dict[Route, LaneQueue] = {}
        self.queued = self.queued_tokens = self.queued_bytes = 0
        self._stays, self._queueing, self._serving = LittlesLaw(now), LittlesLaw(now), LittlesLaw(now)
        self.slo = SloWatch(settings, now)
        self.arrived = 0
        self.admitted = 0
        self.hints_kept = self.hints_broken = 0
        # Dictionaries, not Counters: those take 0.2 us to count one.
        self.outcomes: dict[Outcome, int] = {}
        self.causes: dict[Reason | Stage | FailureKind, int] = {}

    def reconfigured(self, settings: LaneSettings, now: float) -> None:
        """Take these settings; a new objective is counted from now on."""
        if settings != self.settings:
            self.settings, self.slo = settings, SloWatch(settings, now)

    def queue_for(self, route: Route) -> LaneQueue:
        """Return where work of this lane waits for this route; a new one is not open yet."""
        queue = self.queues.get(route)
        return LaneQueue(self.settings, route, self.make_order(self.settings)) if queue is None else queue

    def opens(self, queue: LaneQueue) -> None:
        """Open this queue, if it is not yet."""
        if not queue.is_open:
            self.queues[queue.route] = queue
            queue.opened()

    def closed(self) -> list[Queued]:
        """Give up every queue, and return what they held; it still counts as queued here."""
        held = [queued for queue in self.queues.values() for queued in queue.order]
        self.queues.clear()
        return held

    def arrives(self, queue: LaneQueue) -> None:
        """Count an arrival that this queue is for."""
        self.arrived += 1
        self.opens(queue)

    def admits(self, now: float) -> None:
        """Count an admission."""
        self.admitted += 1
        self._serving.enter(now)

    def takes_in(self, now: float) -> None:
        """Count an attempt whose stay begins: it is queued or admitted."""
        self._stays.enter(now)

    def lets_go(self, arrived_at: float, now: float) -> None:
        """Count an attempt whose stay is over."""
        self._stays.leave(now)
        self._stays.stayed(now, arrived_at)

    def gets_back(self, now: float) -> None:
        """Count a permit that its engine has given back."""
        self._serving.leave(now)

    def served(self, admitted_at: float, now: float) -> None:
        """Count an attempt that an engine is done with."""
        self._serving.stayed(now, admitted_at)

    @property
    def running(self) -> int:
        """How many permits are out."""
        return self._serving.inside

    def little(self, now: float) -> LittleSnapshot:
        """Return Little's law of whole stays, of the queue and of the engines."""
        return LittleSnapshot(self._stays.read(now), self._queueing.read(now), self._serving.read(now))

    def judged_hint(self, *, kept: bool) -> None:
        """Count a hint that its client followed: whether the request was let in then."""
        if kept:
            self.hints_kept += 1
        else:
            self.hints_broken += 1

    def count(self, outcome: Outcome, cause: Cause) -> None:
        """Count how an attempt has ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if cause is not None:
            self.causes[cause] = self.causes.get(cause, 0) + 1

    def refuses(self, reason: Reason, now: float, *, is_retry: bool) -> None:
        """Count a refusal; that of a first attempt counts against the objective, unless a rule refused it."""
        self.count(Outcome.YIELDED, reason)
        if not is_retry and reason not in _RULES:
            self.slo.refuse(now)

    def waits(self, tokens: int, body_bytes: int, now: float) -> None:
        """Count an attempt that begins to wait."""
        self._queueing.enter(now)
        self.queued += 1
        self.queued_tokens += tokens
        self.queued_bytes += body_bytes

    def waits_no_more(self, tokens: int, body_bytes: int, since: float, now: float) -> None:
        """Count an attempt that waited `since` then and no longer does."""
        self._queueing.leave(now)
        self._queueing.stayed(now, since)
        self.queued -= 1
        self.queued_tokens -= tokens
        self.queued_bytes -= body_bytes


# Attempts and requests are remembered for ten minutes, in parts of ten seconds.
_PART_S: Final = 10.0
_PARTS: Final = 60


class Totals:
    """Arrivals and what was known of them, whole answers, hints, and the tokens of good and of wasted work."""

    def __init__(self) -> None:
        self.answers = self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self._lately = Window(_PART_S, _PARTS, counters=2)
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0

    def arrived(self, now: float, *, is_retry: bool) -> None:
        """Count an arrival, and a request unless it is a retry of one."""
        self.arrivals += 1
        self._lately.add(now, (1, not is_retry))

    def amplification(self, now: float, window_s: float) -> float:
        """Return attempts over requests of the last `window_s`, ten minutes at most; 1 of nothing."""
        attempts, requests = self._lately.read(now, round(window_s / _PART_S))
        return attempts / max(1, requests) if attempts else 1.0

    def returned(self, *, labelled: bool, recognised: bool, early: bool) -> None:
        """Count a return: a retry by its label, a request that was recognised, one that came before its hint."""
        self.labelled += labelled
        self.recognised += recognised
        self.early += early

    def answered(self) -> None:
        """Count a whole answer that teaches how long answers are."""
        self.answers += 1

    def hinted(self) -> None:
        """Count a hint."""
        self.hints_given += 1

    def ended(self, ended: Ended) -> None:
        """Count the tokens of an attempt that an engine has worked for."""
        if ended.outcome is Outcome.GOOD:
            self.good_output_tokens += ended.output_tokens
        elif ended.outcome is not Outcome.BAD_REQUEST:
            self.wasted_output_tokens += ended.output_tokens
            self.wasted_prompt_tokens += ended.prompt_tokens
