"""How many prompt tokens are read for each token that is written."""

import pytest

from millgate.core.limits.prompt_share import PROMPT_PER_OUTPUT, PromptShare


def _after(windows: int, prompt_tokens: int, output_tokens: int) -> float:
    share = PromptShare()
    for _ in range(windows):
        share.add(1, prompt_tokens, output_tokens)
    return share.prompt_per_output()


def test_four_are_believed_before_anything_is_known() -> None:
    assert PromptShare().prompt_per_output() == PROMPT_PER_OUTPUT


def test_what_is_measured_outweighs_the_belief_after_twenty_five_windows() -> None:
    assert _after(1, 1_000, 100) == pytest.approx((25 * 4 + 10) / 26)
    assert _after(25, 1_000, 100) == pytest.approx(7.0)
    assert _after(1_000, 1_000, 100) == pytest.approx((25 * 4 + 100 * 10) / 125)


def test_it_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    """Prompts come in lumps: nothing, nothing, and 3,000 beside 100 tokens."""
    share = PromptShare()
    for window in range(300):
        share.add(int(window % 3 == 0), 3_000 if window % 3 == 0 else 0, 100)
    assert share.prompt_per_output() == pytest.approx((25 * 4 + 100 * 10) / 125, rel=0.02)


def test_as_many_usually_begin_as_end_with_so_many_tokens() -> None:
    """Two answers end in each window of 200 tokens, so one goes with a hundred."""
    share = PromptShare()
    assert share.began_share(3, 100) == 1.0
    share.add(0, 0, 200)
    assert share.began_share(3, 100) == 1.0
    for _ in range(300):
        share.add(2, 2_000, 200)

    assert share.began_share(2, 200) == pytest.approx(1.0, rel=0.1)
    assert share.began_share(0, 200) == 0.0
    assert share.began_share(2, 100) == pytest.approx(2.0, rel=0.1)


def test_another_crowd_is_known_after_a_few_minutes() -> None:
    share = PromptShare()
    for prompt_tokens in (1_000, 50):
        for _ in range(300):
            share.add(1, prompt_tokens, 100)
    assert share.prompt_per_output() == pytest.approx((25 * 4 + 100 * 0.5) / 125, rel=0.4)
