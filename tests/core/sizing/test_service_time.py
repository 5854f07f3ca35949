"""How long will one engine take."""

import pytest

from millgate.core.settings import ServicePrior
from millgate.core.sizing.service_demand import ServiceTime


def test_the_prior_is_the_profile() -> None:
    service = ServiceTime(ServicePrior(0.05, 0.0001, 0.015, 0.0001))
    assert service.ttft_s(1_000) == pytest.approx(0.15)
    assert service.tpot_s(50) == pytest.approx(0.02)
    assert service.service_s(1_000, 101, 50) == pytest.approx(0.15 + 100 * 0.02)


def test_one_token_takes_no_decoding() -> None:
    service = ServiceTime(ServicePrior())
    assert service.service_s(100, 1, 10) == service.service_s(100, 0, 10) == service.ttft_s(100)


def test_a_prompt_has_the_engine_to_itself_and_a_step_is_shared_by_all() -> None:
    service = ServiceTime(ServicePrior(0.05, 0.0001, 0.015, 0.0001))
    assert service.engine_s(1_000, 0, 50) == pytest.approx(0.1)
    assert service.engine_s(0, 100, 50) == pytest.approx(100 * 0.02 / 50)
    assert service.engine_s(1_000, 100, 50) == pytest.approx(0.1 + 0.04)


def test_what_others_prompts_take_is_no_part_of_a_step() -> None:
    """Answers of 100 tokens take 4 s, in 3 of which the engine reads 30,000 prompt tokens: a step is 10 ms, not 40."""
    service = ServiceTime(ServicePrior(0.05, 0.0001, 0.04, 0.0))
    assert service.own_share() == 1.0
    for _ in range(50):
        read_before = service.has_read(1_000)
        service.has_read(30_000)
        service.learn_own_share(4.0, read_before)

    assert service.own_share() == pytest.approx(0.25)
    assert service.engine_s(1_000, 100, 50) == pytest.approx(0.1 + 100 * 0.01 / 50)
    assert service.tpot_s(50) == pytest.approx(0.04)


def test_a_token_of_an_answer_takes_no_less_than_one_of_a_prompt() -> None:
    service = ServiceTime(ServicePrior(0.05, 0.0001, 0.04, 0.0))
    service.learn_own_share(1.0, service.has_read(100) - 20_000)

    assert service.own_share() == 0.0
    assert service.engine_s(1_000, 100, 50) == pytest.approx(1_100 * 0.0001)


def test_what_is_served_replaces_the_prior() -> None:
    service = ServiceTime(ServicePrior())
    for prompt_tokens in range(100, 3_000, 10):
        service.learn_ttft(prompt_tokens, 0.2 + 0.001 * prompt_tokens)
        service.learn_tpot(10 + prompt_tokens % 40, 0.05)
    assert service.ttft_s(2_000) == pytest.approx(2.2, rel=0.05)
    assert service.tpot_s(30) == pytest.approx(0.05, rel=0.05)


def test_times_that_cannot_be_are_not_learned() -> None:
    service, fresh = ServiceTime(ServicePrior()), ServiceTime(ServicePrior())
    service.learn_ttft(100, 0.0)
    service.learn_tpot(10, -1.0)
    assert service.service_s(100, 10, 10) == fresh.service_s(100, 10, 10)
