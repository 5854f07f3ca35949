"""All that the governor knows, in one place: `assess` reads it, `commit` and `endings` write it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappush

from headgate.core.governor.openings import Openings
from headgate.core.governor.placement import Placement
from headgate.core.governor.records import Attempt, Engine, Lane
from headgate.core.queues.base import Order
from headgate.core.routing.base import Router
from headgate.core.settings import Settings
from headgate.core.sizing.learned_output import LearnedOutput
from headgate.core.sizing.prompt_bytes import PromptBytes
from headgate.core.tickets import Places

# The heap of wake times may hold this many finished attempts' items before it is rebuilt (INV-5).
_STALE_WAKES = 1_000


class Knowledge:
    """Lanes, engines, attempts, places, learned sizes, and the times at which something falls due.

    `lanes` and `engines` also hold what a new configuration no longer names, until it is empty; `open_lanes` and
    `up_engines` are those that take new work.
    """

    __slots__ = (
        "arrivals",
        "attempts",
        "choosy",
        "drain_by",
        "draining",
        "early",
        "engines",
        "first_lane",
        "good_output_tokens",
        "held_count",
        "hints_given",
        "labelled",
        "lanes",
        "learned_output",
        "open_lanes",
        "openings",
        "orders",
        "placement",
        "places",
        "prompt_bytes",
        "recognised",
        "up_engines",
        "wakes",
        "wasted_output_tokens",
        "wasted_prompt_tokens",
    )

    def __init__(
        self, settings: Settings, orders: Mapping[str, Callable[[], Order]], router: Router, now: float
    ) -> None:
        self.orders = orders
        self.placement = Placement(router)
        self.lanes = {lane.name: Lane(lane, orders[lane.order], now) for lane in settings.lanes}
        self.open_lanes = dict(self.lanes)
        self.first_lane = self.lanes[settings.lanes[0].name]
        self.engines = {engine.name: Engine(engine) for engine in settings.engines}
        self.places = Places(settings.max_places)
        self.prompt_bytes = PromptBytes()
        self.learned_output = LearnedOutput()
        self.attempts: dict[int, Attempt] = {}
        self.openings = Openings(self.attempts, self.engines)
        self.wakes: list[tuple[float, int, int]] = []
        self.draining = False
        self.drain_by: float | None = None
        self.held_count = 0
        self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0
        self.up_engines: tuple[Engine, ...] = ()
        self.choosy = False
        self.engines_changed()

    def engines_changed(self) -> None:
        """Read anew which engines take work: one went up or down, came or left, or has other limits."""
        self.up_engines = tuple(
            engine for engine in self.engines.values() if engine.up and not engine.retired
        )
        self.choosy = any(engine.settings.models for engine in self.up_engines)
        self.placement.choose_among(self.up_engines)
        self.openings.unsettle()

    def engines_for(self, model: str) -> Sequence[Engine]:
        """Return the engines that are up and answer for this model, in configured order."""
        if not self.choosy:
            return self.up_engines
        return [engine for engine in self.up_engines if engine.serves(model)]

    def roomy_engine(
        self, draft: Attempt, engines: Sequence[Engine], now: float
    ) -> tuple[Engine, float] | None:
        """Return where this attempt would go now, with its time to first token there; None without room.

        That is the engine that the router prices lowest, or the soonest where the deadline leaves no choice.
        """
        prompt_tokens = draft.prompt_tokens
        if len(engines) == 1:
            engine = engines[0]
            if not engine.gate.has_room(draft.kv_tokens, prompt_tokens):
                return None
            return engine, engine.expected_ttft_s(prompt_tokens)
        cheapest = self.placement.cheapest(draft, engines)
        if cheapest is None:
            return None
        ttft_s = cheapest.expected_ttft_s(prompt_tokens)
        if now + ttft_s <= draft.deadline:
            return cheapest, ttft_s
        return self.placement.soonest(draft, engines)

    def note(self, attempt: Attempt, engine: Engine) -> None:
        """Take note that this attempt has started on this engine, read its first token, or ended."""
        engine.drain_read = None
        self.openings.note(attempt)
        self.placement.changed(engine)

    def hold(self, attempt: Attempt) -> None:
        """Put an attempt into its lane's queue."""
        attempt.lane.order.add(attempt)
        self.held_count += 1

    def unhold(self, attempt: Attempt) -> None:
        """Take an attempt out of its lane's queue."""
        attempt.lane.order.remove(attempt)
        self.held_count -= 1

    def ahead_of(self, draft: Attempt) -> int:
        """Return how many would be admitted before this newcomer: its lane's order, and whoever waits elsewhere."""
        if not self.held_count:
            return 0
        order = draft.lane.order
        return order.ahead_of(draft) + self.held_count - len(order)

    def running(self) -> int:
        """Return how many permits are out, over all engines."""
        return len(self.attempts) - self.held_count

    def stream_limit(self) -> int:
        """Return how many streams may run, over all engines that are up."""
        return sum([engine.gate.limit.current() for engine in self.up_engines])

    def next_held(self) -> Attempt | None:
        """Return who is next over all lanes: the head whose request is oldest."""
        if not self.held_count:
            return None
        heads = [head for lane in self.lanes.values() if (head := lane.order.head()) is not None]
        chosen = min(heads, key=lambda head: (head.first_seen, head.arrival_number))
        return self.attempts[chosen.attempt]

    def wake_at(self, at: float, attempt: int) -> None:
        """Look at this attempt again at this time."""
        if len(self.wakes) > 4 * (len(self.attempts) + _STALE_WAKES):
            self.wakes[:] = [item for item in self.wakes if item[2] in self.attempts]
            heapify(self.wakes)
        heappush(self.wakes, (at, self.arrivals, attempt))

    def held(self) -> Iterator[Attempt]:
        """Yield every attempt that waits, lane by lane, next first."""
        for lane in self.lanes.values():
            for held in lane.order:
                yield self.attempts[held.attempt]
