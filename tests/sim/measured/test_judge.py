"""The measured vLLM run, replayed; the bars are those that the project promises."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millgate.sim.measured.judge import compare, judge
from millgate.sim.measured.run import MeasuredRun, read_run
from millgate.sim.measured.tables import MeasuredError


def test_the_measured_run_is_met_without_a_fitted_number_and_better_with_one(
    shared_data: Callable[[str], Path],
) -> None:
    """Without: TTFT within 8 %, TPOT within 5 %. With one scalar, on the unseen half: 3 % and 2 %."""
    verdict = judge(read_run(shared_data("vllm-run")))

    assert abs(verdict.errors.ttft) < 0.08
    assert abs(verdict.errors.tpot) < 0.05
    assert abs(verdict.fitted.ttft) < 0.03
    assert abs(verdict.fitted.tpot) < 0.02
    assert set(verdict.as_dict()) == {"errors", "fitted"}


def test_without_its_own_notes_the_limits_are_read_off_the_run(
    shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shared_data("vllm-run"), folder, ignore=shutil.ignore_patterns("*__meta.json"))

    assert read_run(folder).limits == read_run(shared_data("vllm-run")).limits


@pytest.mark.parametrize(
    "told",
    [
        {"kv_cache": {"num_gpu_blocks": 700, "block_size": 32}},
        {"num_gpu_blocks": 1400},
        {"engine_kwargs": {"num_gpu_blocks_override": 1400}},
    ],
)
def test_the_blocks_that_a_run_names_are_its_memory(
    shared_data: Callable[[str], Path], tmp_path: Path, told: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shared_data("vllm-run"), folder, ignore=shutil.ignore_patterns("*__meta.json"))
    (folder / "run__meta.json").write_text(json.dumps(told), encoding="utf-8")

    assert read_run(folder).limits.kv_tokens == 22_400


@pytest.mark.parametrize("blocks", [0, -1, "many", 1.5])
def test_blocks_that_are_no_number_are_named(
    shared_data: Callable[[str], Path], tmp_path: Path, blocks: object
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shared_data("vllm-run"), folder, ignore=shutil.ignore_patterns("*__meta.json"))
    (folder / "run__meta.json").write_text(json.dumps({"num_gpu_blocks": blocks}), encoding="utf-8")

    with pytest.raises(MeasuredError, match="num_gpu_blocks"):
        read_run(folder)


def test_a_perfect_replay_has_no_error(shared_data: Callable[[str], Path]) -> None:
    served = read_run(shared_data("vllm-run")).served
    errors = compare(served, served)

    assert (errors.ttft, errors.tpot, errors.e2e, errors.makespan) == (0.0, 0.0, 0.0, 0.0)


def test_answers_of_one_token_have_no_pace_to_judge(
    shared_data: Callable[[str], Path],
) -> None:
    """It was a division by zero."""
    served = read_run(shared_data("vllm-run")).served
    first_tokens = [row._replace(output_tokens=1, last_token_s=row.first_token_s) for row in served]

    with pytest.raises(MeasuredError, match="no answer of one half goes on after its first token"):
        compare(first_tokens, first_tokens)


def test_a_run_of_one_request_has_no_second_half(tmp_path: Path) -> None:
    """It was a division by zero."""
    times = '"queued_ts": 1.0, "first_token_ts": 2.0, "last_token_ts": 3.0'
    (tmp_path / "x__requests.jsonl").write_text(f'{{"input_toks": 10, "output_toks": 5, {times}}}')

    with pytest.raises(MeasuredError, match="holds 1 request; its two halves need one each"):
        read_run(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasuredError, match=r"__requests\.jsonl"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ({}, 0.0),
        ({"vllm_version": "0.6.3.post1"}, 0.01),
        ({"vllm_version": "v0.8.0"}, 0.0),
        ({"vllm_version": "0.19.0"}, 0.0),
        ({"vllm_version": "1.2.0"}, 0.0),
        ({"vllm_version": "0.24.0", "engine_kwargs": {"watermark": 0.05}}, 0.05),
    ],
)
def test_the_watermark_is_that_of_the_version_unless_it_is_named(
    shared_data: Callable[[str], Path], tmp_path: Path, told: dict[str, Any], share: float
) -> None:
    assert _told(shared_data, tmp_path, told).limits.watermark_share == share


@pytest.mark.parametrize(
    ("told", "field"),
    [({"vllm_version": "main"}, "vllm_version"), ({"engine_kwargs": {"watermark": 1}}, "watermark")],
)
def test_a_watermark_that_cannot_be_is_named(
    shared_data: Callable[[str], Path], tmp_path: Path, told: dict[str, Any], field: str
) -> None:
    with pytest.raises(MeasuredError, match=field):
        _told(shared_data, tmp_path, told)


def _told(shared_data: Callable[[str], Path], tmp_path: Path, told: dict[str, Any]) -> MeasuredRun:
    folder = tmp_path / "run"
    shutil.copytree(shared_data("vllm-run"), folder, ignore=shutil.ignore_patterns("*__meta.json"))
    (folder / "run__meta.json").write_text(json.dumps(told), encoding="utf-8")
    return read_run(folder)
