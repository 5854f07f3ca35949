"""The fast path of batching gives what an engine gives that steps one by one, literally as vLLM's loop does."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings, strategies as st

from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchEvent, BatchLimits, EngineSequence, EventKind
from millgate.engine.step_time import CoefficientModel, PromptChunk

FIRST, RESUMED = EventKind.FIRST_TOKEN, EventKind.RESUMED
PREEMPTED, FINISHED = EventKind.PREEMPTED, EventKind.FINISHED


def model(*, per_kv_token_s: float = 3.1e-5, overhead_s: float = 0.0) -> CoefficientModel:
    return CoefficientModel(
        floor_s=0.0113,
        base_s=0.0017,
        per_token_s=0.00053,
        per_token_squared_s=7.3e-7,
        decode_base_s=0.0101,
        per_sequence_s=0.00019,
        per_kv_token_s=per_kv_token_s,
        overhead_s=overhead_s,
    )


def limits(
    *, blocks: int = 1000, seqs: int = 8, budget: int = 64, block_tokens: int = 4, watermark: float = 0.0
) -> BatchLimits:
    return BatchLimits(
        kv_tokens=blocks * block_tokens,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        block_tokens=block_tokens,
        watermark_share=watermark,
    )


@dataclass
class Plain:
    """One sequence of the plain engine."""

    sequence: EngineSequence
    cached: int = 0
    blocks: int = 0
    produced: int = 0
    departed_at: int = -1
    leaving: bool = False
    decoding: bool = False

    @property
    def target(self) -> int:
        return self.sequence.prompt_tokens + self.produced


@dataclass
class PlainEngine:
    """vLLM's scheduling loop written down literally: every step, every sequence, every block."""

    model: CoefficientModel
    limits: BatchLimits
    now: float = 0.0
    ends_at: float = inf
    steps: int = 0
    preemptions: int = 0
    output_tokens: int = 0
    wasted: int = 0
    orphans: int = 0
    waiting: list[Plain] = field(default_factory=list)
    running: list[Plain] = field(default_factory=list)
    scheduled: list[tuple[Plain, int]] = field(default_factory=list)
    events: list[BatchEvent] = field(default_factory=list)

    def add(self, sequence: EngineSequence, now: float) -> None:
        self.run_to(now)
        self.waiting.append(Plain(sequence))
        if self.ends_at == inf:
            self.begin(now)

    def find(self, sequence_id: int) -> Plain | None:
        for plain in self.waiting + self.running:
            if plain.sequence.sequence_id == sequence_id and not plain.leaving:
                return plain
        return None

    def abort(self, sequence_id: int, now: float) -> bool:
        self.run_to(now)
        plain = self.find(sequence_id)
        if plain is None:
            return False
        self.depart(sequence_id, now)
        if plain in self.waiting:
            self.waiting.remove(plain)
            self.write_off(plain)
        else:
            plain.leaving = True
        return True

    def depart(self, sequence_id: int, now: float) -> None:
        self.run_to(now)
        plain = self.find(sequence_id)
        if plain is not None and plain.departed_at < 0:
            plain.departed_at = plain.produced

    def write_off(self, plain: Plain) -> None:
        if plain.departed_at >= 0:
            self.wasted += plain.produced
            self.orphans += plain.produced - plain.departed_at

    def run_to(self, now: float) -> None:
        while self.ends_at <= now:
            at = self.ends_at
            self.end(at)
            self.begin(at)

    def tell(self, at: float, plain: Plain, kind: EventKind) -> None:
        self.events.append(BatchEvent(at, plain.sequence.sequence_id, kind, self.steps, plain.produced, 0))

    def end(self, at: float) -> None:
        self.steps += 1
        self.scheduled.sort(key=lambda pair: not pair[0].decoding)
        for plain, tokens in self.scheduled:
            decoding = plain.decoding
            plain.cached += tokens
            if plain.cached < plain.target:
                continue
            resumed = plain.produced > 0
            plain.produced += 1
            self.output_tokens += 1
            if plain.leaving:
                continue
            plain.decoding = True
            if not decoding:
                self.tell(at, plain, RESUMED if resumed else FIRST)
            if plain.produced == plain.sequence.output_tokens:
                self.tell(at, plain, FINISHED)
                self.running.remove(plain)
                self.write_off(plain)
        for plain in [plain for plain in self.running if plain.leaving]:
            self.running.remove(plain)
            self.write_off(plain)

    def free(self) -> int:
        return self.limits.blocks - sum(plain.blocks for plain in self.running)

    def used_blocks(self) -> int:
        """Blocks of whole steps: what a decode takes for the step in progress counts at its end."""
        size = self.limits.block_tokens
        return sum(-(-plain.cached // size) if plain.decoding else plain.blocks for plain in self.running)

    def allocate(self, plain: Plain, tokens: int) -> bool:
        needed = -(-(plain.cached + tokens) // self.limits.block_tokens) - plain.blocks
        if needed > self.free():
            return False
        plain.blocks += needed
        return True

    def begin(self, at: float) -> None:
        budget = self.limits.max_num_batched_tokens
        self.scheduled = []
        preempted: list[Plain] = []
        index = 0
        while index < len(self.running):
            plain = self.running[index]
            tokens = min(plain.target - plain.cached, budget)
            if tokens == 0:
                index += 1
                continue
            while not self.allocate(plain, tokens):
                victim = self.running.pop()
                victim.cached = victim.blocks = 0
                victim.decoding = False
                self.waiting.insert(0, victim)
                preempted.append(victim)
                if victim is plain:
                    break
            if plain in preempted:
                break
            self.scheduled.append((plain, tokens))
            budget -= tokens
            index += 1
        for plain in preempted:
            self.preemptions += 1
            self.tell(at, plain, PREEMPTED)
        if not preempted:
            self.admit(budget)
        self.time_step(at)

    def admit(self, budget: int) -> None:
        watermark = int(self.limits.watermark_share * self.limits.blocks)
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            plain = self.waiting[0]
            needed = -(-plain.target // self.limits.block_tokens)
            if needed + (watermark if self.running else 0) > self.free():
                return
            tokens = min(plain.target, budget)
            assert self.allocate(plain, tokens)
            self.running.append(self.waiting.pop(0))
            self.scheduled.append((plain, tokens))
            budget -= tokens

    def time_step(self, at: float) -> None:
        decodes = [plain for plain, _ in self.scheduled if plain.decoding]
        chunks = [PromptChunk(plain.cached, tokens) for plain, tokens in self.scheduled if not plain.decoding]
        kv_tokens = sum(plain.cached for plain in decodes)
        if not self.scheduled:
            self.ends_at = inf
        elif chunks:
            self.ends_at = at + self.model.step_s(len(decodes), kv_tokens, chunks)
        else:
            self.ends_at = at + self.model.decode_steps_s(len(decodes), kv_tokens, 1)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "abort", "depart"]),
        st.integers(0, 400),  # the gap before it
        st.integers(1, 60),  # prompt tokens, or which sequence
        st.integers(1, 60),  # output tokens
    ),
    min_size=1,
    max_size=30,
)
LIMITS = st.builds(
    limits,
    blocks=st.integers(32, 90),
    seqs=st.integers(1, 6),
    budget=st.integers(6, 50),
    block_tokens=st.sampled_from([4, 5]),
    watermark=st.sampled_from([0.0, 0.1]),
)
GAP_S = 0.000713717
"""No sum of step times of `model` falls on a multiple of it, but for the first."""


