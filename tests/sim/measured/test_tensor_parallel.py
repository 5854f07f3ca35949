"""Runs over several devices: parts of layers, KV heads and memory, and all-reduces, by published figures."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millgate.engine.step_time import PromptChunk
from millgate.sim.measured.collectives import AllReduce, find_links, read_all_reduce
from millgate.sim.measured.judge import replay
from millgate.sim.measured.memory import computed_tokens, find_architecture, usable_bytes
from millgate.sim.measured.model import divided
from millgate.sim.measured.run import MeasuredRun, read_run
from millgate.sim.measured.tables import Attention, Grid, MeasuredError, read_layers

Data = Callable[[str], Path]
GIB = 2**30
MB = 1e6


@pytest.mark.parametrize(
    ("device", "parts", "size_mb", "measured_us"),
    [
        # AIConfigurator: vLLM 0.20's own kernel in a graph.
        ("NVIDIA H100 80GB HBM3", 2, 0.016, 4.5),
        ("NVIDIA H100 80GB HBM3", 4, 1.05, 18.5),
        ("NVIDIA H100 80GB HBM3", 8, 2.1, 30.7),
        ("A100-SXM4-80GB", 4, 1.05, 26.2),
        ("A100-SXM4-80GB", 8, 2.1, 45.5),
        # Vidur: 160 of them in a 70B model, 2,048 tokens.
        ("H100", 4, 33.6, 27e3 / 160),
        ("A100", 8, 33.6, 66e3 / 160),
        # LLMServingSim: NCCL over PCIe 5.
        ("RTXPRO6000", 2, 0.041, 14.6),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, 1.31, 47.5),
        ("RTXPRO6000", 2, 20.97, 587.1),
    ],
)
def test_an_all_reduce_takes_what_was_measured_of_it_alone(
    device: str, parts: int, size_mb: float, measured_us: float
) -> None:
    all_reduce = AllReduce(parts, 1, 1, find_links(device, {}))
    assert all_reduce.once_s(size_mb * MB) * 1e6 == pytest.approx(measured_us, rel=0.3)


def test_a_step_has_two_in_each_layer_and_one_for_the_embedding() -> None:
    all_reduce = AllReduce(2, 32, 4096, find_links("RTX4090", {}))
    assert all_reduce.step_s(128) == pytest.approx(65 * all_reduce.once_s(128 * 8192))


def test_of_an_unknown_device_the_description_says_the_link() -> None:
    described = {"link_bw": 100, "link_latency": 3000}
    [link] = find_links("Gaudi 3", described)
    assert (link.latency_s, link.bytes_per_s) == (6e-6, 100e9)
    assert find_links("H100", described) == find_links("H100", {})
    assert find_links("Gaudi 3", {"link_bw": None}) == find_links("RTXPRO6000", {})
    assert find_links("NVIDIA L40S", {}) == find_links("RTX4090", {})


def test_measured_times_of_a_run_take_their_place(tmp_path: Path) -> None:
    path = tmp_path / "run_all_reduce.csv"
    path.write_text("layer,bytes,time_us\nall_gather,1000,1\nall_reduce,1000,10\nall_reduce,3000,20\n")
    assert AllReduce(2, 1, 1, read_all_reduce(path)).once_s(2000) == pytest.approx(15e-6)


@pytest.mark.parametrize(
    ("model", "memory_bytes", "share", "parts", "blocks"),
    [
        ("meta-llama/Llama-3.1-8B", 80 * GIB, None, 1, 29_205),
        ("meta-llama/Llama-3.1-70B", 80 * GIB, None, 4, 30_251),
        ("meta-llama/Llama-2-7b-hf", 80 * GIB, None, 1, 7_463),
        ("Mistral-Nemo-12B", 80 * GIB, None, 1, 19_251),
        ("01-ai/Yi-34B", 80 * GIB, None, 2, 20_793),
        ("Qwen/Qwen2.5-7B", 80 * GIB, None, 1, 65_352),
        ("meta-llama/Llama-3.1-8B", 24 * GIB, None, 1, 2_588),
        ("/data/model/Qwen3-32B", 101_976_440_832, 0.92, 2, 28_884),
    ],
)
def test_the_memory_rule_is_within_three_per_cent_of_what_vllm_said(
    model: str, memory_bytes: float, share: float | None, parts: int, blocks: int
) -> None:
    tokens = computed_tokens(find_architecture(model, {}), usable_bytes(memory_bytes, share, None), parts)
    assert tokens == pytest.approx(16 * blocks, rel=0.03)


def test_a_description_that_leaves_less_for_weights_and_cache_is_believed() -> None:
    """0.833919 of 24 GiB is what an RTX 4090 had left for them: the same 2,588 blocks."""
    llama = find_architecture("llama-3.1-8b", {})
    assert computed_tokens(llama, usable_bytes(24 * GIB, None, 0.833919), 1) == pytest.approx(
        41_408, rel=0.01
    )
    assert usable_bytes(100.0 * GIB, None, 0.9) == usable_bytes(100.0 * GIB, None, None)
    assert usable_bytes(100.0 * GIB, 0.5, 0.9) < 50.0 * GIB


def test_of_kv_heads_each_device_has_one_at_least() -> None:
    qwen = find_architecture("qwen2.5-7b", {})
    assert qwen.kv_bytes_of_part(4) == qwen.kv_bytes_of_part(1) / 4
    assert qwen.kv_bytes_of_part(8) == qwen.kv_bytes_of_part(4)


def test_products_are_divided_launches_and_norms_are_not() -> None:
    def grid(*times_us: float) -> Grid:
        return Grid([((float(8**index),), time_us) for index, time_us in enumerate(times_us)])

    half = divided({"qkv_proj": grid(8, 16), "act_fn": grid(2, 6), "layernorm": grid(3, 7)}, 2)
    assert [half[name].at(8.0) for name in half] == [8.0, 4.0, 7.0]
    assert [half[name].at(1.0) for name in half] == [4.0, 2.0, 3.0]

    whole = Attention([(0, 0, 1, 100, 12.0), (16, 0, 0, 0, 2.0), (32, 0, 0, 0, 8.0), (32, 0, 1, 100, 20.0)])
    part = whole.divided(2)
    assert part.decodes_s(1, 100.0) == pytest.approx(7e-6)
    assert part.step_s([PromptChunk(0, 32)], 0, 0.0) == pytest.approx(5e-6)
    assert part.step_s([PromptChunk(0, 32)], 1, 100.0) == pytest.approx(11e-6)


def test_divided_kernels_are_near_those_that_were_measured_at_two_devices(shared_data: Data) -> None:
    """Of the same model and device, where both were measured: LLMServingSim's tables at two devices, in microseconds."""
    [path] = shared_data("vllm-run").glob("*_dense.csv")
    half = divided(read_layers(path, "tokens"), 2)
    for tokens, gate_up_us in ((1, 80.13), (64, 86.7), (512, 189.6), (1024, 339.0), (2048, 617.0)):
        assert half["gate_up_proj"].at(tokens) * 1e6 == pytest.approx(gate_up_us, rel=0.15)


