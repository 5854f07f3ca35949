"""Continuous batching: vLLM's rules one by one."""

from collections.abc import Sequence
from math import inf

import pytest

from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchEvent, BatchLimits, EngineSequence, EventKind
from millgate.engine.step_time import CoefficientModel

FIRST, RESUMED = EventKind.FIRST_TOKEN, EventKind.RESUMED
PREEMPTED, FINISHED = EventKind.PREEMPTED, EventKind.FINISHED


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


def told(events: Sequence[BatchEvent]) -> list[tuple[float, int, EventKind]]:
    return [(event.at_s, event.sequence_id, event.kind) for event in events]


def test_a_lone_sequence_gets_its_first_token_after_its_prefill_and_one_token_a_step() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, prompt_tokens=10, output_tokens=5), 0.0)

    assert told(batch.advance(100.0)) == [(1.0, 1, FIRST), (5.0, 1, FINISHED)]
    assert batch.next_event_at == inf


def test_a_one_token_answer_finishes_with_its_first_token() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 10, 1), 0.0)

    assert told(batch.advance(100.0)) == [(1.0, 1, FIRST), (1.0, 1, FINISHED)]


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    batch = Batch(steady(), limits(budget=16))
    batch.add(EngineSequence(1, 40, 2), 0.0)

    assert told(batch.advance(100.0)) == [(3.0, 1, FIRST), (4.0, 1, FINISHED)]


def test_running_sequences_take_their_tokens_from_the_budget_first() -> None:
    batch = Batch(steady(), limits(budget=8))
    batch.add(EngineSequence(1, 8, 20), 0.0)
    batch.advance(1.0)
    batch.add(
        EngineSequence(2, 15, 1), 1.5
    )  # 7 tokens of budget a step beside one decode: 3 steps, the last of 1

    assert told(batch.advance(5.0)) == [(5.0, 2, FIRST), (5.0, 2, FINISHED)]


def test_several_prompts_share_one_step_in_order_of_arrival() -> None:
    batch = Batch(steady(), limits(budget=30))
    batch.add(EngineSequence(1, 5, 9), 0.0)
    for sequence_id in (2, 3, 4):
        batch.add(EngineSequence(sequence_id, 14, 9), 0.5)

    assert told(batch.advance(3.0)) == [(1.0, 1, FIRST), (2.0, 2, FIRST), (2.0, 3, FIRST), (3.0, 4, FIRST)]


def test_no_more_sequences_run_than_max_num_seqs_and_the_rest_wait_in_order() -> None:
    batch = Batch(steady(), limits(seqs=2))
    for sequence_id in range(1, 6):
        batch.add(EngineSequence(sequence_id, 4, 3), 0.0)

    assert (batch.running, batch.waiting) == (1, 4)
    order = [event.sequence_id for event in batch.advance(100.0) if event.kind is FIRST]
    assert order == [1, 2, 3, 4, 5]
    assert batch.statistics(100.0).peak_running == 2
    assert batch.statistics(100.0).peak_present == 5


def test_blocks_that_run_out_preempt_the_youngest_which_is_computed_again() -> None:
    batch = Batch(steady(), limits(blocks=6, block_tokens=4))
    batch.add(EngineSequence(1, 8, 12), 0.0)
    batch.add(EngineSequence(2, 8, 4), 0.0)
    events = batch.advance(100.0)

    assert [event for event in told(events) if event[1] == 2] == [
        (2.0, 2, FIRST),
        (5.0, 2, FINISHED),
    ]
    batch.add(EngineSequence(3, 8, 16), 100.0)
    batch.add(EngineSequence(4, 8, 16), 100.0)
    events = batch.advance(1000.0)
    assert [kind for _, sequence_id, kind in told(events) if sequence_id == 3] == [FIRST, FINISHED]
    assert [kind for _, sequence_id, kind in told(events) if sequence_id == 4] == [
        FIRST,
        PREEMPTED,
        RESUMED,
        FINISHED,
    ]
    assert batch.statistics(1000.0).preemptions == 1
    assert batch.statistics(1000.0).kv_used_blocks == 0


def test_a_prompt_is_admitted_only_when_all_of_it_fits_beside_the_watermark() -> None:
    tight = Batch(steady(), limits(blocks=10, budget=16, watermark=0.1))
    tight.add(EngineSequence(1, 16, 3), 0.0)
    tight.add(EngineSequence(2, 24, 1), 0.5)  # 6 blocks, 6 free, 1 reserved: waits until the first is done

    assert told(tight.advance(100.0)) == [
        (1.0, 1, FIRST),
        (3.0, 1, FINISHED),
        (5.0, 2, FIRST),
        (5.0, 2, FINISHED),
    ]


