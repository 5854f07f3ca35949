"""The parts of the replay that need no process: slices, scales, and bad traces refused before anything starts."""

from pathlib import Path

import pytest
from lab.demos.replay import ReplayOptions, Slice, measure, replayed, run

from millgate.demos.users import Wish

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:56.6805900,2,109
2023-11-16 18:16:46.6805900,879,55
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def test_both_scales_speed_arrivals_up_and_leave_sizes_alone(trace: Path) -> None:
    """A prompt too short to carry its own number is lengthened to it."""
    wishes = list(replayed(ReplayOptions(trace, rate_scale=2.0, time_scale=5.0, duration_s=30.0)))

    assert wishes == [Wish(0.0, 374, 44), Wish(1.0, 3, 109)]


def test_a_slice_is_measured_before_it_is_replayed(trace: Path) -> None:
    assert measure(ReplayOptions(trace, duration_s=30.0)) == Slice(2, 30.0, 376, 153)
    assert measure(ReplayOptions(trace, duration_s=None)) == Slice(3, 60.0, 1255, 208)


def test_a_trace_that_ends_before_its_slice_does_comes_at_the_rate_of_what_there_is(trace: Path) -> None:
    assert measure(ReplayOptions(trace, duration_s=3_600.0)) == Slice(3, 60.0, 1255, 208)
    assert measure(ReplayOptions(trace, start_s=5.0, duration_s=300.0)).rate_per_s == 2 / 55.0


def test_a_bad_row_ends_the_demo_before_anything_is_started(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(TRACE + "2023-11-16 18:17:00,many,1\n", encoding="utf-8")

    assert run(ReplayOptions(trace)) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert "line 5: ContextTokens 'many'" in output.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_scale": 0.0}, "rate_scale: must be from 0.01 to 100"),
        ({"duration_s": 0.0}, "duration_s: must be from 1"),
        ({"time_scale": 20.0}, "time_scale: must be from 0.1 to 10"),
        ({"profile": "abacus"}, "profile: 'abacus' is not one of"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, float], message: str, trace: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayOptions(trace, **options)  # type: ignore[arg-type]  # one wrong value at a time
