"""What a request is taken to cost: the early warning counts it at a price that does not move."""

import pytest

from millgate.core.settings import EngineSettings, ServicePrior
from millgate.core.state.engine import Engine

# 0.02 ms a prompt token; 26 ms a step of 200 streams.
FAST = ServicePrior(0.01, 0.00002, 0.006, 0.0001)


def _engine(prior: ServicePrior, streams: int = 200) -> Engine:
    return Engine(EngineSettings("engine", streams, prior=prior), 0.0)


def test_full_streams_do_one_second_of_work_a_second() -> None:
    """An engine that reads 1,000 tokens and makes 100 for each request is busy 0.02 + 100 x 0.026 / 200 s with it."""
    busy_s = 1_000 * 0.00002 + 100 * 0.026 / 200

    assert _engine(FAST).permit_s(1_000, 100) / 200 == pytest.approx(busy_s)


def test_the_price_of_work_does_not_move_with_what_is_learned_where_there_is_a_profile() -> None:
    engine, unknown = _engine(FAST), _engine(ServicePrior())
    before = engine.permit_s(1_000, 100), unknown.permit_s(10, 100)
    for each in (engine, unknown):
        for streams in range(1, 100):
            each.service.learn_tpot(streams, 0.2)

    assert engine.permit_s(1_000, 100) == before[0]
    assert unknown.permit_s(10, 100) > 2.0 * before[1]


def test_an_engine_of_which_nothing_is_known_is_priced_by_its_own_time_too() -> None:
    """Prompts are read one after another, whatever is believed of the speed: of 200 streams each takes 200 times as long."""
    unknown, prior = _engine(ServicePrior()), ServicePrior()
    tpot_s = prior.tpot_base_s + 200 * prior.tpot_per_stream_s

    assert unknown.permit_s(1_000, 100) == pytest.approx(200 * 1_000 * prior.ttft_per_token_s + 100 * tpot_s)
