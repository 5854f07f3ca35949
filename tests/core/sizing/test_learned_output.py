"""How long will the answer be."""

import pytest

from headgate.core.sizing.learned_output import PRIOR_OUTPUT_TOKENS, LearnedOutput
from headgate.core.sizing.prompt_bytes import MAX_MODELS


def _taught(*answers: int) -> LearnedOutput:
    sizes = LearnedOutput()
    for output_tokens in answers:
        sizes.learn("m", output_tokens)
    return sizes


@pytest.mark.parametrize(
    ("max_tokens", "expected", "reserved"),
    [(None, 256, 512), (100, 100, 100), (4_000, 256, 4_000), (1, 1, 1)],
)
def test_before_any_answer_the_prior_is_expected_and_what_the_user_allows_is_reserved(
    max_tokens: int | None, expected: int, reserved: int
) -> None:
    assert LearnedOutput().estimate("m", max_tokens) == (expected, reserved)
    assert PRIOR_OUTPUT_TOKENS == 256


def test_the_mean_is_expected_from_the_first_answer_on_but_the_spread_is_not_trusted_yet() -> None:
    assert _taught(40, 60).estimate("m", 1_000) == (50, 1_000)
    assert _taught(40, 60).estimate("m", 30) == (30, 30)


def test_after_ten_answers_mean_and_two_deviations_are_reserved() -> None:
    sizes = _taught(*[40, 60] * 6)
    assert sizes.estimate("m", 1_000) == (50, 70)
    assert sizes.estimate("m", 60) == (50, 60)
    assert sizes.estimate("m", None) == (50, 70)


def test_a_reservation_is_never_below_the_expectation_and_neither_below_one() -> None:
    sizes = _taught(*[1] * 20)
    assert sizes.estimate("m", None) == (1, 1)
    long = _taught(*[2_000] * 5)
    assert long.estimate("m", None) == (2_000, 2_000)


def test_inv_5_model_names_of_users_do_not_fill_the_memory() -> None:
    """INV-5: beyond the bound new names are learned as the nameless model."""
    sizes = LearnedOutput()
    for number in range(MAX_MODELS + 50):
        sizes.learn(f"m{number}", 10)
    assert len(list(sizes.means())) == MAX_MODELS + 1
