"""Was it good."""

import pytest

from millgate.core.settings import LaneSettings
from millgate.core.slo import answered_in_time, streamed_in_time

FIRST_TOKEN_ONLY = LaneSettings("lane", ttft_slo_s=1.0)
BOTH = LaneSettings("lane", ttft_slo_s=1.0, tpot_slo_s=0.1)


@pytest.mark.parametrize(
    ("lane", "ttft_s", "decode_s", "output_tokens", "good"),
    [
        (FIRST_TOKEN_ONLY, 1.0, 1e6, 100, True),
        (FIRST_TOKEN_ONLY, 1.01, 0.0, 100, False),
        (BOTH, 1.0, 1.0, 11, True),
        (BOTH, 1.0, 1.01, 11, False),
        (BOTH, 1.0, 1e6, 1, True),
        (BOTH, 2.0, 0.0, 1, False),
    ],
)
def test_a_stream_is_good_within_first_token_and_mean_token_time(
    lane: LaneSettings, ttft_s: float, decode_s: float, output_tokens: int, good: bool
) -> None:
    assert streamed_in_time(lane, ttft_s, decode_s, output_tokens) is good


@pytest.mark.parametrize(
    ("lane", "total_s", "good"),
    [(BOTH, 11.0, True), (BOTH, 11.1, False), (FIRST_TOKEN_ONLY, 6.0, True), (FIRST_TOKEN_ONLY, 6.1, False)],
)
def test_a_whole_answer_may_take_its_first_token_and_its_tokens(
    lane: LaneSettings, total_s: float, good: bool
) -> None:
    """Without a TPOT objective the engine's learned TPOT (here 0.05 s) stands in for it."""
    assert answered_in_time(lane, total_s, output_tokens=100, learned_tpot_s=0.05) is good