def same_events(fast: list[BatchEvent], plain: list[BatchEvent]) -> None:
    # Within one boundary the order of finishes is free: by the step they joined here, by admission there.
    def key(event: BatchEvent) -> tuple[int, str, int, int]:
        return (event.step, event.kind.value, event.sequence_id, event.produced_tokens)

    assert sorted(map(key, fast)) == sorted(map(key, plain))
    for one, other in zip(sorted(fast, key=key), sorted(plain, key=key), strict=True):
        assert one.at_s == pytest.approx(other.at_s, rel=0, abs=1e-6)


@settings(max_examples=300)
@given(actions=ACTIONS, bounds=LIMITS)
def test_many_steps_at_once_give_what_stepping_one_by_one_gives(
    actions: list[tuple[str, int, int, int]], bounds: BatchLimits
) -> None:
    fast, plain = Batch(model(), bounds), PlainEngine(model(), bounds)
    events: list[BatchEvent] = []
    now = 0.0
    for number, (action, gap, tokens, output_tokens) in enumerate(actions):
        now += gap * GAP_S
        if action == "add":
            sequence = EngineSequence(number, tokens, output_tokens)
            fast.add(sequence, now)
            plain.add(sequence, now)
        elif action == "abort":
            assert fast.abort(number - tokens % 8, now) == plain.abort(number - tokens % 8, now)
        else:
            fast.depart(number - tokens % 8, now)
            plain.depart(number - tokens % 8, now)
        statistics = fast.statistics(now)
        assert (statistics.running, statistics.waiting) == (len(plain.running), len(plain.waiting))
        assert (statistics.steps, statistics.output_tokens) == (plain.steps, plain.output_tokens)
        assert statistics.kv_used_blocks == plain.used_blocks()
        events += fast.advance(now)
    events += fast.advance(now + 1000.0)
    plain.run_to(now + 1000.0)

    same_events(events, plain.events)
    statistics = fast.statistics(now + 1000.0)
    assert (statistics.steps, statistics.preemptions) == (plain.steps, plain.preemptions)
    assert (statistics.output_tokens, statistics.wasted_tokens) == (plain.output_tokens, plain.wasted)
    assert statistics.orphan_tokens == plain.orphans
    assert (statistics.running, statistics.waiting, statistics.kv_used_blocks) == (0, 0, 0)


