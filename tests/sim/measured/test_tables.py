"""Kernel tables: interpolation between measured points, floors below, complaints about files."""

from pathlib import Path

import pytest

from millgate.engine.step_time import PromptChunk
from millgate.sim.measured.model import KernelModel
from millgate.sim.measured.tables import Attention, Grid, MeasuredError, read_attention, read_layers

ATTENTION = Attention(
    [
        (0, 0, 1, 100, 10.0),
        (0, 0, 1, 200, 20.0),
        (0, 0, 3, 100, 30.0),
        (0, 0, 3, 200, 60.0),
        (16, 0, 0, 0, 5.0),
        (32, 0, 0, 0, 9.0),
        (16, 0, 1, 100, 25.0),
        (32, 0, 1, 100, 29.0),
    ]
)


def test_a_grid_is_linear_between_points_beyond_them_and_flat_below() -> None:
    grid = Grid([((1.0, 10.0), 1.0), ((1.0, 20.0), 3.0), ((2.0, 10.0), 5.0), ((2.0, 20.0), 7.0)])

    assert grid.at(1.0, 15.0) == 2.0
    assert grid.at(1.5, 15.0) == 4.0
    assert grid.at(2.0, 30.0) == 9.0
    assert grid.at(0.0, 0.0) == 1.0


def test_attention_of_decodes_and_of_prompts_and_of_both() -> None:
    assert ATTENTION.decodes_s(2, 150.0) == pytest.approx(30e-6)
    assert ATTENTION.step_s([(0, 32)], 0, 0.0) == pytest.approx(9e-6)
    assert ATTENTION.step_s([(0, 32), (0, 32)], 0, 0.0) == pytest.approx(13e-6)
    assert ATTENTION.step_s([(0, 32)], 1, 100.0) == pytest.approx(29e-6)


def model(overhead_s: float = 0.0) -> KernelModel:
    dense = {"proj": Grid([((1.0,), 1e-3), ((11.0,), 2e-3)]), "layernorm": Grid([((1.0,), 1e-4)])}
    dense["embedding"] = Grid([((1.0,), 5e-4)])
    return KernelModel(dense, {"lm_head": Grid([((1.0,), 7e-4)])}, ATTENTION, 2, overhead_s)


def test_a_step_is_layers_times_their_kernels_and_once_the_rest() -> None:
    decode_s = 2 * (1e-3 + 2 * 1e-4 + 10e-6) + 5e-4 + 7e-4

    assert model().decode_steps_s(1, 100, 1) == pytest.approx(decode_s)
    assert model().with_overhead(1e-3).decode_steps_s(1, 100, 1) == pytest.approx(decode_s + 1e-3)
    assert model().step_s(0, 0, [PromptChunk(0, 11)]) == pytest.approx(2 * (2e-3 + 2e-4 + 5e-6) + 5e-4 + 7e-4)


def test_many_steps_are_the_sum_of_single_ones_and_can_be_counted_back() -> None:
    kernels = model()
    one_by_one = sum(kernels.decode_steps_s(1, 100 + step, 1) for step in range(50))

    assert kernels.decode_steps_s(1, 100, 50) == pytest.approx(one_by_one)
    assert kernels.decode_steps_within(1, 100, one_by_one + 1e-9) == 50
    assert kernels.decode_steps_within(1, 100, one_by_one - 1e-9) == 49
    assert kernels.decode_steps_within(1, 100, 0.0) == 0


def test_a_file_without_its_columns_or_with_words_for_numbers_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run_dense.csv"
    path.write_text("layer,time_us\nproj,1\n")
    with pytest.raises(MeasuredError, match=r"run_dense\.csv: lacks the column tokens"):
        read_layers(path, "tokens")
    path.write_text("layer,tokens,time_us\nproj,1,fast\n")
    with pytest.raises(MeasuredError, match="time_us: 'fast' is not a number"):
        read_layers(path, "tokens")
    path.write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,1\n")
    with pytest.raises(MeasuredError, match="attention"):
        read_attention(path)


@pytest.mark.parametrize("time", ["nan", "inf", "-2"])
def test_a_time_that_cannot_be_is_named(tmp_path: Path, time: str) -> None:
    """With no number, or one without end, the replay never ended; times below 0 gave figures."""
    path = tmp_path / "run_dense.csv"
    path.write_text(f"layer,tokens,time_us\nproj,1,{time}\n")

    with pytest.raises(MeasuredError, match=f"time_us: '{time}' is not a number from 0 on"):
        read_layers(path, "tokens")


def test_a_table_without_a_row_is_named(tmp_path: Path) -> None:
    """The run was replayed as if these layers took no time."""
    path = tmp_path / "run_dense.csv"
    path.write_text("layer,tokens,time_us\n")

    with pytest.raises(MeasuredError, match=r"run_dense\.csv: has no row"):
        read_layers(path, "tokens")