def _run(shared_data: Data, folder: Path, told: dict[str, Any], **described: object) -> MeasuredRun:
    if not folder.exists():
        shutil.copytree(shared_data("vllm-run"), folder, ignore=shutil.ignore_patterns("*__meta.json"))
    (folder / "run__meta.json").write_text(json.dumps(told), encoding="utf-8")
    if described:
        [path] = folder.glob("*__config.json")
        config = json.loads(path.read_text())
        config["nodes"][0]["instances"][0].update(described)
        path.write_text(json.dumps(config))
    return read_run(folder)


def test_a_run_on_two_devices_is_one_of_halves_and_all_reduces(shared_data: Data, tmp_path: Path) -> None:
    kwargs = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
    one = _run(shared_data, tmp_path / "run", {"engine_kwargs": {"tensor_parallel_size": 1, **kwargs}})
    two = _run(shared_data, tmp_path / "run", {"engine_kwargs": {"tensor_parallel_size": 2, **kwargs}})

    assert 2.0 < two.limits.kv_tokens / one.limits.kv_tokens < 2.6
    whole_s, part_s = (run.model.decode_steps_s(64, 64 * 1024, 1) for run in (one, two))
    all_reduces_s = AllReduce(2, 32, 4096, find_links("RTXPRO6000", {})).step_s(64)
    assert part_s == pytest.approx(0.5 * whole_s + all_reduces_s, rel=0.06)
    assert len(replay(two, two.model)) == len(two.served)


def test_kernels_that_were_timed_at_the_degree_of_the_run_are_taken_as_they_are(
    shared_data: Data, tmp_path: Path
) -> None:
    folder, told = tmp_path / "run", {"engine_kwargs": {"tensor_parallel_size": 2}}
    divided_s = _run(shared_data, folder, told).model.decode_steps_s(1, 100, 1)
    for path in list(folder.glob("*_tp1_*.csv")):
        shutil.copy(path, path.with_name(path.name.replace("_tp1_", "_tp2_")))
    as_timed_s = _run(shared_data, folder, told).model.decode_steps_s(1, 100, 1)
    assert as_timed_s > 1.6 * divided_s
    for path in list(folder.glob("*_tp1_*.csv")):
        path.unlink()
    assert _run(shared_data, folder, told).model.decode_steps_s(1, 100, 1) == as_timed_s
    with pytest.raises(
        MeasuredError, match=r"_tp2_dense\.csv: measured on 2 devices, the run on 1: give a table"
    ):
        _run(shared_data, folder, {})


