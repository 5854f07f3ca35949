"""How long will the answer be."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.output_length import PRIOR_OUTPUT_TOKENS, OutputLength
from millgate.core.snapshot import ErrorReading

LANE = "interactive"


def _lengths(count: int, mean: float, seed: int = 1) -> list[int]:
    """Return so many answers' lengths, lognormal with deviation 0.8, at most 4096."""
    dice = Random(seed)
    return [min(4096, max(1, round(mean * dice.lognormvariate(-0.32, 0.8)))) for _ in range(count)]


def _taught(*answers: int, max_tokens: int | None = 4_096, tenant: str = "t") -> OutputLength:
    sizes = OutputLength()
    for output_tokens in answers:
        sizes.learn("m", tenant, LANE, max_tokens, 500, output_tokens)
    return sizes


@pytest.mark.parametrize(
    ("max_tokens", "expected", "reserved"),
    [(None, 256, 512), (100, 100, 100), (4_000, 256, 512), (1, 1, 1), (0, 0, 0)],
)
def test_before_any_answer_the_prior_is_expected_and_at_most_twice_as_much_is_reserved(
    max_tokens: int | None, expected: int, reserved: int
) -> None:
    assert OutputLength().estimate("m", "t", LANE, max_tokens, 500) == (expected, reserved)
    assert PRIOR_OUTPUT_TOKENS == 256


def test_the_first_answers_already_count_but_do_not_decide() -> None:
    expected, reserved = _taught(40, 60).estimate("m", "t", LANE, 4_096, 500)
    assert 50 < expected < 128
    assert 60 < reserved < 2_048


def test_who_allows_4096_every_time_gets_what_such_answers_are() -> None:
    answers = _lengths(400, mean=180.0)
    expected, reserved = _taught(*answers).estimate("m", "t", LANE, 4_096, 500)
    assert expected == pytest.approx(fmean(answers), rel=0.15)
    assert reserved == pytest.approx(sorted(answers)[380], rel=0.25)


def test_without_max_tokens_it_is_the_same() -> None:
    answers = _lengths(400, mean=180.0)
    expected, _ = _taught(*answers, max_tokens=None).estimate("m", "t", LANE, None, 500)
    assert expected == pytest.approx(fmean(answers), rel=0.15)


def test_exact_max_tokens_are_found_out_within_twenty_answers() -> None:
    """Sizes and prompts of all classes: hardly any key has had an answer of its own yet."""
    dice = Random(3)
    sizes = OutputLength()
    for _ in range(20):
        allowed, prompt = dice.randrange(10, 4_000), dice.randrange(50, 8_000)
        sizes.learn("m", "t", LANE, allowed, prompt, allowed)
    for allowed in (12, 77, 700, 3_000, 6_000):
        expected, reserved = sizes.estimate("m", "t", LANE, allowed, 900)
        assert expected == pytest.approx(allowed, rel=0.02, abs=1)
        assert expected <= reserved <= allowed


def test_a_tenant_who_is_exact_and_one_who_is_not_do_not_confuse_each_other() -> None:
    dice = Random(4)
    free = iter(_lengths(300, mean=150.0))
    sizes = OutputLength()
    for _ in range(300):
        allowed = dice.randrange(500, 4_000)
        sizes.learn("m", "exact", LANE, allowed, 500, allowed)
        sizes.learn("m", "free", LANE, 4_000, 500, next(free))
    assert sizes.estimate("m", "exact", LANE, 3_500, 500)[0] == pytest.approx(3_500, rel=0.05)
    assert sizes.estimate("m", "free", LANE, 4_000, 500)[0] == pytest.approx(150.0, rel=0.25)


def test_both_habits_under_one_key_are_met_in_the_middle() -> None:
    dice = Random(5)
    free = iter(_lengths(300, mean=150.0))
    sizes = OutputLength()
    for _ in range(300):
        allowed = dice.randrange(2_048, 4_096)
        sizes.learn("m", "t", LANE, allowed, 500, allowed if dice.random() < 0.5 else next(free))
    expected, _ = sizes.estimate("m", "t", LANE, 3_000, 500)
    assert 1_000 < expected < 2_100


