"""All that the governor knows, in one place: `assess` reads it, `commit` and `endings` write it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappush

from headgate.core.governor.openings import Openings
from headgate.core.governor.records import Attempt, Engine, Lane
from headgate.core.queues.base import Order
from headgate.core.routing.base import Candidate, Router
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
        "places",
        "prompt_bytes",
        "recognised",
        "router",
        "up_engines",
        "wakes",
        "wasted_output_tokens",
        "wasted_prompt_tokens",
    )

    def __init__(
        self, settings: Settings, orders: Mapping[str, Callable[[], Order]], router: Router, now: float
    ) -> None:
        self.orders = orders
        self.router = router
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
        self.openings.unsettle()

    def engines_for(self, model: str) -> Sequence[Engine]:
        """Return the engines that are up and answer for this model, in configured order."""
        if not self.choosy:
            return self.up_engines
        return [engine for engine in self.up_engines if engine.serves(model)]

    def roomy_engine(self, draft: Attempt, engines: Sequence[Engine]) -> Engine | None:
        """Return where this attempt would go now: the router's choice among engines with room, or None."""
        kv_tokens, prefill_tokens = draft.kv_tokens, draft.prompt_tokens
        if len(engines) == 1:
            return engines[0] if engines[0].gate.has_room(kv_tokens, prefill_tokens) else None
        roomy = [
            engine
            for engine in engines
            if engine.gate.fits(prefill_tokens) and engine.gate.has_room(kv_tokens, prefill_tokens)
        ]
        if len(roomy) < 2:
            return roomy[0] if roomy else None
        candidates = [
            Candidate(
                position,
                engine.expected_ttft_s(draft.prompt_tokens),
                engine.service.tpot_s(engine.gate.streams),
            )
            for position, engine in enumerate(roomy)
        ]
        return roomy[self.router.choose(candidates).position]

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
        return sum([engine.gate.streams for engine in self.engines.values()])

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
