"""A wrong command line is one clear line on stderr, nothing on stdout, and a documented exit code."""

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from millgate import __version__
from millgate.cli.exits import EXIT_CODES_HELP, ExitCode
from millgate.cli.main import COMMANDS, main
from millgate.config.reference import render_page as config_page
from millgate.observe.reference import render_page as metrics_page

Captured = pytest.CaptureFixture[str]
UPSTREAM = ["--upstream", "http://127.0.0.1:9"]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A command line that is wrongly taken would serve for ever."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--upstram", "http://a:1"], "No such option: --upstram (Possible options: --upstream)"),
        (["sevre"], "No such command 'sevre'. Did you mean 'serve'?"),
        (["serve", "--port", "many", *UPSTREAM], "Invalid value for '--port'"),
        (
            ["serve"],
            "engines: is missing: name an engine with --upstream http://host:port or under `engines:`",
        ),
        (["serve", "--port", "70000", *UPSTREAM], "--port: listen.port: must be at most 65,535, not 70000"),
        (
            ["serve", "--max-inflight", "0", *UPSTREAM],
            "--max-inflight: engines[0].max_inflight: must be at least 1, not '0'",
        ),
        (
            ["serve", "--max-queue", "-1", *UPSTREAM],
            "--max-queue: lanes[0].max_queue: '-1' is not a whole number",
        ),
        (
            ["serve", "--ttft-slo", "5", *UPSTREAM],
            "--ttft-slo: lanes[0].ttft_slo: '5' has no unit: write 5s, 5ms or 5m",
        ),
        (
            ["serve", "--upstream", "localhost:8000"],
            "--upstream: engines[0].url: 'localhost:8000' is not an address",
        ),
        (
            ["serve", "--set", "listen.prot=1", *UPSTREAM],
            "--set listen.prot: listen.prot: is not a setting; did you mean `port`?",
        ),
        (
            ["serve", "--host", "0.0.0.0", *UPSTREAM],
            "--host: listen.host: 0.0.0.0 can be reached from outside",
        ),
        (["serve", "--set", "admin.host=0.0.0.0", *UPSTREAM], "environment variable MILLGATE_ADMIN_TOKEN"),
        (["serve", "--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read: No such file or directory"),
        (["serve", "--set", "engines.0.profile=warp", *UPSTREAM], "engines[0].profile: 'warp' is not one of"),
        (["engine", "--time-scale", "11"], "--time-scale: must be from 0.01 to 10, got 11"),
        (["engine", "--profile", "warp"], "--profile: 'warp' is not one of"),
        (["run", "--set", "listen.port=x"], "listen.port: 'x' is not a whole number"),
        (["run", "--profile", "warp"], "profile: 'warp' is not one of"),
        (["demo", "burst", "--service", "soon"], "--service: 'soon' is not a duration"),
        (["demo", "burst", "--users", "0"], "--users: must be"),
        (["demo", "replay", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: Captured
) -> None:
    code = main(arguments)

    out, err = capsys.readouterr()
    assert (code, out) == (ExitCode.USAGE, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_every_problem_of_a_file_has_its_own_line(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://a:1', max_inflight: 0}]\nlisten: {prot: 1}\n", encoding="utf-8")

    code = main(["serve", "--config", str(file)])

    assert code == ExitCode.USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"millgate: {file}:1:31: engines[0].max_inflight: must be at least 1, not 0",
        f"millgate: {file}:2:10: listen.prot: is not a setting; did you mean `port`?",
    ]


def test_a_taken_port_is_told_with_the_flag_that_helps(capsys: Captured) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        gate = main(["serve", *UPSTREAM, "--port", str(taken), "--admin-port", "0"])
        admin = main(["serve", *UPSTREAM, "--port", "0", "--admin-port", str(taken)])
        engine = main(["engine", "--port", str(taken)])

    assert (gate, admin, engine) == (ExitCode.PORT_TAKEN,) * 3
    assert capsys.readouterr().err.splitlines() == [
        f"millgate: 127.0.0.1:{taken} is taken by another program: stop it, or choose another port with {flag}"
        for flag in ("--port", "--admin-port", "--port")
    ]


def test_an_address_of_another_machine_cannot_be_listened_on(capsys: Captured) -> None:
    """192.0.2.1 is reserved for documentation."""
    code = main(["serve", *UPSTREAM, "--host", "192.0.2.1", "--insecure", "--port", "0", "--admin-port", "0"])

    assert code == ExitCode.PORT_TAKEN
    assert "192.0.2.1:0 is not an address of this machine" in capsys.readouterr().err


def test_version_is_one_line(capsys: Captured) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr() == (f"{__version__}\n", "")


def test_help_tells_the_exit_codes(capsys: Captured) -> None:
    assert main(["--help"]) == 0

    assert EXIT_CODES_HELP.split(";")[0] in capsys.readouterr().out
    assert all(f"{code.value} " in EXIT_CODES_HELP for code in ExitCode)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_stands_in_the_help(command: str, capsys: Captured) -> None:
    assert main([command, "--help"]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    everything = capsys.readouterr().out

    assert re.search(rf"Usage: .*\b{command}\b", alone)
    assert re.search(rf"^\W*{command}\s+\S", everything, re.MULTILINE)


def test_no_command_at_all_is_shown_the_help_and_no_complaint(capsys: Captured) -> None:
    assert main([]) == ExitCode.USAGE

    out, err = capsys.readouterr()
    assert "Usage:" in out + err
    assert "millgate: " not in err


@pytest.mark.parametrize(("command", "page"), [("reference", config_page), ("metrics", metrics_page)])
def test_reference_pages_are_printed_as_they_are_kept(command: str, page: object, capsys: Captured) -> None:
    assert callable(page)
    assert main(["config", command]) == 0
    assert capsys.readouterr().out == page()


def test_the_json_schema_is_one_line_of_json(capsys: Captured) -> None:
    assert main(["config", "schema"]) == 0

    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["title"] == "Config"


def test_config_check_and_show_read_the_same_file(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://a:1'}]\n", encoding="utf-8")

    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: valid, 1 engine(s), 3 lane(s)\n"
    assert main(["config", "show", "--config", str(file), "--set", "listen.port=9000"]) == 0
    assert json.loads(capsys.readouterr().out)["listen"]["port"] == 9000


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://a:1'}]\nlisten: {port: 1}\n", encoding="utf-8")
    monkeypatch.setenv("MILLGATE_CONFIG", str(file))
    monkeypatch.setenv("MILLGATE_LISTEN__PORT", "4")

    assert main(["config", "show"]) == 0
    assert json.loads(capsys.readouterr().out)["listen"]["port"] == 4


def test_a_full_disk_behind_stdout_is_told(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = main(["version"])

    assert code == ExitCode.FAILURE
    assert capsys.readouterr().err == "millgate: cannot write to stdout: No space left on device\n"
