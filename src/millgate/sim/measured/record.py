"""What an engine says of itself in a run's `_meta.json`: its limits, its KV memory, over how many devices it is spread.

Each setting may stand in `engine_kwargs` (what it was started with) or in the `resolved_config` of newer records (what
vLLM made of it). What is missing or null is left to the configuration and to what the run shows. MeasuredError names a
field that cannot be.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millgate.sim.measured.tables import MeasuredError

_META = "__meta.json"
# vLLM's default where a record says nothing of it.
_BLOCK_TOKENS = 16
# vLLM's V1 scheduler, the only one since 0.8.0 unless told otherwise, keeps no blocks free at admission (vLLM pull request
# 44594 brought that back in 2026 as the option `watermark`, 0 by default); V0 kept a hundredth (pull request 11).
_FIRST_OF_V1 = (0, 8)
_V0_WATERMARK_SHARE = 0.01
# More than any setting says, and less than what is endless.
_MOST = 1e18
_WHOLE = "a whole number above 0"
Table = Mapping[str, Any]
_Number = TypeVar("_Number", int, float)


class Served(NamedTuple):
    """One measured request; times are seconds from the first arrival."""

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_token_s: float
    last_token_s: float


def read_requests(path: Path) -> tuple[tuple[Served, ...], int]:
    """Return the requests by arrival, and how many ran together at most; MeasuredError names a line that is none."""
    rows: list[Served] = []
    edges: list[tuple[float, int]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                rows.append(_served(row))
                began = row.get("scheduled_ts")
                edges.append((rows[-1].queued_s if began is None else float(began), 1))
                edges.append((rows[-1].last_token_s, -1))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                raise MeasuredError(f"{path.name}:{number}: not a request: {error}") from None
    if len(rows) < 2:
        raise MeasuredError(f"{path.name}: holds {len(rows) or 'no'} request; its two halves need one each")
    rows.sort(key=lambda served: served.queued_s)
    zero = rows[0].queued_s
    moved = tuple(Served(row[0], row[1], row[2] - zero, row[3] - zero, row[4] - zero) for row in rows)
    return moved, _most_together(edges)


def _served(row: Mapping[str, Any]) -> Served:
    queued, first, last = [float(row[key]) for key in ("queued_ts", "first_token_ts", "last_token_ts")]
    served = Served(int(row["input_toks"]), int(row["output_toks"]), queued, first, last)
    if served.prompt_tokens < 1 or served.output_tokens < 1:
        raise ValueError(
            f"input_toks {served.prompt_tokens}, output_toks {served.output_tokens}: at least 1 each"
        )
    if not queued <= first <= last < float("inf"):
        raise ValueError("queued_ts, first_token_ts and last_token_ts are not in this order, or no times")
    return served


def _most_together(edges: Sequence[tuple[float, int]]) -> int:
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


class EngineRecord:
    """One engine's own record, empty where a run has none."""

    def __init__(self, told: Table) -> None:
        self._told = told
        self._started = table(told, "engine_kwargs")
        self._cache = table(told, "kv_cache")
        resolved = table(told, "resolved_config")
        self._resolved = {**table(resolved, "scheduler_config"), **table(resolved, "parallel_config")}
        self._resolved_cache = table(resolved, "cache_config")
        for name in ("data_parallel_size", "pipeline_parallel_size"):
            if (self._count(name) or 1) > 1:
                raise MeasuredError(
                    f"{_META}: {name}: {self._count(name)}; one engine is replayed, not several"
                )
        hardware = table(told, "hardware")
        self.model = str(self._started.get("model") or told.get("model") or "")
        self.device = str(hardware.get("device_name") or "")
        """Both names are empty where none is told."""
        self.device_bytes = above_0(
            hardware.get("device_total_memory_bytes"), f"{_META}: device_total_memory_bytes"
        )
        """The memory of one device."""
        self.tensor_parallel_size = self._count("tensor_parallel_size")
        """Over how many devices it is spread."""
        self.max_num_seqs = self._count("max_num_seqs")
        """The most sequences at once."""
        self.max_num_batched_tokens = self._count("max_num_batched_tokens")
        """The most tokens of a step."""

    @property
    def memory_share(self) -> float | None:
        """The share of a device's memory that it takes."""
        name = "gpu_memory_utilization"
        share = _first_told(above_0, name, self._started, self._cache, self._resolved_cache)
        if share is not None and share > 1:
            raise MeasuredError(f"{_META}: {name}: {share:g}; must be at most 1")
        return share

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        places = self._cache, self._told, self._started, self._resolved_cache
        return _first_told(count, "block_size", *places) or _BLOCK_TOKENS

    @property
    def kv_tokens(self) -> int | None:
        """The KV memory in tokens; vLLM prints it at its start and has it in `vllm:cache_config_info`."""
        places = {
            "kv_cache.num_gpu_blocks": self._cache,
            "num_gpu_blocks": self._told,
            "engine_kwargs.num_gpu_blocks_override": self._started,
            "resolved_config.cache_config.num_gpu_blocks": self._resolved_cache,
        }
        for field, place in places.items():
            blocks = count(place.get(field.rpartition(".")[2]), f"{_META}: {field}")
            if blocks is not None:
                return blocks * self.block_tokens
        return count(self._cache.get("num_kv_tokens"), f"{_META}: kv_cache.num_kv_tokens")

    @property
    def watermark_share(self) -> float:
        """The share of its blocks that it keeps free when it admits, by its version where it does not say."""
        for place, field in ((self._started, "engine_kwargs.watermark"), (self._resolved, "watermark")):
            share = place.get("watermark")
            if share is not None:
                if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
                    raise MeasuredError(f"{_META}: {field}: {share}; must be at least 0 and below 1")
                return float(share)
        version = self._told.get("vllm_version")
        if version is None:
            return 0.0
        numbers = re.match(r"v?(\d+)\.(\d+)", str(version))
        if numbers is None:
            raise MeasuredError(f"{_META}: vllm_version: {version!r} is no version like 0.19.0")
        return _V0_WATERMARK_SHARE if tuple(map(int, numbers.groups())) < _FIRST_OF_V1 else 0.0

    def _count(self, name: str) -> int | None:
        return _first_told(count, name, self._started, self._resolved)


def _first_told(read: Callable[[object, str], _Number | None], name: str, *places: Table) -> _Number | None:
    """Return what the first of these places tells under this name; None where none does."""
    told = (read(place.get(name), f"{_META}: {name}") for place in places)
    return next((value for value in told if value is not None), None)


def table(told: Table, name: str) -> Table:
    """Return an object inside a record, empty where it is missing or null."""
    value = told.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MeasuredError(f"{name}: must hold an object, not {value!r}")
    return value


def count(value: object, field: str) -> int | None:
    """Return a whole number above 0, also where it was written as text or as 128.0; None for null."""
    number = above_0(value, field, _WHOLE)
    if number is None:
        return None
    if not number.is_integer():
        raise MeasuredError(f"{field}: {value!r}; must be {_WHOLE}")
    return int(number)


def above_0(value: object, field: str, kind: str = "a number above 0") -> float | None:
    """Return a number above 0, also where it was written as text; None for null."""
    if value is None:
        return None
    try:
        number = float(str(value))
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or not 0.0 < number <= _MOST:
        raise MeasuredError(f"{field}: {value!r}; must be {kind}")
    return number
