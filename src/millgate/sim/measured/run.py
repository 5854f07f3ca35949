"""A measured run in a folder: what was asked when, what came when, and the engine's limits.

Files are found by their endings. Limits come from the run's own `_meta.json` where there is one, from its
configuration where that says, else from what the run itself shows: the budget is the largest step whose kernels
were timed, the batch the most sequences that ever ran together. KV memory is the record's number of blocks, or computed from
the device's memory: on a run that was short of it the computed number was wrong enough for a fifth of TTFT and of TPOT.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millgate.engine.sequences import BatchLimits
from millgate.sim.measured.architectures import Architecture, find_architecture
from millgate.sim.measured.model import KernelModel
from millgate.sim.measured.tables import MeasuredError, read_attention, read_layers

# What vLLM keeps for activations, sampling and the driver at a budget of some 2,048 tokens: measured as 1.6 GiB
# on an RTX 4090, where 2,588 blocks of 16 tokens remain beside Llama-3.1-8B.
_ACTIVATION_BYTES = 1.6 * 2**30
_WEIGHT_BYTES = 2
# vLLM's default where a record says nothing of it.
_BLOCK_TOKENS = 16
# Preempted requests hold nothing for a while, which cannot be seen: a little more than computed proves nothing.
_SURELY_MORE = 1.3
_MOMENTS = 200
# vLLM's V1 scheduler, the only one since 0.8.0 unless told otherwise, keeps no blocks free at admission (vLLM pull request
# 44594 brought that back in 2026 as the option `watermark`, 0 by default); V0 kept a hundredth (pull request 11).
_FIRST_OF_V1 = (0, 8)
_V0_WATERMARK_SHARE = 0.01


class Served(NamedTuple):
    """One measured request; times are seconds from the first arrival."""

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_token_s: float
    last_token_s: float


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Everything that a replay needs."""

    name: str
    served: tuple[Served, ...]
    model: KernelModel
    limits: BatchLimits


def read_run(folder: Path) -> MeasuredRun:
    """Read a folder; MeasuredError names what is missing or wrong."""
    served, overlap = _read_requests(_find(folder, "__requests.jsonl"))
    instance = _instance(_read_json(_find(folder, "__config.json")))
    meta = next(iter(sorted(folder.glob("*__meta.json"))), None)
    told = _read_json(meta) if meta else {}
    engine = told.get("engine_kwargs", {})
    name = str(instance.get("model_name") or engine.get("model") or "")
    architecture = find_architecture(name, instance)
    dense = read_layers(_find(folder, "_dense.csv"), "tokens")
    model = KernelModel(
        dense,
        read_layers(_find(folder, "_per_sequence.csv"), "sequences"),
        read_attention(_find(folder, "_attention.csv")),
        architecture.layers,
    )
    budget = _first("max_num_batched_tokens", engine, instance) or int(next(iter(dense.values())).highest)
    sequences = _first("max_num_seqs", engine, instance) or overlap
    kv_tokens = _told_kv_tokens(told, engine) or _kv_tokens(instance, architecture, served, sequences)
    watermark = _watermark_share(told, engine)
    limits = BatchLimits(kv_tokens, sequences, max(budget, sequences), watermark_share=watermark)
    return MeasuredRun(name, served, model, limits)


def _find(folder: Path, ending: str) -> Path:
    found = sorted(folder.glob(f"*{ending}"))
    if not found:
        raise MeasuredError(f"{folder}: has no file that ends in {ending}")
    return found[0]


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MeasuredError(f"{path.name}: {error}") from None
    if not isinstance(value, dict):
        raise MeasuredError(f"{path.name}: must hold an object")
    return value


