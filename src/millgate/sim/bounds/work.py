"""Engine time that a request needs at least, and what a fleet can serve when its batches are full.

From the step-time model: w = per_token x n + per_token_squared x n^2 + per_kv_token x (sum of contexts while
decoding) + per_sequence x o. Weights are read once a step for the whole batch, so a token's share of a step's
base is base / batch. Leaving that share out gives a bound on work (decodes may ride on compute-bound chunks);
with it, the capacity that full batches attain.
"""

from millgate.engine.profile import EngineProfile
from millgate.sim.laws import Law
from millgate.sim.traces.synthetic import Lengths


def least_work_s(profile: EngineProfile, prompt_tokens: float, output_tokens: float) -> float:
    """Return the engine seconds that no schedule can save on this request."""
    decodes = max(0.0, output_tokens - 1.0)
    contexts = decodes * prompt_tokens + decodes * (decodes + 1.0) / 2.0
    return (
        profile.prefill_per_token_ms * prompt_tokens
        + profile.prefill_per_token_squared_ms * prompt_tokens**2
        + profile.decode_per_kv_token_ms * contexts
        + profile.decode_per_sequence_ms * decodes
    ) / 1e3


def step_share_s(profile: EngineProfile, output_tokens: float, batch: float) -> float:
    """Return a request's share of what steps cost for being steps, in a batch of this size."""
    return (profile.decode_base_ms + profile.step_overhead_ms) / 1e3 * output_tokens / batch


def usual_batch(profile: EngineProfile, prompt_tokens: float, output_tokens: float, most: int) -> float:
    """Return how many sequences decode together at most: the batch's limit, or what the KV cache holds."""
    resident = prompt_tokens + output_tokens / 2.0
    return max(1.0, min(most, profile.max_num_seqs, profile.kv_tokens / max(1.0, resident)))


def capacity_per_s(profile: EngineProfile, lengths: Lengths, most: int) -> float:
    """Return the requests per second that one engine attains with full batches, for independent lengths."""
    prompt, output = lengths.prompt, lengths.output
    decodes = max(0.0, output.mean - 1.0)
    contexts = decodes * prompt.mean + _mean_square(output) / 2.0
    work_ms = (
        profile.prefill_per_token_ms * prompt.mean
        + profile.prefill_per_token_squared_ms * _mean_square(prompt)
        + profile.decode_per_kv_token_ms * contexts
        + profile.decode_per_sequence_ms * decodes
    )
    batch = usual_batch(profile, prompt.mean, output.mean, most)
    return 1.0 / (work_ms / 1e3 + step_share_s(profile, output.mean, batch))


def _mean_square(law: Law) -> float:
    return law.mean**2 * (1.0 + law.cv2)
