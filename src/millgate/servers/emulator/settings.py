"""What the embedded engine may be told; every field checked once, with its name in the error."""

from dataclasses import dataclass, replace

from millgate.engine.adapters import ADAPTER_LOAD_S
from millgate.engine.profile import DEFAULT_PROFILE, EngineProfile, find_profile, scaled
from millgate.engine.sequences import BatchLimits

MOST_TIME_SCALE = 10.0
"""Beyond this a step of the fastest profile is shorter than the loop's timer (1 ms) and pacing turns to noise."""

KV_TRANSFERS = ("", "nixl", "sglang-prefill", "sglang-decode")
"""vLLM's NIXL connector, where any engine does both, and SGLang's two modes."""

MOST_BLOCKS = 100_000_000
"""More than any engine's memory has."""

MOST_TOKENS_PER_EVENT = 4096
"""Bound of one event's size: about 16 KB of text."""

_BOUNDS = {
    "port": (0, 65535),
    "time_scale": (0.01, MOST_TIME_SCALE),
    "tokens_per_event": (1, MOST_TOKENS_PER_EVENT),
    "fail_rate": (0.0, 1.0),
    "stall_rate": (0.0, 1.0),
    "error_rate": (0.0, 1.0),
    "kv_lease_s": (0.01, 86_400.0),
    "kv_tokens_per_s": (1.0, 1e12),
    "max_loras": (1, 10_000),
    "lora_load_s": (0.0, 3600.0),
    "stall_s": (0.0, 86_400.0),
}


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """One embedded engine.

    `port` 0 takes a free one. `max_num_seqs` None keeps the profile's. `max_num_queued_reqs` None lets any
    number wait, as vLLM does by default. `ignore_hangups` keeps generating for clients that left.
    `tokens_per_event` is how many tokens one SSE event carries after the first. `max_model_len` None allows a
    context as long as the KV cache. `num_gpu_blocks_override` None keeps the profile's KV memory. `enable_prefix_caching` keeps
    full blocks of prompts and answers for prompts that begin alike, as vLLM does by default. `kv_transfer` names the protocol
    by which prompts are handed to another engine or taken from it ("" is none); what is kept for another engine is kept for
    `kv_lease_s`, goes over with `kv_tokens_per_s`, and what cannot be had is an error or computed here
    (`kv_load_failure_policy`). `lora_modules` are adapters that may be asked for by name; `max_loras` of them are loaded at
    once, each in `lora_load_s`. `seed` feeds the law of answer lengths and the dice of troubles:
    `fail_rate`, `stall_rate` and `error_rate` are the shares of requests that get a 500, of streams that stand
    still for `stall_s` half-way, and of streams that end half-way with an error event.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    profile: str = DEFAULT_PROFILE
    model_name: str = "millgate-engine"
    time_scale: float = 1.0
    max_num_seqs: int | None = None
    max_num_queued_reqs: int | None = None
    max_model_len: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = False
    kv_transfer: str = ""
    kv_lease_s: float = 30.0
    kv_tokens_per_s: float = 150_000.0
    kv_load_failure_policy: str = "fail"
    lora_modules: tuple[str, ...] = ()
    max_loras: int = 1
    lora_load_s: float = ADAPTER_LOAD_S
    tokens_per_event: int = 1
    ignore_hangups: bool = False
    fail_rate: float = 0.0
    stall_rate: float = 0.0
    stall_s: float = 30.0
    error_rate: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            _within(name, getattr(self, name), least, most)
        troubles = self.fail_rate + self.stall_rate + self.error_rate
        _within("fail_rate + stall_rate + error_rate", troubles, 0.0, 1.0)
        _one_of("kv_transfer", self.kv_transfer, KV_TRANSFERS)
        _one_of("kv_load_failure_policy", self.kv_load_failure_policy, ("fail", "recompute"))
        profile = find_profile(self.profile)
        _within("max_num_seqs", self.max_num_seqs, 1, profile.max_num_batched_tokens)
        _within("max_num_queued_reqs", self.max_num_queued_reqs, 1, 1_000_000)
        blocks = self.num_gpu_blocks_override
        _within("num_gpu_blocks_override", blocks, 2, MOST_BLOCKS)
        kv_tokens = profile.kv_tokens if blocks is None else blocks * profile.block_tokens
        _within("max_model_len", self.max_model_len, 2, kv_tokens)

    def engine_profile(self) -> EngineProfile:
        """Return the profile as it runs: scaled, with the sequences and the memory asked for."""
        profile = scaled(find_profile(self.profile), self.time_scale)
        if self.max_num_seqs is not None:
            profile = replace(profile, max_num_seqs=self.max_num_seqs)
        if self.num_gpu_blocks_override is not None:
            profile = replace(profile, kv_tokens=self.num_gpu_blocks_override * profile.block_tokens)
        return profile

    def limits(self) -> BatchLimits:
        """Return the scheduler's limits."""
        limits = self.engine_profile().limits()
        return (
            replace(limits, prefix_unit_tokens=limits.block_tokens) if self.enable_prefix_caching else limits
        )


def _within(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ValueError(f"{name}: must be from {least:g} to {most:g}, got {value:g}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        named = [each for each in allowed if each]
        raise ValueError(f"{name}: must be one of {', '.join(named)}, got {value!r}")
