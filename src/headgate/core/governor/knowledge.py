"""All that the governor knows, in one place: `assess` reads it, `commit` and `endings` write it."""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappush

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

    `version` counts every change of what runs, so that what is derived from it can be kept.
    """

    __slots__ = (
        "arrivals",
        "attempts",
        "drain_by",
        "draining",
        "early",
        "engines",
        "first_lane",
        "good_output_tokens",
        "hints_given",
        "labelled",
        "lanes",
        "learned_output",
        "orders",
        "places",
        "prompt_bytes",
        "recognised",
        "router",
        "settings",
        "version",
        "wakes",
        "wasted_output_tokens",
        "wasted_prompt_tokens",
    )

    def __init__(
        self, settings: Settings, orders: Mapping[str, Callable[[], Order]], router: Router, now: float
    ) -> None:
        self.settings = settings
        self.orders = orders
        self.router = router
        self.lanes = {lane.name: Lane(lane, orders[lane.order], now) for lane in settings.lanes}
        self.first_lane = self.lanes[settings.lanes[0].name]
        self.engines = {engine.name: Engine(engine, index) for index, engine in enumerate(settings.engines)}
        self.places = Places(settings.max_places)
        self.prompt_bytes = PromptBytes()
        self.learned_output = LearnedOutput()
        self.attempts: dict[int, Attempt] = {}
        self.wakes: list[tuple[float, int, int]] = []
        self.version = 0
        self.draining = False
        self.drain_by: float | None = None
        self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0

    def engines_for(self, model: str) -> list[Engine]:
        """Return the engines that are up and answer for this model, in configured order."""
        return [engine for engine in self.engines.values() if engine.serves(model)]

    def roomy_engine(self, draft: Attempt, engines: list[Engine]) -> Engine | None:
        """Return where this attempt would go now: the router's choice among engines with room, or None."""
        roomy = [
            engine
            for engine in engines
            if engine.gate.has_room(*engine.gate.clip(draft.kv_tokens, draft.prefill_tokens))
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

    def held_count(self) -> int:
        """Return how many attempts wait, over all lanes."""
        return sum(len(lane.order) for lane in self.lanes.values())

    def running(self) -> int:
        """Return how many permits are out, over all engines."""
        return sum(engine.gate.streams for engine in self.engines.values())

    def stream_limit(self) -> int:
        """Return how many streams may run, over all engines that are up."""
        return sum(engine.limit for engine in self.engines.values() if engine.up)

    def next_held(self) -> Attempt | None:
        """Return who is next over all lanes: the head whose request is oldest."""
        heads = [head for lane in self.lanes.values() if (head := lane.order.head()) is not None]
        if not heads:
            return None
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
