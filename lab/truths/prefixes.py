"""Truths of worlds with prefix caches: what LRU finds, where it finds nothing, and how many sessions fit.

The rows of independent references hold Che's approximation against engines whose memory is what it should be. The requests
come one at a time, each asks for one unit and one token more, and the engine has memory for so many units and that token.
The approximation is wrong by far less than its rows can tell. The other rows are exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.agents.session_users import Agents
from lab.books import unread_books
from lab.bounds.shared_cache import SharedCache
from lab.truths import formulas
from lab.truths.rows import SHARE_TOLERANCE, ValidationRow
from millgate.core.settings import LaneSettings
from millgate.engine.batching import Batch
from millgate.engine.profile import EngineProfile, find_profile
from millgate.engine.sequences import BatchLimits, EngineSequence
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Draws, Streams
from millgate.sim.traces.sources import AgentSession, SessionTurn
from millgate.sim.world import World

_PROFILE: Final = find_profile("llama3-8b_h100_tp1")
_BLOCK_TOKENS: Final = 16
_OBJECTS: Final = 2_000
_MEMORY: Final = 150
_ENGINES: Final = 4
_BATCHES: Final = 30
_ZIPF: Final = 0.8
"""The exponent of popularity; web and prompt caches are described by 0.6 to 1."""


def prefix_rows(references: int = 100_000) -> list[ValidationRow]:
    """Return every row; `references` is how many are counted of each stream of independent ones."""
    return [*_independent(references), *_in_turn(), *_working_set()]


def _independent(references: int) -> list[ValidationRow]:
    popularity = np.arange(1, _OBJECTS + 1, dtype=np.float64) ** -_ZIPF
    popularity /= popularity.sum()
    warm_up = 8 * _OBJECTS
    dice = Streams(1).generator("references")
    asked = dice.choice(_OBJECTS, warm_up + references, p=popularity).tolist()
    engines = dice.integers(0, _ENGINES, len(asked)).tolist()
    shares = popularity.tolist()
    one, all_memory = (
        formulas.lru_hit_share(shares, _MEMORY),
        formulas.lru_hit_share(shares, _ENGINES * _MEMORY),
    )
    found = {
        "one engine": (one, _found_by_engines(asked, [0] * len(asked))),
        f"{_ENGINES} engines by lot": (one, _found_by_engines(asked, engines)),
        f"{_ENGINES} engines' memory shared": (all_memory, _found_by_shared(asked)),
    }
    return [
        _estimated(f"LRU, Zipf {_ZIPF:g}, {name}: share found", expected, hits[warm_up:])
        for name, (expected, hits) in found.items()
    ]


def _found_by_engines(asked: Sequence[int], engines: Sequence[int]) -> list[bool]:
    """Ask real batches, one request at a time; each engine has memory for `_MEMORY` units and one block more."""
    limits = BatchLimits(
        kv_tokens=(_MEMORY + 1) * _BLOCK_TOKENS,
        max_num_seqs=1,
        max_num_batched_tokens=8192,
        block_tokens=_BLOCK_TOKENS,
        watermark_share=0.0,
        prefix_unit_tokens=_BLOCK_TOKENS,
    )
    batches = [Batch(_PROFILE.step_model(), limits) for _ in range(max(engines) + 1)]
    found = []
    for number, (unit, engine) in enumerate(zip(asked, engines, strict=True)):
        batch = batches[engine]
        batch.add(EngineSequence(number, _BLOCK_TOKENS + 1, 1, (unit,)), float(number))
        found.append(batch.advance(number + 0.9)[-1].hit_tokens > 0)
    return found


def _found_by_shared(asked: Sequence[int]) -> list[bool]:
    cache = SharedCache(_ENGINES * _MEMORY * PREFIX_UNIT_TOKENS)
    found = []
    for unit in asked:
        before = cache.hit_tokens
        cache.ask(Job(0.0, PREFIX_UNIT_TOKENS + 1, 1, prefix_ids=(unit,)))
        found.append(cache.hit_tokens > before)
    return found


def _estimated(name: str, expected: float, found: Sequence[bool]) -> ValidationRow:
    size = len(found) // _BATCHES
    means = np.array(found[: size * _BATCHES], dtype=np.float64).reshape(_BATCHES, size).mean(axis=1)
    got, stderr = float(means.mean()), float(means.std(ddof=1)) / sqrt(_BATCHES)
    ok = 3.0 * stderr <= SHARE_TOLERANCE * expected and abs(got - expected) <= 3.0 * stderr
    return ValidationRow(name, ok, expected, round(got, 6), round(stderr, 6), len(found))


def _in_turn(units: int = 10, rounds: int = 20) -> Iterator[ValidationRow]:
    """Equal contexts in strict turn: the cliff at the working set."""
    for contexts, memory_units in ((8, 80), (8, 75), (8, 70), (8, 40)):
        memory = memory_units / units
        limits = BatchLimits(
            kv_tokens=(memory_units + 1) * _BLOCK_TOKENS,
            max_num_seqs=1,
            max_num_batched_tokens=8192,
            block_tokens=_BLOCK_TOKENS,
            watermark_share=0.0,
            prefix_unit_tokens=_BLOCK_TOKENS,
        )
        batch = Batch(_PROFILE.step_model(), limits)
        hits = 0
        for number in range(contexts * rounds):
            first = number % contexts * units
            ids = tuple(range(first, first + units))
            batch.add(EngineSequence(number, units * _BLOCK_TOKENS + 1, 1, ids), float(number))
            (*_, finished) = batch.advance(number + 0.9)
            # In the last round what the beginning has left behind is long gone.
            hits += finished.hit_tokens if number >= contexts * (rounds - 1) else 0
        got = hits / (contexts * units * _BLOCK_TOKENS)
        expected = formulas.cyclic_hit_share(contexts, memory)
        yield _exact(
            f"{contexts} contexts in turn, memory for {memory:g}: share found", expected, got, contexts
        )


def _exact(name: str, expected: float, got: float, count: int) -> ValidationRow:
    return ValidationRow(
        name, abs(got - expected) <= 1e-9 * max(1.0, abs(expected)), expected, got, 0.0, count
    )


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Equal agents, evenly spread over one think time, before one engine with memory for `fitting` of their contexts."""

    agents: int
    fitting: int
    units: int = 8
    think_s: float = 60.0
    cycles: int = 40

    @property
    def context_tokens(self) -> int:
        """Tokens of the context that every turn asks again; one more is new in each."""
        return self.units * PREFIX_UNIT_TOKENS

    def profile(self) -> EngineProfile:
        """Return an engine of that memory which reads a prompt in one step."""
        kv_tokens = self.fitting * self.context_tokens + _BLOCK_TOKENS
        return replace(_PROFILE, kv_tokens=kv_tokens, max_num_seqs=1, max_num_batched_tokens=8192)


