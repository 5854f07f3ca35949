"""The lanes: which of them a request belongs to, and what is counted, by lane and for the gate as a whole.

Little's law is read off three systems of a lane: the whole stay, and its parts, the queue and the engine. What is in the whole is in one part.

A request belongs to the lane that its door named, else to that for what it takes of an idle engine (design section 4, step 2).
Idle, as the class must not depend on the load: under load more requests would count as long, with another deadline. The
engine is the one of its route that is fastest. A request that was refused and is back keeps its class: what is learned of
the engine between two attempts must not give it another deadline.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from zlib import crc32

from millgate.core.decisions import Cause, Classed, Ended
from millgate.core.events import Arrived
from millgate.core.instruments import Instruments
from millgate.core.limits.gate import is_only_read
from millgate.core.measure import WINDOW_S, Window
from millgate.core.queues.base import Order, Queued
from millgate.core.settings import LaneSettings
from millgate.core.snapshot import LittleSnapshot
from millgate.core.state.engine import Engine
from millgate.core.state.pool import LaneQueue, Route
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.words import ClassedBy, FailureKind, LaneTakes, Outcome, Reason, Stage

# What is refused for these was never to be served.
_RULES: Final = (Reason.QUOTA, Reason.TENANT_LIMIT, Reason.TOO_LARGE)

MakeOrder = Callable[[LaneSettings], Order]


class Lane:
    """One lane: its queues by route, what they hold, its accounts, and Little's law of its stays and of their two parts.

    `tag` stands for its name in records, which are rows of numbers.
    """

    def __init__(
        self, settings: LaneSettings, make_order: MakeOrder, instruments: Instruments, now: float
    ) -> None:
        self.settings = settings
        self._instruments = instruments
        self.tag = crc32(settings.name.encode())
        self.make_order = make_order
        self.queues: dict[Route, LaneQueue] = {}
        self.queued = self.queued_tokens = self.queued_bytes = 0
        self._stays, self._queueing, self._serving = (
            instruments.of_stays(now),
            instruments.of_stays(now),
            instruments.of_stays(now),
        )
        self.slo = instruments.of_lane(settings, now)
        self._is_protected = False
        self.arrived = 0
        self.admitted = 0
        self.hints_kept = self.hints_broken = 0
        # Dictionaries, not Counters: those take 0.2 us to count one.
        self.outcomes: dict[Outcome, int] = {}
        self.causes: dict[Reason | Stage | FailureKind, int] = {}

    def reconfigured(self, settings: LaneSettings, now: float) -> None:
        """Take these settings; a new objective is counted from now on."""
        if settings != self.settings:
            self.settings, self.slo = settings, self._instruments.of_lane(settings, now)

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

    def protected(self, *, yes: bool) -> None:
        """Take note of whether prompts of other lanes are paced for it."""
        self._is_protected = yes

    def arrives(self, queue: LaneQueue, now: float) -> None:
        """Count an arrival that this queue is for."""
        self.arrived += 1
        if self._is_protected:
            queue.route.pool.comings.came(now)
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
    def is_full(self) -> bool:
        """Whether as many are queued as the lane's own bound allows."""
        return self.settings.max_queue is not None and self.queued >= self.settings.max_queue

    @property
    def running(self) -> int:
        """How many permits are out."""
        return self._serving.inside

    def little(self, now: float) -> LittleSnapshot:
        """Return Little's law of whole stays, of the queue and of the engines."""
        return LittleSnapshot(self._stays.read(now), self._queueing.read(now), self._serving.read(now))

    def judged_hint(self, *, kept: bool) -> None:
        """Count a hint that its client followed: whether the request was let in then."""
        self.hints_kept += kept
        self.hints_broken += not kept

    def count(self, outcome: Outcome, cause: Cause) -> None:
        """Count how an attempt has ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if cause is not None:
            self.causes[cause] = self.causes.get(cause, 0) + 1

    def refuses(self, queue: LaneQueue, reason: Reason, now: float, *, is_retry: bool) -> None:
        """Count a refusal; that of a first attempt counts against the objective, unless a rule refused it."""
        self.count(Outcome.YIELDED, reason)
        if reason in _RULES:
            return
        queue.route.pool.comings.turn_away(self.settings.ttft_slo_s, now)
        if not is_retry:
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


# Attempts and requests are remembered for ten minutes, in parts of `WINDOW_S`.
_PARTS: Final = 60
REMEMBERED_S: Final = WINDOW_S * _PARTS
# Parts of a request: divisible by all numbers up to ten.
_SHARES: Final = 2520


class Totals:
    """Arrivals and what was known of them, whole answers, hints, and the tokens of good and of wasted work."""

    def __init__(self) -> None:
        self.answers = self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self._lately = Window(WINDOW_S, _PARTS, counters=3)
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0

    def arrived(self, now: float, unknown_retry: int = 0, since: float | None = None) -> None:
        """Count an arrival, and its request now and no longer at `since`; of an `unknown_retry`, the n-th, no earlier attempt is known."""
        self.arrivals += 1
        self._lately.add(now, (1, 0, _SHARES // (1 + unknown_retry)) if unknown_retry else (1, 1, 0))
        if since is not None:
            self._lately.add(since, (0, -1, 0))

    def waited(self, since: float, now: float) -> None:
        """Count a request that came `since` then, waited, and may return where it was refused, or left: now."""
        if since < now:
            self._lately.add(since, (0, -1, 0))
            self._lately.add(now, (0, 1, 0))

    def amplification(self, now: float, window_s: float) -> float:
        """Return attempts over the requests that they were for, in the last `window_s`, ten minutes at most; 1 of nothing.

        Unknown retries are of as many requests at least as their labels make: an n-th is one of n + 1 attempts.
        """
        attempts, requests, shares = self._lately.read(now, round(window_s / WINDOW_S))
        return max(1.0, attempts / max(1, requests, shares // _SHARES))

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


def less_important(lanes: dict[str, Lane], band: int) -> Lane | None:
    """Return the lane whose queued work makes room for this band's where everything is full; None where none has to."""
    queued = [lane for lane in lanes.values() if lane.queued and lane.settings.band > band]
    return max(queued, key=lambda lane: lane.settings.band, default=None)


