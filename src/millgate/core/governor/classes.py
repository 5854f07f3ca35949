"""Which lane takes a request that names none? By what it takes of an idle engine (design section 4, step 2).

Idle, as the class must not depend on the load: under load more requests would count as long, with another deadline. The
engine is the one of its route that is fastest. A request that was refused and is back keeps its class: what is learned of
the engine between two attempts must not give it another deadline.
"""

from collections.abc import Sequence

from millgate.core.decisions import Classed
from millgate.core.events import Arrived
from millgate.core.limits.gate import is_only_read
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Route
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.words import ClassedBy, LaneTakes


class Classes:
    """The lanes that take requests by size; `first` takes all others. Without such lanes nothing is looked at."""

    __slots__ = ("_batch", "_by_tag", "_long_prompts", "first")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.first = lanes[0]
        self._long_prompts = _that_take(lanes, LaneTakes.LONG_PROMPTS)
        self._batch = _that_take(lanes, LaneTakes.BATCH)
        sized = self._long_prompts + self._batch
        self._by_tag = {lane.tag: lane for lane in (self.first, *sized)} if sized else {}

    def lane_of(
        self, arrival: Arrived, route: Route, sizes: tuple[int, int, int], record: ReturnRecord | None
    ) -> tuple[Lane, Classed | None]:
        """Return the lane of a sized request that names none, and why it is not the first.

        A request that was refused and is back stays in the lane of its first attempt, if that lane is one of these.
        """
        if not self._by_tag:
            return self.first, None
        lane, classed = self._by_size(arrival, route.up or route.engines, sizes)
        before = None if record is None else self._by_tag.get(record.lane)
        if before is None or before is lane:
            return lane, classed
        return before, _classed(before, ClassedBy.FIRST_ATTEMPT, sizes[0])

    def _by_size(
        self, arrival: Arrived, engines: Sequence[Engine], sizes: tuple[int, int, int]
    ) -> tuple[Lane, Classed | None]:
        """What is only read is batch work however short it is; then its prompt counts, then its whole answer."""
        prompt_tokens, output_tokens, _ = sizes
        if self._batch and is_only_read(arrival):
            return self._batch[-1], _classed(self._batch[-1], ClassedBy.ONLY_READ, prompt_tokens)
        for lane in self._long_prompts:
            if not _reads_within(engines, prompt_tokens, lane.settings.over_s):
                reading_s = least_reading_s(engines, prompt_tokens)
                return lane, _classed(lane, ClassedBy.PROMPT, prompt_tokens, reading_s)
        if self._batch and not arrival.stream:
            whole_s = _whole_s(engines, prompt_tokens, output_tokens / arrival.answers)
            for lane in self._batch:
                if whole_s > lane.settings.over_s:
                    return lane, _classed(lane, ClassedBy.ANSWER, prompt_tokens, whole_s)
        return self.first, None


def least_reading_s(engines: Sequence[Engine], prompt_tokens: int) -> float:
    """Return how long such a prompt takes to be read, on the engine that reads fastest when idle."""
    return min([engine.service.reading_s(prompt_tokens) for engine in engines], default=0.0)


def _that_take(lanes: Sequence[Lane], takes: LaneTakes) -> list[Lane]:
    """Return the lanes that take such requests, the one for the longest first."""
    found = [lane for lane in lanes if lane.settings.takes is takes]
    return sorted(found, key=lambda lane: -lane.settings.over_s)


def _classed(lane: Lane, by: ClassedBy, prompt_tokens: int, value_s: float = 0.0) -> Classed:
    bound_s = lane.settings.over_s if value_s else 0.0
    return Classed(lane.settings.name, by, prompt_tokens, value_s, bound_s)


def _reads_within(engines: Sequence[Engine], prompt_tokens: int, within_s: float) -> bool:
    """Return whether any engine reads it in that time; for most prompts the first does."""
    for engine in engines:
        if engine.service.reading_s(prompt_tokens) <= within_s:
            return True
    return not engines


def _whole_s(engines: Sequence[Engine], prompt_tokens: int, output_tokens: float) -> float:
    """Return how long the whole answer takes, alone on the engine that is fastest."""
    return min(
        [engine.service.service_s(prompt_tokens, output_tokens, 1.0) for engine in engines], default=0.0
    )
