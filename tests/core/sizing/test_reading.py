"""How far an engine is with its prompts, and how fast it reads them."""

import pytest

from millgate.core.sizing.service_demand import PromptReading

_BASE_S = 0.05


def _read_one_after_another(reading: PromptReading, prompts: int, each_s: float) -> float:
    """Let it read prompts of 1000 tokens without a pause from time 0 on; return when the last has been read."""
    reading.began(0.0)
    for number in range(1, prompts + 1):
        reading.read(1_000, _BASE_S, number * each_s)
    return prompts * each_s


def test_the_speed_is_believed_until_prompts_have_been_read() -> None:
    reading = PromptReading(0.0001, 0.0)
    assert reading.per_token_s == pytest.approx(0.0001)
    _read_one_after_another(reading, 2_000, 0.2)
    assert reading.per_token_s == pytest.approx(0.0002, rel=0.01)


def test_a_pause_is_no_reading() -> None:
    reading = PromptReading(0.0002, 0.0)
    at = _read_one_after_another(reading, 100, 0.2)
    reading.began(at + 1_000.0)
    reading.read(1_000, _BASE_S, at + 1_000.0 + 0.2 + _BASE_S)
    assert reading.per_token_s == pytest.approx(0.0002, rel=0.01)


def test_who_goes_on_at_once_has_not_paused_and_pays_for_the_first_token_too() -> None:
    """One prompt at a time: each takes its reading and what a first token takes beside it."""
    reading = PromptReading(0.0001, 0.0)
    for number in range(2_000):
        reading.began(number * 0.15)
        reading.read(1_000, _BASE_S, (number + 1) * 0.15)
    assert reading.per_token_s == pytest.approx(0.00015, rel=0.01)


def test_prompts_that_are_read_in_one_step_share_its_time() -> None:
    reading = PromptReading(0.0001, 0.0)
    reading.began(0.0)
    for step in range(1, 1_000):
        for _ in range(4):
            reading.read(500, _BASE_S, step * 0.2)
    assert reading.per_token_s == pytest.approx(0.0001, rel=0.02)


def test_between_two_first_tokens_the_engine_goes_on_reading() -> None:
    reading = PromptReading(0.0001, 0.0)
    reading.began(5.0)
    assert [reading.unread(1_000, 5.0 + part) for part in (0.0, 0.025, 0.09)] == pytest.approx(
        [1_000, 750, 100]
    )


def test_who_is_late_is_expected_to_be_late_by_as_much_again_up_to_all_of_it() -> None:
    """What takes 0.1 s has been 0.13, 0.2 and 100 s under way: the engine stands still, for all that is known."""
    reading = PromptReading(0.0001, 0.0)
    reading.began(0.0)
    assert [reading.unread(1_000, at) for at in (0.13, 0.2, 100.0)] == pytest.approx([300, 1_000, 1_000])


def test_an_engine_that_reads_in_no_time_has_all_of_it_before_it() -> None:
    assert PromptReading(0.0, 0.0).unread(1_000, 1.0) == 1_000


def test_what_was_read_of_a_prompt_that_is_gone_is_not_learned() -> None:
    reading = PromptReading(0.0001, 0.0)
    reading.began(0.0)
    reading.interrupted(50.0)
    assert reading.unread(1_000, 50.0) == 1_000
    reading.read(1_000, _BASE_S, 50.1 + _BASE_S)
    assert reading.per_token_s == pytest.approx(0.0001)


def test_the_doubt_is_that_of_the_predictions_so_far() -> None:
    reading, surer = PromptReading(0.0001, 0.0), PromptReading(0.0001, 0.0)
    for number in range(500):
        reading.erred(1.0, 0.8 if number % 2 else 1.2)
        surer.erred(1.0, 0.98 if number % 2 else 1.02)
    assert reading.upper_share == pytest.approx(1.2816 * 0.2, rel=0.05)
    assert surer.upper_share == pytest.approx(1.2816 * 0.02, rel=0.05)


def test_a_prompt_that_stalled_counts_as_twice_as_late_at_most() -> None:
    stalled, late = PromptReading(0.0001, 0.0), PromptReading(0.0001, 0.0)
    stalled.erred(0.1, 60.0)
    late.erred(0.1, 0.2)
    assert stalled.upper_share == late.upper_share > 0.0
