"""Prefill here, decode there: an engine that keeps a prompt's KV for another, and one that begins with it."""

from engine.test_prefix_cache import limits, steady
from millgate.engine.batching import Batch
from millgate.engine.sequences import EngineSequence, EventKind


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
