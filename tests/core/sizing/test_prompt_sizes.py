"""Prompt tokens from bytes."""

import pytest

from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.service_demand import PromptSizes


def test_before_any_usage_four_bytes_are_a_token_and_nothing_is_one_token() -> None:
    sizes = PromptSizes()
    assert sizes.tokens("m", 400) == 100
    assert sizes.tokens("m", 0) == 1


def test_the_first_long_prompt_outweighs_the_prior() -> None:
    sizes = PromptSizes()
    sizes.learn("m", 20_000, 10_000)
    assert sizes.tokens("m", 20_000) == pytest.approx(10_000, rel=0.03)
    assert sizes.tokens("other", 400) == 100


def test_a_change_of_traffic_shows_within_two_half_lives() -> None:
    sizes = PromptSizes()
    for _ in range(600):
        sizes.learn("m", 4_000, 1_000)
    for _ in range(1_500):
        sizes.learn("m", 2_000, 1_000)
    assert dict(sizes.ratios())["m"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("prompt_bytes", "prompt_tokens"), [(0, 10), (10, 0), (10, -5)])
def test_usage_that_cannot_be_is_not_learned(prompt_bytes: int, prompt_tokens: int) -> None:
    sizes = PromptSizes()
    sizes.learn("m", prompt_bytes, prompt_tokens)
    assert list(sizes.ratios()) == []


def test_inv_5_model_names_of_users_do_not_fill_the_memory() -> None:
    """INV-5: beyond the bound new names share the nameless model's ratio."""
    sizes = PromptSizes()
    for number in range(MOST_NAMES + 50):
        sizes.learn(f"m{number}", 20_000, 10_000)
    assert len(list(sizes.ratios())) == MOST_NAMES + 1
    assert sizes.tokens("never seen", 20_000) == pytest.approx(10_000, rel=0.03)


def test_tokens_that_come_from_no_text_are_added_and_not_learned_as_text() -> None:
    sizes = PromptSizes()
    assert sizes.tokens("m", 400, fixed_tokens=1_500) == 1_600
    assert sizes.tokens("m", 0, fixed_tokens=85) == 85
    for _ in range(20):
        sizes.learn("m", 4_000, 2_500, fixed_tokens=1_500)
    assert dict(sizes.ratios())["m"] == pytest.approx(4.0)
    sizes.learn("m", 4_000, 1_000, fixed_tokens=1_500)
    assert dict(sizes.ratios())["m"] == pytest.approx(4.0)


def test_the_error_of_the_estimates_shows_before_and_after_learning() -> None:
    sizes = PromptSizes()
    sizes.erred(sizes.tokens("m", 4_000), 2_000)
    assert sizes.error().bias == pytest.approx(1.0)
    for _ in range(1_000):
        sizes.learn("m", 4_000, 2_000)
        sizes.erred(sizes.tokens("m", 4_000), 2_000)
    assert sizes.error().bias == pytest.approx(0.0, abs=0.02)
    assert sizes.error().p90 < 0.05
