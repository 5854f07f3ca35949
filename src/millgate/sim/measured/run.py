"""A measured run in a folder: what was asked when, what came when, and the engine's limits.

Files are found by their endings. Limits come from the run's own `_meta.json` where there is one, from its
configuration where that says, else from what the run itself shows. The budget is the largest step whose kernels
were timed, the batch the most sequences that ever ran together. KV memory is the record's number of blocks, or computed from
the device's memory.

A run over several devices (`tensor_parallel_size`) is one of a part of each layer, its KV heads and its all-reduces.
Kernels that were timed at its degree (`_tp2_dense.csv`) are taken as they are, those of fewer devices are divided.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millgate.engine.sequences import BatchLimits
from millgate.sim.measured.collectives import AllReduce, find_links, read_all_reduce
from millgate.sim.measured.memory import (
    Architecture,
    believed_tokens,
    computed_tokens,
    find_architecture,
    usable_bytes,
)
from millgate.sim.measured.model import KernelModel, divided
from millgate.sim.measured.record import EngineRecord, Served, above_0, count, read_requests, table
from millgate.sim.measured.tables import Grid, MeasuredError, read_attention, read_layers

# What a step takes beside its kernels, by the sequences that get a token: BLIS's fit to its own vLLM runs, 126 us and
# 4.42 us for each.
_HOST = Grid([((0.0,), 126e-6), ((1.0,), 130.42e-6)])
_DEGREE = re.compile(r"_tp(\d+)_")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Everything that a replay needs."""

    name: str
    served: tuple[Served, ...]
    model: KernelModel
    limits: BatchLimits


class _Told(NamedTuple):
    """The engine as its record and its configuration describe it."""

    record: EngineRecord
    cluster: Mapping[str, Any]
    instance: Mapping[str, Any]
    architecture: Architecture
    parts: int


def read_run(folder: Path) -> MeasuredRun:
    """Read a folder; MeasuredError names what is missing or wrong."""
    served, overlap = read_requests(_find(folder, "__requests.jsonl"))
    told = _read_told(folder)
    dense, model = _read_model(folder, told)
    sequences = (
        told.record.max_num_seqs or count(told.instance.get("max_num_seqs"), "max_num_seqs") or overlap
    )
    budget = told.record.max_num_batched_tokens or count(
        told.instance.get("max_num_batched_tokens"), "max_num_batched_tokens"
    )
    steps = budget or int(next(iter(dense.values())).highest)
    kv_tokens = told.record.kv_tokens or _kv_tokens(told, served, sequences)
    longest = max(row.prompt_tokens + row.output_tokens for row in served)
    if kv_tokens < longest:
        raise MeasuredError(f"KV memory of {kv_tokens:,} tokens: cannot hold a request of {longest:,}")
    limits = BatchLimits(
        kv_tokens + -kv_tokens % told.record.block_tokens,  # whole blocks: the run has held as many
        sequences,
        max(steps, sequences),
        told.record.block_tokens,
        watermark_share=told.record.watermark_share,
    )
    return MeasuredRun(str(told.instance.get("model_name") or told.record.model), served, model, limits)


def _read_told(folder: Path) -> _Told:
    cluster = _read_json(_find(folder, "__config.json"))
    instance = _instance(cluster)
    meta = next(iter(sorted(folder.glob("*__meta.json"))), None)
    record = EngineRecord(_read_json(meta) if meta else {})
    architecture = find_architecture(str(instance.get("model_name") or record.model), instance)
    parts = (
        record.tensor_parallel_size
        or count(instance.get("tp_size"), "tp_size")
        or count(instance.get("num_npus"), "num_npus")
        or 1
    )
    return _Told(record, cluster, instance, architecture, parts)


def _read_model(folder: Path, told: _Told) -> tuple[dict[str, Grid], KernelModel]:
    """Return the dense layers and the model of one device's part of a step."""
    if any(folder.glob("*_moe.csv")):
        raise MeasuredError(f"{folder}: has times of experts (_moe.csv); only dense models are replayed")
    architecture, parts = told.architecture, told.parts
    path, degree = _table(folder, "dense", parts)
    dense = divided(read_layers(path, "tokens"), parts // degree)
    path, degree = _table(folder, "per_sequence", parts)
    per_sequence = divided(read_layers(path, "sequences"), parts // degree) | {"host": _HOST}
    path, degree = _table(folder, "attention", parts)
    attention = read_attention(path)
    if degree < parts:
        attention = attention.divided(parts // degree)
    all_reduce = _all_reduce(folder, told)
    return dense, KernelModel(dense, per_sequence, attention, architecture.layers, all_reduce=all_reduce)


def _table(folder: Path, what: str, parts: int) -> tuple[Path, int]:
    """Return the table of a kind and for how many devices it was measured: the run's own degree, or the nearest that divides it.

    A table whose name has no degree is of the run's own.
    """
    found = sorted(folder.glob(f"*_{what}.csv"))
    if not found:
        raise MeasuredError(f"{folder}: has no file that ends in _{what}.csv")
    degrees = {path: int(match[1]) if (match := _DEGREE.search(path.name)) else parts for path in found}
    fitting = [path for path, degree in degrees.items() if degree > 0 and parts % degree == 0]
    if not fitting:
        raise MeasuredError(
            f"{found[0].name}: measured on {degrees[found[0]]} devices, the run on {parts}: give a table of {parts}, or of 1"
        )
    best = max(fitting, key=degrees.__getitem__)
    return best, degrees[best]


def _all_reduce(folder: Path, told: _Told) -> AllReduce | None:
    if told.parts == 1:
        return None
    architecture = told.architecture
    if not architecture.hidden_size:
        raise MeasuredError(
            f"hidden_size: give it in the configuration, for the all-reduces of {told.parts} devices"
        )
    measured = next(iter(sorted(folder.glob("*_all_reduce.csv"))), None)
    device = str(told.instance.get("hardware") or told.record.device)
    links = read_all_reduce(measured) if measured else find_links(device, told.cluster)
    return AllReduce(told.parts, architecture.layers, architecture.hidden_size, links)


def _find(folder: Path, ending: str) -> Path:
    found = sorted(folder.glob(f"*{ending}"))
    if not found:
        raise MeasuredError(f"{folder}: has no file that ends in {ending}")
    return found[0]


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
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


def _kv_tokens(told: _Told, served: tuple[Served, ...], sequences: int) -> int:
    """Return how many tokens fit beside the weights, by the device's memory; else as many as could be asked for."""
    longest = max(row.prompt_tokens + row.output_tokens for row in served)
    memory = table(told.instance, "npu_mem")
    size = above_0(memory.get("mem_size"), "npu_mem: mem_size")
    total = told.record.device_bytes if size is None else size * 2**30
    if total is None or not told.architecture.kv_bytes_of_part(told.parts):
        return longest * sequences
    share = above_0(memory.get("mem_util"), "npu_mem: mem_util")
    usable = usable_bytes(total, told.record.memory_share, share)
    computed = computed_tokens(told.architecture, usable, told.parts)
    return believed_tokens(max(longest, computed), served, sequences)
