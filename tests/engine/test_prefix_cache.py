"""Prefix caching within a batch: what is found, what it saves, what it shares, and what is evicted first."""

from collections import OrderedDict
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings, strategies as st

from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchEvent, BatchLimits, EngineSequence, EventKind
from millgate.engine.step_time import CoefficientModel


def steady() -> CoefficientModel:
    """Every step takes one second, whatever is in it."""
    return CoefficientModel(
        floor_s=1.0,
        base_s=0.0,
        per_token_s=0.0,
        per_token_squared_s=0.0,
        decode_base_s=1.0,
        per_sequence_s=0.0,
        per_kv_token_s=0.0,
        overhead_s=0.0,
    )


def limits(*, blocks: int = 1000, budget: int = 64, unit_tokens: int = 4, seqs: int = 8) -> BatchLimits:
    """Blocks of 4 tokens."""
    return BatchLimits(
        kv_tokens=blocks * 4,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        block_tokens=4,
        watermark_share=0.0,
        prefix_unit_tokens=unit_tokens,
    )


def hits_of(batch: Batch, *sequences: EngineSequence) -> list[int]:
    """Run these on an idle engine, one after the other, and return what each found."""
    hits = []
    for sequence in sequences:
        now = 1e6 * sequence.sequence_id
        batch.add(sequence, now)
        hits += [event.hit_tokens for event in batch.advance(now + 1e5) if event.kind is EventKind.FINISHED]
    return hits


def test_an_equal_prefix_is_computed_once() -> None:
    batch = Batch(steady(), limits())

    assert hits_of(
        batch, EngineSequence(1, 18, 1, (1, 2, 3, 4)), EngineSequence(2, 20, 1, (1, 2, 3, 5, 6))
    ) == [
        0,
        12,
    ]
    numbers = batch.statistics(1e7)
    assert (numbers.prefilled_tokens, numbers.prefix_queried_tokens, numbers.prefix_hit_tokens) == (
        26,
        38,
        12,
    )


def test_the_last_token_is_always_computed() -> None:
    whole = EngineSequence(1, 16, 1, (1, 2, 3, 4))
    batch = Batch(steady(), limits())

    assert hits_of(batch, whole, whole._replace(sequence_id=2)) == [0, 12]


def test_a_hit_ends_at_the_first_unit_that_is_missing() -> None:
    batch = Batch(steady(), limits())

    assert hits_of(batch, EngineSequence(1, 17, 1, (1, 2, 3, 4)), EngineSequence(2, 17, 1, (1, 9, 3, 4))) == [
        0,
        4,
    ]


def test_full_blocks_of_an_answer_can_be_found_too() -> None:
    """Of 10 + 7 tokens 16 are cached when it ends: the last one never is."""
    turn = EngineSequence(1, 10, 7, (1, 2, 3, 4))
    batch = Batch(steady(), limits())

    assert hits_of(batch, turn, EngineSequence(2, 30, 1, (1, 2, 3, 4, 5, 6, 7))) == [0, 16]


def test_an_answer_cut_short_leaves_what_it_made() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 10, 100, (1, 2, 3, 4, 5, 6)), 0.0)
    batch.abort(1, 3.5)
    batch.advance(10.0)

    # One step for the prompt and three for tokens: 13 are cached.
    assert hits_of(batch, EngineSequence(2, 30, 1, (1, 2, 3, 4, 5, 6))) == [12]


def test_units_of_several_blocks_are_found_whole_or_not_at_all() -> None:
    batch = Batch(steady(), limits(unit_tokens=8))

    assert hits_of(batch, EngineSequence(1, 23, 1, (1, 2)), EngineSequence(2, 23, 1, (1, 2))) == [0, 16]


def test_siblings_in_one_step_share_from_the_start() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 1, 1), 0.0)
    for number in (2, 3, 4):
        batch.add(EngineSequence(number, 18, 3, (1, 2, 3, 4)), 0.5)
    batch.advance(1.5)

    # 4 blocks together, and each its own fifth one.
    assert batch.statistics(1.5).kv_used_blocks == 7
    assert batch.statistics(2.5).prefilled_tokens == 1 + 18 + 2 + 2
    assert batch.statistics(100.0).kv_used_blocks == 0


def test_a_shared_prefix_lets_more_run_at_once() -> None:
    crowd = [EngineSequence(number, 18, 50, (1, 2, 3, 4)) for number in range(4)]
    apart, together = Batch(steady(), limits(blocks=19)), Batch(steady(), limits(blocks=19))
    for sequence in crowd:
        apart.add(sequence._replace(prefix_ids=()), 0.0)
        together.add(sequence, 0.0)

    assert (apart.statistics(1.5).running, together.statistics(1.5).running) == (3, 4)


def test_idle_blocks_are_free_memory() -> None:
    batch = Batch(steady(), limits(blocks=10))

    assert hits_of(batch, EngineSequence(1, 30, 1, (1, 2, 3, 4, 5, 6, 7))) == [0]
    assert batch.statistics(1e6).kv_used_blocks == 0
    assert batch.refusal(EngineSequence(2, 40, 1)) is None
    assert hits_of(batch, EngineSequence(2, 40, 1), EngineSequence(3, 30, 1, (1, 2, 3, 4, 5, 6, 7))) == [0, 0]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    """10 blocks hold a prefix of 7; a stranger takes 6 of which 3 are free: the last three units go."""
    batch = Batch(steady(), limits(blocks=10))
    prefix = EngineSequence(1, 29, 1, (1, 2, 3, 4, 5, 6, 7))

    assert hits_of(batch, prefix, EngineSequence(2, 24, 1), prefix._replace(sequence_id=3)) == [0, 0, 16]