def test_an_abort_frees_sequence_and_blocks_at_the_end_of_the_step_in_progress() -> None:
    batch = Batch(steady(), limits(seqs=1))
    batch.add(EngineSequence(1, 4, 100), 0.0)
    batch.add(EngineSequence(2, 4, 2), 0.0)
    assert batch.abort(1, 5.5)

    assert batch.running == 1
    assert told(batch.advance(100.0))[-2:] == [(7.0, 2, FIRST), (8.0, 2, FINISHED)]
    statistics = batch.statistics(100.0)
    assert (statistics.aborted, statistics.finished, statistics.kv_used_blocks) == (1, 1, 0)
    assert (statistics.wasted_tokens, statistics.orphan_tokens) == (6, 1)


def test_an_abort_of_a_waiting_sequence_lets_the_next_one_go() -> None:
    batch = Batch(steady(), limits(blocks=10))
    batch.add(EngineSequence(1, 16, 20), 0.0)
    batch.add(EngineSequence(2, 28, 1), 0.5)
    batch.add(EngineSequence(3, 8, 1), 0.5)
    batch.advance(3.5)
    assert batch.abort(2, 3.5)

    assert told(batch.advance(5.0)) == [(5.0, 3, FIRST), (5.0, 3, FINISHED)]
    assert not batch.abort(2, 5.0)


def test_tokens_of_a_departed_client_count_as_wasted_and_as_orphans_from_its_departure_on() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 4, 10), 0.0)
    assert batch.depart(1, 4.5)
    assert not batch.depart(1, 4.5)

    midway = batch.statistics(6.5)
    assert (midway.wasted_tokens, midway.orphan_tokens) == (6, 2)
    assert told(batch.advance(100.0))[-1] == (10.0, 1, FINISHED)
    over = batch.statistics(100.0)
    assert (over.wasted_tokens, over.orphan_tokens) == (10, 6)


def test_an_abort_after_a_departure_counts_the_tokens_once() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 4, 10), 0.0)
    batch.depart(1, 2.5)
    batch.abort(1, 4.5)

    statistics = batch.statistics(100.0)
    assert (statistics.wasted_tokens, statistics.orphan_tokens) == (5, 3)


def test_a_changed_model_counts_from_the_end_of_the_step_in_progress() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 4, 10), 0.0)
    slow = CoefficientModel(
        floor_s=5.0,
        base_s=0.0,
        per_token_s=0.0,
        per_token_squared_s=0.0,
        decode_base_s=5.0,
        per_sequence_s=0.0,
        per_kv_token_s=0.0,
        overhead_s=0.0,
    )
    batch.change_model(slow, 4.5)

    assert told(batch.advance(100.0)) == [(1.0, 1, FIRST), (30.0, 1, FINISHED)]


def test_tokens_and_step_times_can_be_asked_for_inside_a_segment() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 4, 10), 0.0)
    batch.advance(1.0)

    assert batch.produced_tokens(1, 4.2) == 4
    assert batch.steps_at(4.2) == 4
    assert batch.time_of_step(7) == 7.0
    assert batch.time_of_step(99) == batch.next_event_at == 10.0
    assert batch.statistics(4.2).output_tokens == 4


@pytest.mark.parametrize(
    ("sequence", "field"),
    [
        (EngineSequence(1, 0, 5), "prompt_tokens"),
        (EngineSequence(1, 5, 0), "output_tokens"),
        (EngineSequence(1, 30, 12), "KV cache"),
    ],
)
def test_a_sequence_that_can_never_run_is_refused_with_field_and_limit(
    sequence: EngineSequence, field: str
) -> None:
    batch = Batch(steady(), limits(blocks=10))

    with pytest.raises(ValueError, match=field):
        batch.add(sequence, 0.0)
    assert (batch.running, batch.waiting) == (0, 0)


def test_an_id_in_use_is_refused() -> None:
    batch = Batch(steady(), limits())
    batch.add(EngineSequence(1, 4, 4), 0.0)

    with pytest.raises(ValueError, match="sequence_id"):
        batch.add(EngineSequence(1, 4, 4), 0.0)


def test_mass_aborts_of_waiting_sequences_leave_no_residue() -> None:
    batch = Batch(steady(), limits(seqs=1))
    batch.add(EngineSequence(0, 4, 1000), 0.0)
    for sequence_id in range(1, 1001):
        batch.add(EngineSequence(sequence_id, 4, 4), 0.5)
    for sequence_id in range(1000, 0, -1):
        batch.abort(sequence_id, 0.6)

    assert (batch.running, batch.waiting) == (1, 0)
    assert len(batch._scheduler._queue._places) <= 64
