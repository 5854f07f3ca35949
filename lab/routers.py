"""Routers that others use, as published, over one index of prefixes: what placement by the gate is held against.

None of them refuses or holds anything back. Each knows what it has sent where, reads prompts off as their first tokens come, and believes an
engine to hold what it was sent. The formulas and constants are those of their projects:

- `least requests`: the fewest requests open, whatever is held.
- `smg` (sgl-project/sglang, sgl-router): the longest match where it is more than half of the prompt, else the smallest load. The
  smallest load too when loads differ by more than 10 % and 32 requests.
- `llm-d` (llm-d-router, affinity filter and token load): of the engines that hold 0.8 of the prompt, or of all, the one with
  the fewest unread tokens. No affinity beyond 18 s of reading at 15,928 tokens a second.
- `lmetric` (Dynamo; arXiv 2603.15202): unread tokens with this prompt's, times streams.
- `dynamo` (ai-dynamo): unread blocks with this prompt's, less what is held, plus the blocks of running requests.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from millgate.core.decisions import Admit, Decision, Ended, Leg
from millgate.core.events import Arrived, ClientGone, Event, Failed, FirstToken, Released
from millgate.core.routing.prefix_index import PrefixIndex
from millgate.core.settings import Settings
from millgate.core.words import Outcome

_BYTES_PER_TOKEN = 4
_SMG_MATCH, _SMG_RATIO, _SMG_REQUESTS = 0.5, 1.1, 32
_LLMD_MATCH, _LLMD_TOKENS = 0.8, 18.0 * 15_928.0


class Load(NamedTuple):
    """One engine as a router sees it for one request: its `streams`, tokens, and what it holds of the prompt."""

    streams: int
    unread_tokens: int
    context_tokens: int
    held_tokens: int


Rule = Callable[[Sequence[Load], int], int]
"""Every engine's load and the prompt's tokens in, the position of the chosen engine out."""


def _least(values: Sequence[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)


def _least_requests(loads: Sequence[Load], _prompt_tokens: int) -> int:
    return _least([load.streams for load in loads])


def _smg(loads: Sequence[Load], prompt_tokens: int) -> int:
    most, mean = max(load.streams for load in loads), sum(load.streams for load in loads) / len(loads)
    deepest = _least([-load.held_tokens for load in loads])
    is_uneven = most > _SMG_RATIO * mean and most > mean + _SMG_REQUESTS
    if is_uneven or loads[deepest].held_tokens <= _SMG_MATCH * prompt_tokens:
        return _least_requests(loads, prompt_tokens)
    return deepest


def _llm_d(loads: Sequence[Load], prompt_tokens: int) -> int:
    waits = [load.unread_tokens + prompt_tokens - load.held_tokens for load in loads]
    near = [
        wait if load.held_tokens >= _LLMD_MATCH * prompt_tokens else inf
        for load, wait in zip(loads, waits, strict=True)
    ]
    nearest = _least(near)
    return nearest if near[nearest] <= _LLMD_TOKENS else _least(waits)


def _lmetric(loads: Sequence[Load], prompt_tokens: int) -> int:
    return _least(
        [(load.unread_tokens + prompt_tokens - load.held_tokens) * (load.streams + 1.0) for load in loads]
    )


def _dynamo(loads: Sequence[Load], prompt_tokens: int) -> int:
    return _least(
        [
            max(0, load.unread_tokens + prompt_tokens - load.held_tokens) + load.context_tokens
            for load in loads
        ]
    )


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "least requests": _least_requests,
        "smg": _smg,
        "llm-d": _llm_d,
        "lmetric": _lmetric,
        "dynamo": _dynamo,
    }
)


class RoutingCore:
    """Sends every request at once to the engine that a rule chooses; it never refuses."""

    def __init__(self, settings: Settings, rule: Rule) -> None:
        self._rule = rule
        self._index = PrefixIndex()
        self._names = [engine.name for engine in settings.engines]
        for engine in settings.engines:
            self._index.enrol(engine.name, engine.kv_tokens)
        self._open: list[dict[int, tuple[int, int]]] = [{} for _ in self._names]
        self._where: dict[int, int] = {}

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Admit every arrival at once, and hand a failure on; keep account of what is open where, and how much of it is unread."""
        del now
        if isinstance(event, Arrived):
            return (self._placed(event),)
        if isinstance(event, Failed):
            name = self._names[self._where[event.attempt]]
            return (Ended(event.attempt, Outcome.ENGINE_FAILED, "", name, 0, 0, None, 0, 0, event.kind),)
        if isinstance(event, FirstToken):
            opened = self._open[self._where[event.attempt]]
            opened[event.attempt] = (opened[event.attempt][0], 0)
        elif isinstance(event, Released | ClientGone) and event.attempt in self._where:
            del self._open[self._where.pop(event.attempt)][event.attempt]
        return ()

    def next_wake(self) -> float | None:
        """Return None: nothing ever falls due."""
        return None

    def _placed(self, arrival: Arrived) -> Admit:
        prompt_tokens = arrival.prompt_bytes // _BYTES_PER_TOKEN
        marks = arrival.marks() if arrival.marks is not None else ()
        loads = [
            Load(
                len(opened),
                sum(unread for _, unread in opened.values()),
                sum(context for context, _ in opened.values()),
                self._index.held_by(number, marks, prompt_tokens),
            )
            for number, opened in enumerate(self._open)
        ]
        number = self._rule(loads, prompt_tokens)
        self._index.placed(number, marks, prompt_tokens)
        self._where[arrival.attempt] = number
        unread = max(1, prompt_tokens - loads[number].held_tokens)
        self._open[number][arrival.attempt] = (prompt_tokens, unread)
        size = prompt_tokens + (arrival.max_tokens or 1_000_000)
        return Admit(arrival.attempt, (Leg(self._names[number], 1, size, 0),), 0.0, 0.0, inf)