def _instance(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first serving instance of a cluster description, or the description itself where it is flat."""
    try:
        instance = config["nodes"][0]["instances"][0]
    except (KeyError, IndexError, TypeError):
        return config
    return instance if isinstance(instance, dict) else config


def _first(key: str, *places: Mapping[str, Any]) -> int | None:
    for place in places:
        if isinstance(place.get(key), int):
            return int(place[key])
    return None


def _read_requests(path: Path) -> tuple[tuple[Served, ...], int]:
    """Return the requests by arrival, and how many ran together at most."""
    rows: list[Served] = []
    edges: list[tuple[float, int]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                times = [float(row[key]) for key in ("queued_ts", "first_token_ts", "last_token_ts")]
                rows.append(Served(int(row["input_toks"]), int(row["output_toks"]), *times))
                edges += [(float(row.get("scheduled_ts", times[0])), 1), (times[2], -1)]
            except (ValueError, TypeError, KeyError) as error:
                raise MeasuredError(f"{path.name}:{number}: not a request: {error}") from None
    if not rows:
        raise MeasuredError(f"{path.name}: holds no request")
    rows.sort(key=lambda served: served.queued_s)
    zero = rows[0].queued_s
    moved = tuple(Served(row[0], row[1], row[2] - zero, row[3] - zero, row[4] - zero) for row in rows)
    return moved, _most_together(edges)


def _most_together(edges: Sequence[tuple[float, int]]) -> int:
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def _told_kv_tokens(told: Mapping[str, Any], engine: Mapping[str, Any]) -> int | None:
    """Return the KV memory that the run's own record names, None where it names none; MeasuredError for no number.

    vLLM prints it at its start and has it in `vllm:cache_config_info`; `num_gpu_blocks_override` is a setting of it.
    """
    cache = told.get("kv_cache") or {}
    places = {
        "kv_cache.num_gpu_blocks": cache.get("num_gpu_blocks"),
        "num_gpu_blocks": told.get("num_gpu_blocks"),
    }
    places["engine_kwargs.num_gpu_blocks_override"] = engine.get("num_gpu_blocks_override")
    size = cache.get("block_size") or told.get("block_size") or engine.get("block_size") or _BLOCK_TOKENS
    for field, blocks in places.items():
        if blocks is not None:
            if not (isinstance(blocks, int) and isinstance(size, int) and blocks > 0 and size > 0):
                raise MeasuredError(
                    f"__meta.json: {field}: {blocks} blocks of {size} tokens; both must be integers above 0"
                )
            return blocks * size
    return None


def _watermark_share(told: Mapping[str, Any], engine: Mapping[str, Any]) -> float:
    """Return which share of its blocks this vLLM keeps free when it admits; MeasuredError for no share or no version."""
    share = engine.get("watermark")
    if share is not None:
        if not (isinstance(share, int | float) and 0 <= share < 1):
            raise MeasuredError(
                f"__meta.json: engine_kwargs.watermark: {share}; must be at least 0 and below 1"
            )
        return float(share)
    version = told.get("vllm_version")
    if version is None:
        return 0.0
    numbers = re.match(r"v?(\d+)\.(\d+)", str(version))
    if numbers is None:
        raise MeasuredError(f"__meta.json: vllm_version: {version!r} is no version like 0.19.0")
    return _V0_WATERMARK_SHARE if tuple(map(int, numbers.groups())) < _FIRST_OF_V1 else 0.0


def _kv_tokens(
    instance: Mapping[str, Any], architecture: Architecture, served: Sequence[Served], sequences: int
) -> int:
    """Return how many tokens fit beside the weights, by the device's memory; else as many as could be asked for."""
    held = _most_held(served, sequences)
    device = instance.get("npu_mem", {})
    parts = int(instance.get("tp_size") or instance.get("num_npus") or 1)
    longest = max(row.prompt_tokens + row.output_tokens for row in served)
    if "mem_size" not in device or not architecture.kv_bytes_per_token:
        return longest * sequences
    memory = float(device["mem_size"]) * 2**30 * float(device.get("mem_util", 0.9)) * parts
    left = memory - architecture.parameters * _WEIGHT_BYTES - _ACTIVATION_BYTES * parts
    computed = max(longest, int(left / architecture.kv_bytes_per_token))
    # A run that visibly held far more knows better than a rule about memory.
    return held if held > _SURELY_MORE * computed else computed


def _most_held(served: Sequence[Served], sequences: int) -> int:
    """Return how many tokens the engine held at once at most, by what was measured; answers grow evenly.

    Of those that have their first token and not their last; at most as many as run together.
    """
    most = 0.0
    for moment in served[:: max(1, len(served) // _MOMENTS)]:
        now = moment.last_token_s
        running = [row for row in served if row.first_token_s <= now <= row.last_token_s][:sequences]
        held = sum(
            row.prompt_tokens
            + row.output_tokens * (now - row.first_token_s) / max(1e-9, row.last_token_s - row.first_token_s)
            for row in running
        )
        most = max(most, held)
    return int(most)
