"""What prefilling and decoding engines and the link between them can do at most, each by itself; the least is the bound.

For requests of one length the linear program over the three pools is their minimum. A prefilling engine reads one prompt in
P(n). The link carries bytes at its speed. A decoding engine makes a token for each of B sequences a step, where B is its
batch or what its memory holds of contexts at their mean length.
"""

from typing import NamedTuple

from millgate.engine.profile import EngineProfile
from millgate.sim.bounds.work import usual_batch
from millgate.sim.engines.handoffs import LinkSpeed


class PoolBounds(NamedTuple):
    """Requests per second of each pool alone."""

    prefill_per_s: float
    link_per_s: float
    decode_per_s: float

    @property
    def least_per_s(self) -> float:
        """The bound of all three in a row."""
        return min(self)


def prompt_step_s(profile: EngineProfile, begin_tokens: int, end_tokens: int) -> float:
    """Return the seconds of a step that computes these tokens of one prompt and nothing else (engine/step_time)."""
    work_ms = profile.prefill_base_ms + profile.prefill_per_token_ms * (end_tokens - begin_tokens)
    work_ms += profile.prefill_per_token_squared_ms * (end_tokens**2 - begin_tokens**2)
    return (max(profile.prefill_floor_ms, work_ms) + profile.step_overhead_ms) / 1e3


def pool_bounds(
    profile: EngineProfile,
    prompt_tokens: int,
    output_tokens: int,
    *,
    prefills: int,
    decodes: int,
    link: LinkSpeed,
) -> PoolBounds:
    """Return the bounds for requests of these lengths; the prompt must fit into one step."""
    batch = usual_batch(profile, prompt_tokens, output_tokens, profile.max_num_seqs)
    kv_tokens = batch * (prompt_tokens + output_tokens / 2.0)
    step_ms = profile.decode_base_ms + profile.decode_per_sequence_ms * batch
    step_ms += profile.decode_per_kv_token_ms * kv_tokens + profile.step_overhead_ms
    return PoolBounds(
        prefills / prompt_step_s(profile, 0, prompt_tokens),
        1.0 / link.transfer_s(prompt_tokens),
        decodes * batch / (max(1, output_tokens - 1) * step_ms / 1e3),
    )
