"""What users ask for: the same seed, the same load; sizes as the engine will count them."""

import json
from itertools import islice
from random import Random
from statistics import fmean

import pytest
from lab.demos.closed_loop import closed_wishes

from millgate.demos.users import Encoder, Mix, Wish, poisson_wishes, sizes
from millgate.servers.emulator.requests import RequestReader, Surface

MIX = Mix()


def _reader() -> RequestReader:
    return RequestReader(max_model_len=32_768, tokens_per_event=1, model_name="demo", dice=Random(1))


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, second, other = (
        list(poisson_wishes(MIX, rate_per_s=20.0, duration_s=10.0, seed=seed)) for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


def test_arrivals_are_in_order_within_the_duration_and_about_as_many_as_asked_for() -> None:
    """2,000 expected: six standard deviations are 268."""
    arrivals = [wish.at_s for wish in poisson_wishes(MIX, rate_per_s=100.0, duration_s=20.0, seed=3)]

    assert arrivals == sorted(arrivals)
    assert 0 < arrivals[0] <= arrivals[-1] < 20.0
    assert abs(len(arrivals) - 2000) < 268


def test_sizes_have_the_means_and_bounds_of_the_mix() -> None:
    drawn = list(islice(sizes(MIX, Random(1)), 20_000))

    assert fmean(prompt for prompt, _ in drawn) == pytest.approx(MIX.mean_prompt_tokens, rel=0.03)
    assert fmean(output for _, output in drawn) == pytest.approx(MIX.mean_output_tokens, rel=0.03)
    assert max(prompt for prompt, _ in drawn) <= MIX.most_prompt_tokens
    assert max(output for _, output in drawn) <= MIX.most_output_tokens


def test_the_closed_loop_draws_from_the_same_mix() -> None:
    wishes = list(islice(closed_wishes(MIX, 1), 3))

    assert [(wish.prompt_tokens, wish.output_tokens) for wish in wishes] == list(
        islice(sizes(MIX, Random(1)), 3)
    )


@pytest.mark.parametrize("tokens", [3, 4, 600, 14_050])
def test_the_engine_reads_a_body_as_the_sizes_that_it_was_written_for(tokens: int) -> None:
    body = Encoder(tokens_per_event=7, max_tokens=1000)(12, Wish(0.0, tokens, 55))

    read = _reader().read(body, Surface.CHAT)

    assert read.stream
    assert read.tokens_per_event == 7
    assert (read.answers[0].prompt_tokens, read.answers[0].output_tokens) == (tokens, 55)
    assert read.answers[0].finish_reason == "stop"


def test_without_a_bound_none_is_sent_and_no_two_prompts_are_equal() -> None:
    encode = Encoder(tokens_per_event=1, max_tokens=None)
    first, second = (json.loads(encode(number, Wish(0.0, 10, 5))) for number in (1, 2))

    assert "max_tokens" not in first
    assert first["messages"] != second["messages"]