def test_what_was_left_first_is_evicted_first() -> None:
    batch = Batch(steady(), limits(blocks=10))
    first, second = EngineSequence(1, 13, 1, (1, 2, 3)), EngineSequence(2, 13, 1, (4, 5, 6))
    again = [first._replace(sequence_id=3), EngineSequence(4, 16, 1), second._replace(sequence_id=5)]

    # The stranger needs no idle block of the first, which was used again.
    assert hits_of(batch, first, second, *again, first._replace(sequence_id=6)) == [0, 0, 12, 0, 12, 12]
    # The next one takes the second prefix, and nothing of the first.
    assert hits_of(batch, EngineSequence(7, 28, 1), first._replace(sequence_id=8)) == [0, 12]
    assert hits_of(batch, second._replace(sequence_id=9)) == [0]


def test_a_preempted_sequence_finds_what_is_left_of_it() -> None:
    """Two answers outgrow 10 blocks: the younger one gives way, and its full blocks wait for it."""
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 12, 15, ()), 0.0)
    batch.add(EngineSequence(2, 12, 9, (1, 2, 3)), 0.0)
    events = batch.advance(1000.0)

    assert [event.sequence_id for event in events if event.kind is EventKind.PREEMPTED] == [2]
    resumed = next(event for event in events if event.kind is EventKind.RESUMED)
    assert resumed.hit_tokens == 0  # what counts is its first admission
    assert batch.statistics(1000.0).prefilled_tokens < 12 + 12 + 12 + 9


def test_a_hit_is_counted_once_however_often_it_is_preempted() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 12, 15, ()), 0.0)
    batch.add(EngineSequence(2, 12, 9, (1, 2, 3)), 0.0)

    assert batch.statistics(1000.0).preemptions == 1
    assert batch.statistics(1000.0).prefix_queried_tokens == 24


def test_a_unit_must_be_whole_blocks() -> None:
    with pytest.raises(
        ValueError, match="prefix_unit_tokens: must be a whole number of blocks of 4 tokens, got 6"
    ):
        limits(unit_tokens=6)


PROMPTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 7), st.integers(0, 3), st.integers(1, 9)),
    min_size=1,
    max_size=40,
)
"""Which family it belongs to, units, tokens beyond them, answer."""


@settings(max_examples=200)
@given(prompts=PROMPTS, blocks=st.integers(11, 40))
def test_one_at_a_time_it_is_the_plain_lru_list(
    prompts: list[tuple[int, int, int, int]], blocks: int
) -> None:
    batch, kept = Batch(steady(), limits(blocks=blocks)), OrderedDict[int, None]()
    sequences, expected = [], []
    for number, (family, units, rest, output_tokens) in enumerate(prompts):
        ids = tuple(100 * family + unit for unit in range(units))
        prompt_tokens = 4 * units + rest
        sequences.append(EngineSequence(number, prompt_tokens, output_tokens, ids))
        hit = 0
        for unit in ids[: (prompt_tokens - 1) // 4]:
            if unit not in kept:
                break
            hit += 1
        expected.append(4 * hit)
        need = -(-(prompt_tokens + output_tokens - 1) // 4)
        for unit in ids:
            kept.pop(unit, None)
        while len(kept) > blocks - need:
            kept.popitem(last=False)
        kept.update(dict.fromkeys(reversed(ids)))

    assert hits_of(batch, *sequences) == expected


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "abort"]),
        st.integers(0, 4000),  # milliseconds before it
        st.integers(1, 60),  # prompt tokens, or which sequence
        st.integers(1, 60),  # output tokens
        st.integers(0, 3),  # family
    ),
    min_size=1,
    max_size=30,
)
BOUNDS = st.builds(
    limits,
    blocks=st.integers(32, 70),
    seqs=st.integers(1, 6),
    budget=st.integers(6, 50),
    unit_tokens=st.sampled_from([4, 8]),
)


def run(actions: list[tuple[str, int, int, int, int]], batch: Batch, *, named: bool) -> list[BatchEvent]:
    events: list[BatchEvent] = []
    now = 0.0
    for number, (action, gap_ms, tokens, output_tokens, family) in enumerate(actions):
        now += gap_ms * 0.000713717
        if action == "add":
            ids = tuple(100 * family + unit for unit in range(30)) if named else ()
            batch.add(EngineSequence(number, tokens, output_tokens, ids), now)
        else:
            batch.abort(number - tokens % 8, now)
        assert 0 <= batch.statistics(now).kv_used_blocks <= batch.limits.blocks
    while batch.next_event_at < inf:
        now = batch.next_event_at
        events += batch.advance(now)
        assert 0 <= batch.statistics(now).kv_used_blocks <= batch.limits.blocks
    return events


@settings(max_examples=200)
@given(actions=ACTIONS, bounds=BOUNDS)
def test_whatever_is_shared_every_block_comes_back(
    actions: list[tuple[str, int, int, int, int]], bounds: BatchLimits
) -> None:
    batch = Batch(steady(), bounds)
    ended = [
        event.sequence_id for event in run(actions, batch, named=True) if event.kind is EventKind.FINISHED
    ]
    numbers = batch.statistics(1e9)

    assert numbers.kv_used_blocks == numbers.running == numbers.waiting == 0
    assert len(ended) == len(set(ended)) == numbers.finished
    assert numbers.prefix_hit_tokens <= numbers.prefix_queried_tokens


@settings(max_examples=200)
@given(actions=ACTIONS, bounds=BOUNDS)
def test_sequences_without_names_are_served_as_without_a_cache(
    actions: list[tuple[str, int, int, int, int]], bounds: BatchLimits
) -> None:
    cached, plain = Batch(steady(), bounds), Batch(steady(), replace(bounds, prefix_unit_tokens=0))

    assert run(actions, cached, named=False) == run(actions, plain, named=False)
