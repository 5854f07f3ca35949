"""A wrong command line is one clear line on stderr, nothing on stdout, and a documented exit code."""

import json
import platform
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import hatch_build
import pytest

from millgate import __version__
from millgate.cli.exits import EXIT_CODES_HELP, ExitCode
from millgate.cli.main import COMMANDS, main
from millgate.config.reference import render_page as config_page
from millgate.observe.meters import render_page as metrics_page

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
            ["serve", "gate.yaml"],
            "unexpected extra argument(s) (gate.yaml): a file is given with --config FILE",
        ),
        (["config", "show", "gate.yaml"], "(gate.yaml): a file is given with --config FILE"),
        (["key", "check", "mgk_k"], "(mgk_k): a file is given with --config FILE, the key on standard input"),
        (["check", "--config", "g.yaml"], "No such option: --config: a file is given as millgate check FILE"),
        (["why", "1", "2"], "Got unexpected extra argument(s) (2)\n"),
        (["demo", "more"], "Got unexpected extra argument(s) (more)\n"),
        (["check", "/dev/null"], "/dev/null: engines: is missing: name an engine"),
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
        (["engine", "--host", "\udcff"], "an argument cannot be used: "),
        (["ping", "--addr", f"{'a' * 64}.test"], "an argument cannot be used: "),
        (["run", "--set", "listen.port=x"], "listen.port: 'x' is not a whole number"),
        (["run", "--profile", "warp"], "profile: 'warp' is not one of"),
        (["demo", "--patience", "soon"], "--patience: 'soon' is not a duration"),
        (["demo", "--for", "1s"], "--for: must be from 5 to 3600, got 1"),
        (["demo", "--cap", "0"], "--cap: must be from 1 to 256, got 0"),
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


def problems(capsys: Captured) -> list[str]:
    """Return what a server has complained of, where no terminal reads it."""
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {(record["event"], record["level"]) for record in records} == {("failed", "error")}
    return [record["problem"] for record in records]