def _working_set(fitting: int = 6) -> Iterator[ValidationRow]:
    """As many sessions as fit: sessions a second = memory / (context x (service + gap)). One more, and nothing is found."""
    for agents in (fitting, fitting + 1):
        cycle = _Cycle(agents, fitting)
        share = formulas.cyclic_hit_share(agents, fitting)
        turns_per_s, found = _play(cycle, share)
        of = f"{agents} agents, memory for {fitting}"
        yield _exact(f"{of}: share of contexts found", share, found, agents)
        expected = agents / (_turn_s(cycle, share) + cycle.think_s)
        yield _exact(f"{of}: turns a second", expected, turns_per_s, agents)


def _play(cycle: _Cycle, share: float) -> tuple[float, float]:
    """Return turns a second and the share of contexts found, over whole cycles after the first two."""
    fleet = replace(uniform_fleet(cycle.profile(), 1, [LaneSettings("truth")]), prefix_caching=True)
    loop, streams = Loop(), Streams(1)
    world = World(POLICIES["no gate"](fleet.settings), loop, unread_books())
    fleet.populate(world, streams)
    agents = Agents(
        world,
        Crowd(world, Manners(), streams),
        _endless(cycle),
        cycle.agents,
        _evenly(cycle.agents, streams),
        spread_s=cycle.think_s,
        until_s=1e9,
    )
    cycle_s = _turn_s(cycle, share) + cycle.think_s
    # Half-way between the ends of two turns, so that rounding moves none across.
    loop.run(_turn_s(cycle, 0.0) + 2.0 * cycle_s + cycle.think_s / (2.0 * cycle.agents))
    before, turns = world.totals(), agents.finished_turns
    loop.run(loop.now + cycle.cycles * cycle_s)
    after, turns = world.totals(), agents.finished_turns - turns
    return turns / (cycle.cycles * cycle_s), (after.hit_tokens - before.hit_tokens) / (
        turns * cycle.context_tokens
    )


def _endless(cycle: _Cycle) -> Iterator[AgentSession]:
    """Yield a session for each agent, of the same turn for longer than is looked at."""
    turns = cycle.cycles + 10
    for number in range(1, cycle.agents + 1):
        ids = tuple(range(number * cycle.units, (number + 1) * cycle.units))
        job = Job(0.0, cycle.context_tokens + 1, 1, prefix_ids=ids, session=number)
        yield AgentSession(number, (SessionTurn(job, cycle.think_s),) * turns)


def _evenly(agents: int, streams: Streams) -> Draws:
    """Return for each agent in turn its part of the think time, and that nothing of its session is done."""

    def sample(_dice: np.random.Generator, count: int) -> NDArray[np.float64]:
        pairs = np.zeros((count // 2, 2))
        pairs[:, 0] = np.arange(count // 2) % agents / agents
        return pairs.reshape(-1)

    return streams.draws("evenly", sample)


def _turn_s(cycle: _Cycle, share: float) -> float:
    """Seconds of a turn alone: one step, for the last token of the prompt or for all of it."""
    end = cycle.context_tokens + 1
    begin = round(share * cycle.context_tokens)
    profile = _PROFILE
    work_ms = profile.prefill_base_ms + profile.prefill_per_token_ms * (end - begin)
    work_ms += profile.prefill_per_token_squared_ms * (end**2 - begin**2)
    return (max(profile.prefill_floor_ms, work_ms) + profile.step_overhead_ms) / 1e3
