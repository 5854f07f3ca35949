"""Engine profiles: how fast one model on one machine is, with the source of every number.

`profiles.json` beside this module holds them; `step_time.CoefficientModel` explains the form. Times are
milliseconds, as the sources give them; `step_model` turns them into seconds.
"""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from millgate.core.settings import ServicePrior
from millgate.engine.sequences import BatchLimits
from millgate.engine.step_time import CoefficientModel

DEFAULT_PROFILE = "demo"
"""The profile of the embedded engine when no setting names one."""

PRIOR_CONTEXT_TOKENS = 1024
"""Context for which the prior charges the KV reads of one stream; about the mean of the Azure 2023 traces."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Step-time coefficients (milliseconds, tokens), capacity and limits of one engine.

    prefill alone = max(floor, base + per_token x n + per_token_squared x (end^2 - start^2)); decode = base +
    per_sequence x sequences + per_kv_token x cached tokens; every step adds the overhead. The errors are the
    relative errors of the fit to its table (0.03 is 3 %), not of the table to reality.
    """

    name: str
    source: str
    prefill_floor_ms: float
    prefill_base_ms: float
    prefill_per_token_ms: float
    prefill_per_token_squared_ms: float
    decode_base_ms: float
    decode_per_sequence_ms: float
    decode_per_kv_token_ms: float
    step_overhead_ms: float
    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int = 16
    prefill_error_mean: float = 0.0
    prefill_error_max: float = 0.0
    decode_error_mean: float = 0.0
    decode_error_max: float = 0.0

    def step_model(self) -> CoefficientModel:
        """Build the step-time model of these coefficients."""
        return CoefficientModel(
            floor_s=self.prefill_floor_ms / 1e3,
            base_s=self.prefill_base_ms / 1e3,
            per_token_s=self.prefill_per_token_ms / 1e3,
            per_token_squared_s=self.prefill_per_token_squared_ms / 1e3,
            decode_base_s=self.decode_base_ms / 1e3,
            per_sequence_s=self.decode_per_sequence_ms / 1e3,
            per_kv_token_s=self.decode_per_kv_token_ms / 1e3,
            overhead_s=self.step_overhead_ms / 1e3,
        )

    def limits(self) -> BatchLimits:
        """Build the scheduler's limits."""
        return BatchLimits(
            kv_tokens=self.kv_tokens,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_tokens=self.block_tokens,
        )

    def prior(self, context_tokens: int = PRIOR_CONTEXT_TOKENS) -> ServicePrior:
        """What a gate may believe of this engine before it has seen an answer.

        Half a decode step is added to the time to the first token: a prompt waits for the step in progress.
        """
        step_ms = self.decode_base_ms + self.step_overhead_ms
        per_stream_ms = self.decode_per_sequence_ms + self.decode_per_kv_token_ms * context_tokens
        prefill_base_ms = max(self.prefill_floor_ms, self.prefill_base_ms) + self.step_overhead_ms
        return ServicePrior(
            ttft_base_s=(prefill_base_ms + step_ms / 2) / 1e3,
            ttft_per_token_s=self.prefill_per_token_ms / 1e3,
            tpot_base_s=step_ms / 1e3,
            tpot_per_stream_s=per_stream_ms / 1e3,
        )


def scaled(profile: EngineProfile, time_scale: float) -> EngineProfile:
    """Return an engine that is `time_scale` times as fast: every time divided, every capacity kept."""
    if not time_scale > 0:
        raise ValueError(f"time_scale: must be above 0, got {time_scale}")
    times = {
        field.name: getattr(profile, field.name) / time_scale
        for field in fields(profile)
        if field.name.endswith("_ms")
    }
    return replace(profile, **times)


@cache
def load_profiles() -> MappingProxyType[str, EngineProfile]:
    """Read the profiles that ship with the package, by name."""
    text = files("millgate.engine").joinpath("profiles.json").read_text(encoding="utf-8")
    records: dict[str, dict[str, Any]] = json.loads(text)
    return MappingProxyType({name: EngineProfile(name=name, **record) for name, record in records.items()})


def find_profile(name: str) -> EngineProfile:
    """Return the shipped profile of this name; ValueError listing the names when there is none."""
    profiles = load_profiles()
    if name not in profiles:
        raise ValueError(f"profile: {name!r} is not one of {', '.join(sorted(profiles))}")
    return profiles[name]