def test_a_server_complains_to_a_terminal_in_words(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    assert main(["serve", "--port", "70000", *UPSTREAM]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("millgate: --port: listen.port: must be at most 65,535")


def test_every_problem_of_a_file_has_its_own_line(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://a:1', max_inflight: 0}]\nlisten: {prot: 1}\n", encoding="utf-8")

    code = main(["serve", "--config", str(file)])

    assert code == ExitCode.USAGE
    assert problems(capsys) == [
        f"{file}:1:31: engines[0].max_inflight: must be at least 1, not 0",
        f"{file}:2:10: listen.prot: is not a setting; did you mean `port`?",
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
    assert problems(capsys) == [
        f"127.0.0.1:{taken} is taken by another program: stop it, or choose another port with {flag}"
        for flag in ("--port", "--admin-port", "--port")
    ]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_of_the_line_door_is_not_blamed_on_the_http_door(
    workers: str, tmp_path: Path, capsys: Captured
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        file = tmp_path / "gate.yaml"
        file.write_text(
            f"engines: [{{url: 'http://127.0.0.1:9'}}]\nline: {{port: {taken}}}\n", encoding="utf-8"
        )
        code = main(
            ["serve", "--config", str(file), "--workers", workers, "--port", "0", "--admin-port", "0"]
        )

    assert code == ExitCode.PORT_TAKEN
    expected = (
        f"127.0.0.1:{taken} is taken by another program: stop it, or choose another port with line.port"
    )
    assert problems(capsys) == [expected]


@pytest.mark.parametrize(
    ("store", "complaint"),
    [
        ("redis://cache:abc", "a Redis host is host:6379"),
        ("redis://cache:70000", "a Redis host is host:6379"),
        ("redis://cache/prod", "a Redis database is a number"),
        ("redis://one,two", "several hosts are those of redis+sentinel:// or redis+cluster://"),
        ("redis://me:s3c/ret@cache", "a / in a password is %2F"),
    ],
)
def test_a_typo_in_the_address_of_the_store_is_told_and_quotes_no_password(
    store: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    monkeypatch.setenv("KEY", "00" * 32)
    monkeypatch.setenv("MILLGATE_REDIS_URL", store)
    cluster = ["--set", "cluster.name=two", "--set", "retries.ticket_key_env=KEY"]

    assert main(["serve", *UPSTREAM, *cluster]) == ExitCode.USAGE
    (told,) = problems(capsys)
    assert complaint in told
    assert "s3c" not in told


def test_a_missing_file_of_the_store_s_authorities_is_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    monkeypatch.setenv("KEY", "00" * 32)
    cluster = ["cluster.store=rediss://cache", "cluster.ca=nowhere.pem", "retries.ticket_key_env=KEY"]

    assert (
        main(["serve", *UPSTREAM, *(part for each in cluster for part in ("--set", each))]) == ExitCode.USAGE
    )
    assert "cluster.ca: nowhere.pem cannot be read: No such file or directory" in problems(capsys)[0]


def test_an_address_of_another_machine_cannot_be_listened_on(capsys: Captured) -> None:
    """192.0.2.1 is reserved for documentation."""
    code = main(["serve", *UPSTREAM, "--host", "192.0.2.1", "--insecure", "--port", "0", "--admin-port", "0"])

    assert code == ExitCode.PORT_TAKEN
    assert "192.0.2.1:0 is not an address of this machine" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_one_line_and_says_whether_it_is_compiled(
    arguments: list[str], capsys: Captured
) -> None:
    assert main(arguments) == 0

    out, err = capsys.readouterr()
    build = "compiled" if hatch_build.extensions() else "interpreted"
    assert (out, err) == (f"millgate {__version__} ({build}, Python {platform.python_version()})\n", "")


def test_a_library_that_a_command_lacks_is_one_sentence_with_the_line_that_installs_it(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("millgate.demos", "millgate.sim"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)

    assert main(["demo"]) == ExitCode.FAILURE
    assert capsys.readouterr().err == (
        "millgate: `millgate demo` needs numpy, which is not installed: pip install 'millgate[sim]'\n"
    )


def test_a_module_of_ours_that_is_missing_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "millgate.cli.key", None)

    with pytest.raises(ModuleNotFoundError):
        main(["key", "new"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(
    shell: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MILLGATE_COMPLETE", f"complete_{shell}")
    for name, value in {"COMP_WORDS": "millgate serve --max", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "millgate serve --max")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setattr(sys, "argv", ["millgate"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")

    with pytest.raises(SystemExit):
        main([])

    assert "--max-inflight" in capsys.readouterr().out


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


@pytest.mark.parametrize("command", [[], ["serve"], ["key", "check"]])
def test_the_help_has_a_short_flag(command: list[str], capsys: Captured) -> None:
    assert main([*command, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out == short


def test_completion_is_of_the_command_whatever_started_it(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/millgate/__main__.py"])
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    with pytest.raises(SystemExit):
        main(["--show-completion", "bash"])
    assert "complete -o default -F _millgate_completion millgate" in capsys.readouterr().out


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
    assert capsys.readouterr().out == f"{file}: valid, 1 engine(s), 4 lane(s)\n"
    assert main(["config", "show", "--config", str(file), "--set", "listen.port=9000"]) == 0
    assert json.loads(capsys.readouterr().out)["listen"]["port"] == 9000


def checked(tmp_path: Path, text: str) -> int:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://a:1'}]\n" + text, encoding="utf-8")
    return main(["check", str(file)])


def test_check_says_which_provider_would_be_asked_without_a_key(tmp_path: Path, capsys: Captured) -> None:
    """The file was valid, and each request got the provider's 401."""
    key = "0" * 64
    engine = "engines: [{name: hosted, url: 'https://a.example', account: {rpm: 60}%s}]\n"
    tenants = f"tenants: [{{name: a, keys: ['{key}']}}]\n"
    file = tmp_path / "gate.yaml"
    for text, is_told in (
        (engine % "" + tenants, True),
        (engine % "", False),
        (engine.replace("account", "prior") % "" + tenants, False),
    ):
        file.write_text(text.replace("prior: {rpm: 60}", "max_inflight: 4"), encoding="utf-8")
        assert main(["check", str(file)]) == 0
        told = capsys.readouterr().err
        assert ("engines[0].account: is asked without a key" in told) is is_told, told


def test_check_opens_the_log_that_serve_would_open_and_leaves_no_file(
    tmp_path: Path, capsys: Captured
) -> None:
    log = tmp_path / "attempts.log"
    assert checked(tmp_path, f"records: {{log_attempts: {log}}}\n") == 0
    assert not log.exists()
    log.write_text("a line\n", encoding="utf-8")
    assert checked(tmp_path, f"records: {{log_attempts: {log}}}\n") == 0
    assert log.read_text(encoding="utf-8") == "a line\n"

    assert checked(tmp_path, f"records: {{log_attempts: {tmp_path}/no/attempts.log}}\n") == ExitCode.USAGE
    assert "records.log_attempts: " in capsys.readouterr().err


def test_check_binds_the_addresses_that_serve_would_bind_and_lets_a_running_gate_be(
    tmp_path: Path, capsys: Captured
) -> None:
    """192.0.2.1 is reserved for documentation."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert checked(tmp_path, f"listen: {{port: {holder.getsockname()[1]}}}\n") == 0
        assert checked(tmp_path, "listen: {host: 192.0.2.1, insecure: true}\n") == ExitCode.PORT_TAKEN
    assert "192.0.2.1:8080 is not an address of this machine" in capsys.readouterr().err


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