def test_long_prompts_may_have_short_answers() -> None:
    sizes = OutputLength()
    for _ in range(50):
        sizes.learn("m", "t", LANE, 1_000, 200, 600)
        sizes.learn("m", "t", LANE, 1_000, 20_000, 40)
    assert sizes.estimate("m", "t", LANE, 1_000, 200)[0] == pytest.approx(600, rel=0.2)
    assert sizes.estimate("m", "t", LANE, 1_000, 20_000)[0] == pytest.approx(40, rel=0.6)


def test_prompts_whose_answers_do_not_differ_are_expected_alike() -> None:
    """An order by predicted size must not become an order by chance."""
    sizes = OutputLength()
    prompts = [60, 120, 250, 500, 1_000, 2_000]
    for number, output in enumerate(_lengths(300, mean=180.0)):
        sizes.learn("m", "t", LANE, 4_096, prompts[number % 6], output)

    expected = [sizes.estimate("m", "t", LANE, 4_096, prompt)[0] for prompt in prompts]

    assert max(expected) < 1.1 * min(expected)


@pytest.mark.parametrize("slope", [-0.7, 0.7])
def test_what_prompts_say_of_answers_holds_for_prompts_that_nobody_was_served_yet(slope: float) -> None:
    dice, sizes = Random(8), OutputLength()
    for _ in range(600):
        prompt = dice.randrange(100, 600)
        answer = 150.0 * (prompt / 300.0) ** slope * dice.lognormvariate(-0.18, 0.6)
        sizes.learn("m", "t", LANE, 4_096, prompt, max(1, round(answer)))

    expected, _ = sizes.estimate("m", "t", LANE, 4_096, 1_000)

    assert expected == pytest.approx(150.0 * (1_000 / 300.0) ** slope, rel=0.3)


def test_one_tenant_with_long_answers_is_known_among_a_hundred_without() -> None:
    dice, short, long = Random(6), iter(_lengths(3_100, mean=60.0)), _lengths(60, mean=900.0, seed=7)
    sizes = OutputLength()
    for output in long:
        for _ in range(50):
            sizes.learn("m", f"t{dice.randrange(100)}", LANE, 4_096, 500, next(short))
        sizes.learn("m", "long", LANE, 4_096, 500, output)

    assert sizes.estimate("m", "long", LANE, 4_096, 500)[0] == pytest.approx(fmean(long), rel=0.15)
    assert sizes.estimate("m", "t7", LANE, 4_096, 500)[0] == pytest.approx(60, rel=0.35)


def test_a_newcomer_is_taken_for_what_its_lane_is_and_a_new_lane_for_its_model() -> None:
    sizes = _taught(*[40] * 100)
    assert sizes.estimate("m", "new", LANE, 4_096, 500)[0] == pytest.approx(40, abs=5)
    assert sizes.estimate("m", "new", "throughput", 4_096, 500)[0] == pytest.approx(40, abs=5)
    assert sizes.estimate("another model", "t", LANE, 4_096, 500)[0] == PRIOR_OUTPUT_TOKENS


def test_a_change_shows_within_its_memory() -> None:
    sizes = _taught(*[100] * 500, *[400] * 400)
    assert sizes.estimate("m", "t", LANE, 4_096, 500)[0] == pytest.approx(400, rel=0.15)


