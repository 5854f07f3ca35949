"""From a rate and a latency to numbers for a configuration, each with its reasoning in words.

Little's law says how many are inside on average; a margin says how many streams keep nearly every request from
waiting. The rule: twice the load below ten streams, else load + 2 x its square root, which keeps the share that
waits (Erlang C) at 3 to 4 % for loads of 5 to 100. The queue is what can be served within the longest wait that a
user would bear, not a constant.
"""

from dataclasses import dataclass
from math import ceil, sqrt

from millgate.engine.profile import EngineProfile
from millgate.sim.bounds.work import least_work_s, step_share_s, usual_batch
from millgate.sim.truths.formulas import erlang_c

# Below this load twice the load is the safer rule, above it wasteful.
_SMALL_LOAD = 10.0
# An engine planned for more than this share of its capacity has no room for a busy minute.
_PLANNED_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Advice:
    """One number and why it is that."""

    name: str
    value: str
    why: str


def advise(
    rate_per_s: float,
    latency_s: float,
    max_wait_s: float,
    profile: EngineProfile | None = None,
    prompt_tokens: float = 1000.0,
    output_tokens: float = 250.0,
) -> list[Advice]:
    """Return what to set; rate in requests per second, latency in seconds from first byte to last token."""
    load = rate_per_s * latency_s
    streams = streams_for(load)
    queue = ceil(rate_per_s * streams / load * max_wait_s)
    rule = "2 x load" if load < _SMALL_LOAD else "load + 2 x root of load"
    advice = [
        Advice(
            "mean streams", f"{load:.1f}", f"Little's law: {rate_per_s:g} a second x {latency_s:g} s each"
        ),
        Advice("max_inflight, all engines", str(streams), f"{rule}: room for the randomness of arrivals"),
        Advice(
            "share that waits",
            f"{erlang_c(streams, load):.1%}",
            f"Erlang C for {streams} streams under {load:.1f}",
        ),
        Advice(
            "max_queue",
            str(queue),
            f"what {streams} full streams serve in the {max_wait_s:g} s that a user would wait:"
            f" {streams / latency_s:.3g} a second",
        ),
    ]
    if profile is not None:
        advice += _engines(rate_per_s, streams, profile, prompt_tokens, output_tokens)
    return advice


def streams_for(load: float) -> int:
    """Return the streams that keep the share that waits near 3 to 4 %."""
    return ceil(2.0 * load) if load < _SMALL_LOAD else ceil(load + 2.0 * sqrt(load))


def _engines(
    rate_per_s: float, streams: int, profile: EngineProfile, prompt_tokens: float, output_tokens: float
) -> list[Advice]:
    batch = usual_batch(profile, prompt_tokens, output_tokens, profile.max_num_seqs)
    request_s = least_work_s(profile, prompt_tokens, output_tokens) + step_share_s(
        profile, output_tokens, batch
    )
    engines = ceil(rate_per_s * request_s / _PLANNED_SHARE)
    each = min(int(batch), ceil(streams / engines))
    return [
        Advice(
            "capacity of one engine",
            f"{1.0 / request_s:.3g}/s",
            f"{profile.name}: {1e3 * request_s:.3g} ms of engine time a request in batches of {batch:.0f}",
        ),
        Advice("engines", str(engines), f"the rate at {_PLANNED_SHARE:.0%} of their capacity"),
        Advice(
            "max_inflight, each engine", str(each), f"{streams} streams over {engines}, at most the batch"
        ),
    ]