def test_a_degree_that_only_the_configuration_names_counts(shared_data: Data, tmp_path: Path) -> None:
    run = _run(shared_data, tmp_path / "run", {}, tp_size=2, num_npus=2)
    assert run.limits.kv_tokens > 1_000_000


def test_a_record_may_be_newer_fuller_or_emptier(shared_data: Data, tmp_path: Path) -> None:
    resolved = {
        "cache_config": {"num_gpu_blocks": 700, "block_size": 32, "gpu_memory_utilization": 0.92},
        "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "watermark": 0.02},
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
    }
    kwargs = {"tensor_parallel_size": None, "max_num_seqs": None}
    limits = _run(
        shared_data,
        tmp_path / "run",
        {
            "engine_kwargs": kwargs,
            "resolved_config": resolved,
            "vllm_version": "0.8.5.post1",
            "kv_cache": None,
        },
    ).limits
    assert (limits.kv_tokens, limits.block_tokens, limits.watermark_share) == (22_400, 32, 0.02)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (64, 4096)

    texts = {"engine_kwargs": {"max_num_seqs": "64", "max_num_batched_tokens": 4096.0}, "vllm_version": None}
    limits = _run(shared_data, tmp_path / "run", texts).limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.watermark_share) == (64, 4096, 0.0)

    hardware = {"device_name": "NVIDIA RTX PRO 6000", "device_total_memory_bytes": 96 * GIB}
    told = {"engine_kwargs": None, "hardware": hardware}
    limits = _run(shared_data, tmp_path / "run", told, npu_mem=None).limits
    assert limits.kv_tokens == pytest.approx(572_000, rel=0.01)

    counted = {"kv_cache": {"num_kv_tokens": 50_000}}
    assert _run(shared_data, tmp_path / "run", counted).limits.kv_tokens == 50_000


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"engine_kwargs": {"tensor_parallel_size": 0}},
            "tensor_parallel_size: 0; must be a whole number above 0",
        ),
        ({"engine_kwargs": {"max_num_seqs": "many"}}, "max_num_seqs: 'many'; must be a whole number above 0"),
        ({"engine_kwargs": {"gpu_memory_utilization": 90}}, "gpu_memory_utilization: 90; must be at most 1"),
        (
            {"engine_kwargs": {"gpu_memory_utilization": "x"}},
            "gpu_memory_utilization: 'x'; must be a number above 0",
        ),
        (
            {"engine_kwargs": {"data_parallel_size": 2}},
            "data_parallel_size: 2; one engine is replayed, not several",
        ),
        ({"engine_kwargs": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size: 2"),
        ({"engine_kwargs": {"tensor_parallel_size": 3, "model": "x"}}, ""),
        ({"engine_kwargs": [1]}, "engine_kwargs: must hold an object"),
        ({"kv_cache": 7}, "kv_cache: must hold an object, not 7"),
        ({"num_gpu_blocks": 3}, "KV memory of 48 tokens: cannot hold a request of"),
    ],
)
def test_what_a_record_cannot_say_is_named(
    shared_data: Data, tmp_path: Path, told: dict[str, Any], said: str
) -> None:
    if not said:
        assert _run(shared_data, tmp_path / "run", told).served
        return
    with pytest.raises(MeasuredError, match=said):
        _run(shared_data, tmp_path / "run", told)


def test_experts_are_refused_in_words(shared_data: Data, tmp_path: Path) -> None:
    _run(shared_data, tmp_path / "run", {})
    (tmp_path / "run" / "x_tp1_moe.csv").write_text("layer,tokens,time_us\n")
    with pytest.raises(MeasuredError, match="only dense models are replayed"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"output_toks": 0}, "at least 1 each"),
        ({"first_token_ts": 0.5}, "not in this order"),
        ({"last_token_ts": None}, "not a request"),
        ({"last_token_ts": float("inf")}, "or no times"),
    ],
)
def test_a_request_that_cannot_be_is_named_with_its_line(
    shared_data: Data, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    _run(shared_data, tmp_path / "run", {})
    [path] = (tmp_path / "run").glob("*__requests.jsonl")
    good = {"input_toks": 10, "output_toks": 5, "queued_ts": 1.0, "first_token_ts": 2.0, "last_token_ts": 3.0}
    path.write_text(f"{json.dumps({**good, 'scheduled_ts': None})}\n\n{json.dumps(good | row)}\n")
    with pytest.raises(MeasuredError, match=rf"__requests\.jsonl:3: .*{said}"):
        read_run(tmp_path / "run")