def test_ignoring_the_end_means_exactly_what_is_allowed() -> None:
    sizes = _taught(*[40] * 100)
    assert sizes.estimate("m", "t", LANE, 700, 500, min_tokens=700) == (700, 700)
    expected, reserved = sizes.estimate("m", "t", LANE, 700, 500, min_tokens=300)
    assert (expected, reserved) == (300, 300)
    assert sizes.estimate("m", "t", LANE, None, 500, min_tokens=300)[0] == 300


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 100_000), st.integers(0, 2_000_000), st.integers(0, 200_000)),
        max_size=60,
    ),
    st.none() | st.integers(1, 200_000),
    st.integers(0, 2_000_000),
    st.integers(0, 500),
)
def test_whatever_was_learned_the_bounds_hold_and_asking_changes_nothing(
    learned: list[tuple[int | None, int, int]], max_tokens: int | None, prompt_tokens: int, min_tokens: int
) -> None:
    sizes = OutputLength()
    for allowed, prompt, output in learned:
        sizes.learn("m", "t", LANE, allowed, prompt, output)
    asked = sizes.estimate("m", "t", LANE, max_tokens, prompt_tokens, min_tokens)
    expected, reserved = asked
    assert 1 <= expected <= reserved
    if max_tokens is None:
        assert expected >= min_tokens
    else:
        assert min(min_tokens, max_tokens) <= expected <= reserved <= max_tokens
    assert sizes.estimate("m", "t", LANE, max_tokens, prompt_tokens, min_tokens) == asked


def test_inv_5_names_of_users_do_not_fill_the_memory() -> None:
    """INV-5: keys, tenants and models are bounded, and what does not fit still counts for its lane."""
    sizes = OutputLength()
    for number in range(2 * MOST_NAMES):
        sizes.learn(f"m{number}", f"t{number}", LANE, 100, 10, 50)
    assert len(list(sizes.means())) <= MOST_NAMES + 1
    assert max(len(sizes._keys), len(sizes._tenants)) <= MOST_NAMES
    assert len(sizes._lanes) <= MOST_NAMES + 1


def test_keys_that_are_used_outlive_a_crowd_that_comes_once() -> None:
    sizes = _taught(*[40] * 100, tenant="regular")
    for number in range(5 * MOST_NAMES):
        sizes.learn("m", f"once{number}", LANE, 4_096, 500, 2_000)
        if number % 10 == 0:
            sizes.learn("m", "regular", LANE, 4_096, 500, 40)
    assert sizes.estimate("m", "regular", LANE, 4_096, 500)[0] == pytest.approx(40, rel=0.1)
    assert sizes.estimate("m", "never seen", LANE, 4_096, 500)[0] > 1_500


def test_the_error_tells_how_far_to_trust_it() -> None:
    read = _erred(_lengths(600, mean=180.0))
    assert read.samples > 100
    assert abs(read.bias) < 0.15
    assert 0.8 < read.p90 < 2.0
    assert _erred([50] * 1_000).p90 == pytest.approx(0.0, abs=0.005)


def _erred(answers: list[int]) -> ErrorReading:
    sizes = OutputLength()
    for output_tokens in answers:
        sizes.erred(sizes.estimate("m", "t", LANE, 4_096, 500)[0], output_tokens)
        sizes.learn("m", "t", LANE, 4_096, 500, output_tokens)
    return sizes.error()


def test_the_mean_of_every_model_is_known() -> None:
    sizes = _taught(*[100] * 50)
    for _ in range(50):
        sizes.learn("m", "t", LANE, None, 500, 300)
        sizes.learn("other", "t", LANE, None, 500, 7)
    assert dict(sizes.means()) == {"m": pytest.approx(200.0, rel=0.02), "other": pytest.approx(7.0)}


def test_a_lane_learns_from_every_answer_of_a_busy_tenant() -> None:
    """A newcomer is expected to be as its lane is, and the lane is known by hundreds of answers and not by a few that stand for many."""
    errors = []
    for seed in range(20):
        answers = _lengths(400, mean=180.0, seed=seed)
        expected, _ = _taught(*answers, tenant="busy").estimate("m", "newcomer", LANE, 4_096, 500)
        errors.append(abs(expected - fmean(answers[-200:])))

    assert fmean(errors) < 0.05 * 180.0
