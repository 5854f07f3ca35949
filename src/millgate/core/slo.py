"""Was it good: finished whole within its lane's service-level objective (design section 2)."""

from millgate.core.settings import LaneSettings


def streamed_in_time(lane: LaneSettings, ttft_s: float, decode_s: float, output_tokens: int) -> bool:
    """Return whether a streamed answer met its TTFT and, where the lane has one, its mean TPOT."""
    if ttft_s > lane.ttft_slo_s:
        return False
    if lane.tpot_slo_s is None or output_tokens < 2:
        return True
    return decode_s <= lane.tpot_slo_s * (output_tokens - 1)


def answered_in_time(lane: LaneSettings, total_s: float, output_tokens: int, learned_tpot_s: float) -> bool:
    """Return whether a whole (not streamed) answer came in time.

    Good is total <= ttft_slo + output x tpot_slo; without a TPOT objective the engine's learned TPOT stands in
    its place, so that a long answer is not late for being long (design section 10).
    """
    tpot_s = learned_tpot_s if lane.tpot_slo_s is None else lane.tpot_slo_s
    return total_s <= lane.ttft_slo_s + output_tokens * tpot_s
