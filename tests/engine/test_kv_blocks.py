"""Counted blocks against blocks that are kept one by one."""

from hypothesis import given, strategies as st

from millgate.engine.kv_memory import KvBlocks

QUEUED = st.lists(st.integers(1, 200), max_size=12)


def demand_one_by_one(queued: list[int], steps: int, block_tokens: int) -> int:
    return sum(-(-(tokens + steps) // block_tokens) - -(-tokens // block_tokens) for tokens in queued)


@given(
    queued=QUEUED,
    start=st.integers(0, 100),
    steps=st.integers(0, 100),
    block_tokens=st.sampled_from([1, 4, 16]),
)
def test_demand_is_the_sum_of_what_each_sequence_takes(
    queued: list[int], start: int, steps: int, block_tokens: int
) -> None:
    blocks = KvBlocks(10_000, block_tokens)
    for tokens in queued:
        blocks.join(start, tokens)

    assert blocks.demand(start, steps) == demand_one_by_one(queued, steps, block_tokens)


@given(queued=QUEUED, free=st.integers(0, 60), most=st.integers(1, 100), start=st.integers(0, 40))
def test_steps_that_fit_is_the_most_that_free_blocks_cover(
    queued: list[int], free: int, most: int, start: int
) -> None:
    blocks = KvBlocks(free, 16)
    for tokens in queued:
        blocks.join(start, tokens)
    steps = blocks.steps_that_fit(start, most)

    assert demand_one_by_one(queued, steps, 16) <= free
    assert steps == most or demand_one_by_one(queued, steps + 1, 16) > free


def test_a_sequence_that_leaves_takes_no_more_blocks() -> None:
    blocks = KvBlocks(100, 16)
    stays = blocks.join(5, 30)
    leaves = blocks.join(5, 40)
    blocks.leave(leaves)

    assert stays != leaves
    assert blocks.demand(5, 160) == 10
