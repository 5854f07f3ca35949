"""Prefill here, decode there: an engine that keeps a prompt's KV for another, and one that begins with it."""

from math import inf
from random import Random

import pytest

from engine.test_prefix_cache import limits, steady
from millgate.engine.batching import Batch
from millgate.engine.sequences import EngineSequence, EventKind, SequenceProgress


def test_a_pinned_sequence_keeps_its_blocks_until_it_is_let_go() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 20, 1, pins_kv=True), 0.0)

    assert [event.kind for event in batch.advance(5.0)] == [EventKind.FIRST_TOKEN, EventKind.FINISHED]
    assert (batch.statistics(5.0).pinned, batch.statistics(5.0).kv_used_blocks) == (1, 5)
    assert batch.unpin(1, 6.0)
    assert (batch.statistics(6.0).pinned, batch.statistics(6.0).kv_used_blocks) == (0, 0)
    assert not batch.unpin(1, 7.0)


def test_what_waits_for_pinned_blocks_starts_when_they_are_let_go_though_the_engine_is_idle() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 20, 1, pins_kv=True), 0.0)
    batch.advance(5.0)
    batch.add(EngineSequence(2, 24, 1), 6.0)

    assert batch.advance(50.0) == ()
    assert batch.waiting == 1
    batch.unpin(1, 60.5)
    assert [(event.at_s, event.kind) for event in batch.advance(70.0)] == [
        (61.5, EventKind.FIRST_TOKEN),
        (61.5, EventKind.FINISHED),
    ]


def test_what_waits_for_pinned_blocks_beside_running_ones_starts_with_the_next_step() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 20, 1, pins_kv=True), 0.0)
    batch.advance(5.0)
    batch.add(EngineSequence(2, 4, 10), 6.0)
    batch.add(EngineSequence(3, 16, 1), 6.5)
    batch.unpin(1, 9.5)

    assert (3, 11.0) in [(event.sequence_id, event.at_s) for event in batch.advance(100.0)]


def test_a_pinned_prompt_can_be_found_and_stays_when_it_is_let_go() -> None:
    batch = Batch(steady(), limits())
    prompt = EngineSequence(1, 21, 1, (1, 2, 3, 4, 5), pins_kv=True)
    batch.add(prompt, 0.0)
    batch.advance(5.0)
    batch.add(prompt._replace(sequence_id=2, pins_kv=False), 6.0)
    assert batch.advance(10.0)[-1].hit_tokens == 20
    batch.unpin(1, 11.0)
    batch.add(prompt._replace(sequence_id=3, pins_kv=False), 12.0)

    assert batch.advance(20.0)[-1].hit_tokens == 20
    assert batch.statistics(20.0).kv_used_blocks == 0


def test_a_prompt_that_is_handed_over_costs_its_last_token() -> None:
    batch = Batch(steady(), limits(budget=8))
    batch.add(EngineSequence(1, 40, 3, is_handed_over=True), 0.0)
    first, finished = batch.advance(100.0)

    assert (first.at_s, first.hit_tokens, finished.at_s) == (1.0, 39, 3.0)
    assert batch.statistics(100.0).prefilled_tokens == 1


def test_it_takes_the_memory_of_the_whole_prompt_and_is_found_by_later_ones() -> None:
    batch = Batch(steady(), limits(blocks=12))
    ids = tuple(range(10))
    batch.add(EngineSequence(1, 41, 3, ids, is_handed_over=True), 0.0)
    batch.advance(1.5)
    assert batch.statistics(1.5).kv_used_blocks == 11
    batch.advance(50.0)
    batch.add(EngineSequence(2, 41, 1, ids), 60.0)

    assert batch.advance(100.0)[-1].hit_tokens == 40
    numbers = batch.statistics(100.0)
    assert (numbers.prefix_queried_tokens, numbers.prefix_hit_tokens) == (82, 40)


def test_a_preempted_one_is_computed_here() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 12, 15), 0.0)
    batch.add(EngineSequence(2, 12, 9, is_handed_over=True), 0.0)
    batch.advance(100.0)

    numbers = batch.statistics(100.0)
    assert numbers.preemptions == 1
    assert numbers.prefilled_tokens > 12 + 12
    assert (numbers.finished, numbers.kv_used_blocks) == (2, 0)


def _cached(progress: SequenceProgress, step: int) -> int:
    """Return the tokens in the KV cache when so many steps are over."""
    return progress.cached_tokens + (step - progress.joined_step if progress.phase >= 0 else 0)


def counted(batch: Batch) -> int:
    """Count the blocks in use one by one: each sequence's own, and each named unit once."""
    scheduler = batch._scheduler
    memory, cache = scheduler.blocks, scheduler.blocks.cache
    assert cache is not None
    planned = {progress.sequence.sequence_id: tokens for progress, tokens in scheduler._chunks}
    live = [*scheduler.running.values(), *memory._pinned.values()]
    assert set(cache._held) == {progress.sequence.sequence_id for progress in live}
    assert not set(cache._users) & set(cache._idle)
    blocks = len(cache._users) * cache.unit_blocks
    for progress in live:
        sequence_id = progress.sequence.sequence_id
        tokens = _cached(progress, scheduler.steps) + planned.get(sequence_id, 0)
        blocks += memory.blocks_for(tokens) - len(cache._held[sequence_id]) * cache.unit_blocks
    return blocks


@pytest.mark.parametrize("seed", range(150))
def test_every_block_is_counted_once_whatever_is_shared_kept_taken_over_or_aborted(seed: int) -> None:
    dice = Random(seed)
    batch = Batch(
        steady(),
        limits(
            blocks=dice.randint(32, 70),
            seqs=dice.randint(1, 6),
            budget=dice.randint(6, 50),
            unit_tokens=dice.choice([4, 8]),
        ),
    )
    now = 0.0
    for number in range(40):
        now += dice.random() * dice.choice([0.1, 3, 10])
        batch.add(drawn(number, dice), now)
        batch.abort(dice.randint(0, 100), now)
        batch.unpin(dice.randint(0, 100), now)
        assert counted(batch) == batch._scheduler.blocks.used <= batch.limits.blocks
    while batch.next_event_at < inf or any(batch.unpin(number, now) for number in range(40)):
        now = min(batch.next_event_at, now + 1e6)
        batch.advance(now)
        assert counted(batch) == batch._scheduler.blocks.used <= batch.limits.blocks

    numbers = batch.statistics(now)
    assert (numbers.running, numbers.waiting, numbers.kv_used_blocks) == (0, 0, 0)


def drawn(number: int, dice: Random) -> EngineSequence:
    family = 100 * dice.randint(0, 3)
    ids = tuple(range(family, family + dice.randint(0, 30)))
    pins, takes = dice.random() < 0.1, dice.random() < 0.2
    return EngineSequence(number, dice.randint(1, 60), dice.randint(1, 40), ids, pins, takes)
