"""The engine that is least busy, by its own speed."""

from millgate.core.routing.least_work import usual_cost


def cost(streams: int = 0, ttft_s: float = 0.1, tpot_s: float = 0.01) -> float:
    return usual_cost(streams, ttft_s, tpot_s, 100.0)


def test_a_sooner_first_token_and_a_faster_answer_are_cheaper() -> None:
    assert cost(ttft_s=0.1) < cost(ttft_s=0.2)
    assert cost(tpot_s=0.01) < cost(tpot_s=0.02)


def test_a_stream_less_outweighs_a_hair_of_learned_speed() -> None:
    assert cost(streams=3, tpot_s=0.0101) < cost(streams=4, tpot_s=0.01)


def test_an_engine_twice_as_fast_is_given_twice_the_streams() -> None:
    streams = [0, 0]
    for _ in range(30):
        prices = [cost(streams[0], 0.2, 0.02), cost(streams[1], 0.1, 0.01)]
        streams[prices.index(min(prices))] += 1
    assert streams == [10, 20]