@settings(max_examples=100)
@given(actions=ACTIONS, bounds=LIMITS, looks=st.integers(2, 9))
def test_looking_often_changes_nothing(
    actions: list[tuple[str, int, int, int]], bounds: BatchLimits, looks: int
) -> None:
    rare, often = Batch(model(), bounds), Batch(model(), bounds)
    seen_rarely: list[BatchEvent] = []
    seen_often: list[BatchEvent] = []
    now = 0.0
    for number, (action, gap, tokens, output_tokens) in enumerate(actions):
        for look in range(looks):
            seen_often += often.advance(now + gap * GAP_S * look / looks)
            often.statistics(now + gap * GAP_S * look / looks)
        now += gap * GAP_S
        for batch in (rare, often):
            if action == "add":
                batch.add(EngineSequence(number, tokens, output_tokens), now)
            else:
                batch.abort(number - tokens % 8, now)
    seen_rarely += rare.advance(now + 1000.0)
    seen_often += often.advance(now + 1000.0)

    assert seen_rarely == seen_often
    assert rare.statistics(now + 1000.0) == often.statistics(now + 1000.0)


@settings(max_examples=100)
@given(actions=ACTIONS, bounds=LIMITS)
def test_blocks_in_use_never_exceed_the_cache(
    actions: list[tuple[str, int, int, int]], bounds: BatchLimits
) -> None:
    batch = Batch(model(), bounds)
    now = 0.0
    for number, (_, gap, tokens, output_tokens) in enumerate(actions):
        now += gap * GAP_S
        batch.add(EngineSequence(number, tokens, output_tokens), now)
        assert 0 <= batch.statistics(now).kv_used_blocks <= bounds.blocks
        assert batch.running <= bounds.max_num_seqs
    while batch.next_event_at < inf:
        now = batch.next_event_at
        batch.advance(now)
        assert 0 <= batch.statistics(now).kv_used_blocks <= bounds.blocks
