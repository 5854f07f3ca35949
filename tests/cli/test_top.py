"""`millgate top`: one frame for pipes, a living one for terminals, and a clear word when there is no gate."""

import contextlib
import os
import pty
import re
import select
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from cli.admin_door import Door, admin_door
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.frame import frame
from millgate.cli.top import top
from millgate.core.events import Arrived

Captured = pytest.CaptureFixture[str]
PATIENCE_S = 60.0
ALONE = "import typer; from millgate.cli.top import top; typer.run(top)"


def ask(*arguments: str) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(top)
    app([*arguments], standalone_mode=False)


def busy(door: Door) -> None:
    door.post(0.0, Arrived(1))
    door.post(0.5, Arrived(2))


def drawn(state: dict[str, Any], before: dict[str, Any] | None = None, width: int = 80, **more: str) -> str:
    """Return a frame as text."""
    console = Console(width=width, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - the console's own
    console.print(frame("http://gate", state, before, **more))
    console.file.close()
    return console.export_text()


def test_a_full_disk_behind_one_frame_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with admin_door() as door, Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(CommandError, match="cannot write to stdout: No space left on device"):
            ask("--once", "--admin", door.url)


def test_once_prints_one_frame_without_a_terminal(capsys: Captured) -> None:
    with admin_door() as door:
        busy(door)
        ask("--once", "--admin", door.url)

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert re.search(r"gpu-0\s+up\s+1/1", out)
    assert "refused  saturated: interactive 1 (" in out
    assert out.startswith(f"millgate {door.url} on {socket.gethostname()}")
    assert "50 % refused because no engine had room; engines full" in " ".join(out.split())


def test_without_a_terminal_it_says_how_to_have_one_frame() -> None:
    with admin_door() as door, pytest.raises(CommandError, match="--once") as raised:
        ask("--admin", door.url)

    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize("flags", [[], ["--once"]])
def test_no_gate_is_said_in_one_line(flags: list[str]) -> None:
    with pytest.raises(CommandError, match=r"nothing listens at http://127\.0\.0\.1:1: is the gate running"):
        ask(*flags, "--admin", "http://127.0.0.1:1")


STATE: dict[str, Any] = {
    "now": 12.0,
    "draining": True,
    "lanes": [{"name": "a", "queued": 3, "arrived": 50, "outcomes": {"good": 20}, "yields": {"quota": 4}}],
    "engines": [{"name": "e", "up": False, "running": 9, "limit": 10, "kv_tokens": 5, "kv_limit": 50}],
    "pools": [{"engines": ["e"], "warning": {"load": 1.2}, "alarms": [{"words": "Too much comes."}]}],
}


def test_rates_are_the_differences_of_two_states() -> None:
    before = {**STATE, "now": 10.0, "lanes": [{"name": "a", "arrived": 30, "outcomes": {"good": 15}}]}

    assert re.search(r"a +3 +- +- +- +10\.0 +2\.5 +0\.0 ", drawn(STATE, before))
    assert re.search(r"a +3 +- +- +- +- +- +- ", drawn(STATE))


def test_a_gate_that_was_started_anew_has_no_rates_rather_than_negative_ones() -> None:
    before = {**STATE, "now": 10.0, "lanes": [{"name": "a", "arrived": 900}]}

    assert re.search(r"a +3 +- +- +- +- ", drawn(STATE, before))


def test_what_was_measured_lately_stands_beside_what_is_expected() -> None:
    lately = {"tpot_mean_s": 0.012, "tpot_variance": 9e-6, "gap_mean_s": 0.011, "gap_variance": 4e-4}
    engine = {"name": "e", "expected_tpot_s": 0.01, "lately": {**lately, "prefix_hit_share": 0.8}}
    lanes = [
        {"name": "a", "hints_kept": 9, "hints_broken": 1, "lately": {"window_s": 0.02}},
        {"name": "b", "hints_kept": 5},
    ]
    shown = drawn({"engines": [engine], "lanes": lanes}, width=120)

    assert re.search(r"e +- +10 ms +12 ms +3 ms +11 ms +20 ms +80 %", shown)
    assert re.search(r"a( +-){4} +20 ms", shown)
    assert "hints kept 14 of 15" in shown


def test_a_provider_whose_breaker_is_open_is_not_up() -> None:
    provider = {"name": "p", "up": True, "account": {"breaker_open": True}}

    assert re.search(r"p +breaker open", drawn({"engines": [provider]}))
    assert re.search(r"p +up", drawn({"engines": [{**provider, "account": {"breaker_open": False}}]}))


def test_a_provider_that_has_refused_is_paused() -> None:
    account = {"breaker_open": False, "paused_s": 58.4}

    assert re.search(r"p +paused", drawn({"engines": [{"name": "p", "up": True, "account": account}]}))


def test_live_sessions_stand_in_a_line_where_there_are_any() -> None:
    engines = [{"name": "e", "kv_limit": 30_000}]
    sessions = {"live_sessions": 3, "working_set_share": 0.4}
    cached = {"predicted_cached_tokens": 1_000, "found_cached_tokens": 900}

    line = "live sessions 3  of KV memory 40 %  of predicted cached tokens found 90 %"
    assert line in drawn({"engines": engines, **sessions, **cached})
    assert "live sessions 3  of KV memory -  of predicted cached tokens found -" in drawn(sessions)
    assert "live sessions" not in drawn({"engines": engines})


def test_the_whole_stay_stands_beside_its_wait_and_its_time_on_the_engine() -> None:
    def law(attempts: float, per_s: float, stay_s: float, completed: int = 9) -> dict[str, Any]:
        return {
            "mean_attempts": attempts,
            "entered_per_s": per_s,
            "mean_stay_s": stay_s,
            "completed": completed,
            "residual": 0.0,
        }

    waited = {"whole": law(5.8, 4.0, 1.44), "queue": law(2.9, 4.0, 0.72), "engine": law(2.9, 4.0, 0.72)}
    at_once = {
        "whole": law(1.0, 0.5, 2.0),
        "queue": law(0.0, 0.0, 0.0, completed=0),
        "engine": law(1.0, 0.5, 2.0),
    }
    shown = drawn(
        {"lanes": [{"name": "a", "little": waited}, {"name": "b", "little": at_once}], "little": waited}
    )

    assert re.search(r"a +5\.8 +4\.0 +1\.4 s +2\.9 +720 ms +2\.9 +720 ms +0 %", shown)
    assert re.search(r"b +1\.0 +0\.5 +2\.0 s +0\.0 +- +1\.0 +2\.0 s +0 %", shown)
    assert re.search(r"all lanes +5\.8 +4\.0 ", shown)
    assert "all lanes" not in drawn({"lanes": [{"name": "a", "little": waited}], "little": waited})


def test_the_quantile_that_is_promised_is_named() -> None:
    slo = {
        "short": {"good_share": 0.93},
        "target_share": 0.95,
        "ttft": {"p99": 1.5, "promised": 1.25},
        "ttft_promise": {"time_s": 2.0, "share": 0.95},
        "tpot": {"p99": 0.06, "promised": 0.08},
        "tpot_promise": {"time_s": 0.05, "share": 0.999},
    }
    shown = drawn({"lanes": [{"name": "a", "slo": slo}]})

    assert "93 % (p95)" in shown
    assert re.search(r"a +p95 1\.2 s of 2\.0 s +1\.5 s +p99\.9 80 ms of 50 ms +60 ms +-", shown)


def test_what_is_wrong_stands_in_words() -> None:
    shown = drawn(STATE, silence="nothing listens")

    for words in (
        "draining",
        "no answer: nothing listens",
        "! Too much comes.",
        "down",
        "9/10",
        "10 %",
        "120 %",
    ):
        assert words in shown


@pytest.mark.parametrize(
    "state", [{}, {"lanes": None, "engines": [1, {"lately": None}], "pools": [{}]}, {"lanes": [{}]}]
)
def test_a_state_with_holes_is_drawn_with_dashes(state: dict[str, Any]) -> None:
    assert "millgate" in drawn(state)


def test_names_cannot_steer_the_terminal() -> None:
    shown = drawn({"lanes": [{"name": "\x1b[2J\x07[red]x", "slo": {"advice": "\x9b31m"}}]})

    assert not any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in shown.replace("\n", ""))
    assert "?[2J?[red]x" in shown


def test_it_draws_on_a_terminal_until_q_and_leaves_the_terminal_as_it_was() -> None:
    with admin_door() as door:
        busy(door)
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-c", ALONE, "--admin", door.url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        try:
            shown = read_until(ours, b"residual")
            shown += read_until(ours, b"residual")  # it is drawn again by itself
            os.write(ours, b"q")
            assert wait(process, ours) == 0
            assert termios.tcgetattr(theirs)[3] == before[3]
        finally:
            process.kill()
            process.wait()
            os.close(ours)
            os.close(theirs)

    assert b"gpu-0" in shown
    assert b"Traceback" not in shown


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Return what was drawn up to these bytes."""
    found, by = b"", time.monotonic() + PATIENCE_S
    while wanted not in found:
        assert time.monotonic() < by, found
        if select.select([descriptor], (), (), 0.1)[0]:
            found += os.read(descriptor, 65536)
    return found


def wait(process: "subprocess.Popen[bytes]", descriptor: int) -> int:
    """Return the exit code, reading on so that the process can write its last."""
    by = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < by
        if select.select([descriptor], (), (), 0.05)[0]:
            with contextlib.suppress(OSError):
                os.read(descriptor, 65536)
    return process.returncode