def choose_lane(lanes: Mapping[str, Lane], hint: str | None, default: Lane) -> Lane:
    """Return the lane that the door named, or the default where it named none that exists.

    The door has already made sure that the client may use the lane; an unknown name is an old configuration's
    and must not lose the request.
    """
    return default if hint is None else lanes.get(hint, default)


class Classes:
    """The lanes that take requests by size or of agents; `first` takes all others. Without such lanes nothing is looked at."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.first = lanes[0]
        self._long_prompts = _that_take(lanes, LaneTakes.LONG_PROMPTS)
        self._batch = _that_take(lanes, LaneTakes.BATCH)
        self._agents = _that_take(lanes, LaneTakes.AGENTS)
        self._by_tag = {lane.tag: lane for lane in lanes if lane is lanes[0] or lane.settings.takes}

    def lane_of(
        self, arrival: Arrived, route: Route, sizes: tuple[int, int, int], record: ReturnRecord | None
    ) -> tuple[Lane, Classed | None]:
        """Return the lane of a sized request that names none, and why it is not the first.

        A request that was refused and is back stays in the lane of its first attempt, if that lane is one of these.
        """
        if len(self._by_tag) == 1:
            return self.first, None
        lane, classed = self._by_size(arrival, route.up or route.engines, sizes)
        before = None if record is None else self._by_tag.get(record.lane)
        if before is None or before is lane:
            return lane, classed
        return before, _classed(before, ClassedBy.FIRST_ATTEMPT, sizes[0])

    def _by_size(
        self, arrival: Arrived, engines: tuple[Engine, ...], sizes: tuple[int, int, int]
    ) -> tuple[Lane, Classed | None]:
        """What is only read is batch work however short it is; then its prompt counts, then who asks, then its whole answer."""
        prompt_tokens, output_tokens, _ = sizes
        if self._batch and is_only_read(arrival):
            return self._batch[-1], _classed(self._batch[-1], ClassedBy.ONLY_READ, prompt_tokens)
        for lane in self._long_prompts:
            if not _reads_within(engines, prompt_tokens, lane.settings.over_s):
                reading_s = least_reading_s(engines, prompt_tokens)
                return lane, _classed(lane, ClassedBy.PROMPT, prompt_tokens, reading_s)
        if self._agents and arrival.of_agent:
            return self._agents[0], _classed(self._agents[0], ClassedBy.AGENT, prompt_tokens)
        if self._batch and not arrival.stream:
            whole_s = _whole_s(engines, prompt_tokens, output_tokens / arrival.answers)
            for lane in self._batch:
                if whole_s > lane.settings.over_s:
                    return lane, _classed(lane, ClassedBy.ANSWER, prompt_tokens, whole_s)
        return self.first, None


def least_reading_s(engines: tuple[Engine, ...], prompt_tokens: int) -> float:
    """Return how long such a prompt takes to be read, on the engine that reads fastest when idle."""
    return min([engine.service.reading_s(prompt_tokens) for engine in engines], default=0.0)


def _that_take(lanes: Sequence[Lane], takes: LaneTakes) -> list[Lane]:
    """Return the lanes that take such requests, the one for the longest first."""
    found = [lane for lane in lanes if lane.settings.takes is takes]
    return sorted(found, key=lambda lane: -lane.settings.over_s)


def _classed(lane: Lane, by: ClassedBy, prompt_tokens: int, value_s: float = 0.0) -> Classed:
    return Classed(lane.settings.name, by, prompt_tokens, value_s, lane.settings.over_s if value_s else 0.0)


def _reads_within(engines: tuple[Engine, ...], prompt_tokens: int, within_s: float) -> bool:
    """Return whether any engine reads it in that time; for most prompts the first does."""
    for engine in engines:
        if engine.service.reading_s(prompt_tokens) <= within_s:
            return True
    return not engines


def _whole_s(engines: tuple[Engine, ...], prompt_tokens: int, output_tokens: float) -> float:
    """Return how long the whole answer takes, alone on the engine that is fastest."""
    return min([each.service.service_s(prompt_tokens, output_tokens, 1.0) for each in engines], default=0.0)
