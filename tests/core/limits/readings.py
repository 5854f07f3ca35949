"""Readings for tests of limits: a sound, busy window unless said otherwise."""

from millgate.core.limits.gate import LimitReading

SOUND = LimitReading(
    window_s=1.0,
    max_inflight=10**6,
    samples=1_000,
    tpot_s=0.02,
    ttft_excess_p90_s=0.0,
    failures=0,
    answers=20,
    kv_share=0.5,
    waiting=0,
)
