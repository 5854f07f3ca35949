"""Step times: the formulas, the series, and its inverse."""

import pytest
from hypothesis import given, strategies as st

from millgate.engine.profile import load_profiles
from millgate.engine.step_time import CoefficientModel, PromptChunk

MODELS = [profile.step_model() for profile in load_profiles().values()]
ANY_MODEL = st.sampled_from(MODELS)


def made(per_kv_token_s: float = 1e-6) -> CoefficientModel:
    return CoefficientModel(
        floor_s=0.007,
        base_s=0.0015,
        per_token_s=2e-5,
        per_token_squared_s=4e-10,
        decode_base_s=0.006,
        per_sequence_s=1e-5,
        per_kv_token_s=per_kv_token_s,
        overhead_s=0.0005,
    )


def test_a_small_prompt_alone_takes_the_floor_and_the_overhead() -> None:
    assert made().step_s(0, 0, [PromptChunk(0, 10)]) == pytest.approx(0.0075)


def test_a_large_prompt_alone_pays_by_token_and_by_square() -> None:
    expected = 0.0015 + 2e-5 * 4000 + 4e-10 * 4000**2 + 0.0005
    assert made().step_s(0, 0, [PromptChunk(0, 4000)]) == pytest.approx(expected)


def test_cached_tokens_are_attended_to_but_not_computed() -> None:
    expected = 0.0015 + 2e-5 * 1000 + 4e-10 * (4000**2 - 3000**2) + 0.0005
    assert made().step_s(0, 0, [PromptChunk(3000, 1000)]) == pytest.approx(expected)


def test_decodes_ride_along_with_a_large_chunk() -> None:
    expected = 0.0015 + 2e-5 * (1000 + 8) + 4e-10 * 1000**2 + 1e-6 * 5000 + 0.0005
    assert made().step_s(8, 5000, [PromptChunk(0, 1000)]) == pytest.approx(expected)


def test_decode_steps_cost_base_sequences_cache_and_overhead() -> None:
    assert made().decode_steps_s(8, 5000, 1) == pytest.approx(0.006 + 8e-5 + 5e-3 + 0.0005)


@given(
    step_model=ANY_MODEL,
    decodes=st.integers(1, 256),
    kv_tokens=st.integers(0, 400_000),
    tokens=st.integers(1, 8192),
)
def test_a_chunk_never_makes_a_step_faster(
    step_model: CoefficientModel, decodes: int, kv_tokens: int, tokens: int
) -> None:
    chunk = [PromptChunk(0, tokens)]
    together = step_model.step_s(decodes, kv_tokens, chunk)

    assert together >= step_model.decode_steps_s(decodes, kv_tokens, 1)
    assert together >= step_model.step_s(0, 0, chunk)


@given(
    step_model=ANY_MODEL,
    decodes=st.integers(1, 256),
    kv_tokens=st.integers(0, 400_000),
    steps=st.integers(1, 300),
)
def test_the_series_is_the_sum_of_its_steps(
    step_model: CoefficientModel, decodes: int, kv_tokens: int, steps: int
) -> None:
    one_by_one = sum(
        step_model.decode_steps_s(decodes, kv_tokens + step * decodes, 1) for step in range(steps)
    )

    assert step_model.decode_steps_s(decodes, kv_tokens, steps) == pytest.approx(one_by_one, rel=1e-9)


def steps_within(model: CoefficientModel, decodes: int, kv_tokens: int, elapsed_s: float) -> int:
    """Invert `decode_steps_s` without a closed form, by doubling and bisection."""
    above = 1
    while model.decode_steps_s(decodes, kv_tokens, above) <= elapsed_s:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        if model.decode_steps_s(decodes, kv_tokens, middle) <= elapsed_s:
            below = middle
        else:
            above = middle
    return below


@given(
    step_model=st.one_of(ANY_MODEL, st.just(made(per_kv_token_s=0.0))),
    decodes=st.integers(1, 256),
    kv_tokens=st.integers(0, 400_000),
    elapsed_s=st.floats(0.0, 100.0),
)
def test_the_inverse_finds_the_last_step_that_ends_in_time(
    step_model: CoefficientModel, decodes: int, kv_tokens: int, elapsed_s: float
) -> None:
    steps = step_model.decode_steps_within(decodes, kv_tokens, elapsed_s)

    assert step_model.decode_steps_s(decodes, kv_tokens, steps) <= elapsed_s
    assert step_model.decode_steps_s(decodes, kv_tokens, steps + 1) > elapsed_s
    assert steps_within(step_model, decodes, kv_tokens, elapsed_s) == steps
