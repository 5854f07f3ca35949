"""The parts of the burst that need no process: its options, its engine, its order."""

import pytest
from lab.demos.burst import OUTPUT_TOKENS, BurstOptions, Record, engine_setup

from millgate.engine.profile import find_profile, scaled


@pytest.mark.parametrize(("service_s", "time_scale"), [(10.0, 10.0), (10.0, 1.0), (2.0, 4.0)])
def test_one_answer_takes_the_engine_the_service_time(service_s: float, time_scale: float) -> None:
    setup = engine_setup(BurstOptions(service_s=service_s, time_scale=time_scale))
    prior = scaled(find_profile(setup.profile), setup.time_scale).prior()

    answer_s = prior.ttft_base_s + OUTPUT_TOKENS * (prior.tpot_base_s + prior.tpot_per_stream_s)

    assert answer_s == pytest.approx(service_s / time_scale)
    assert setup.max_num_seqs == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users": 0}, "users: must be from 1 to 200"),
        ({"time_scale": 11.0}, "time_scale: must be from 0.1 to 10"),
        ({"service_s": 1.0}, "service_s / time_scale: must be from"),
        ({"retries": True, "time_scale": 1.0}, "a line of 190 s, must be at most 45 s"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BurstOptions(**options)  # type: ignore[arg-type]  # one wrong value at a time


@pytest.mark.parametrize(
    ("served", "kept"), [([3, 1, 2], True), ([1, 3, 2], False), ([3, 2, 1], False), ([], True)]
)
def test_order_is_kept_when_users_are_served_as_they_were_told_to_come_back(
    served: list[int], kept: bool
) -> None:
    """User 3 was let in at once, user 1 told to come back before user 2."""
    assert Record(served=served, first_hint={1: 0.6, 2: 1.6}).order_kept() is kept
