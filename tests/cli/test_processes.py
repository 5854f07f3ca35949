"""Real processes: they start, say where, end cleanly on a signal, and leave nobody behind."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millgate import __version__

START_WITHIN_S = 60.0  # generous: the machine may be busy
END_WITHIN_S = 40.0
CHAT = b'{"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}'


class Command:
    """One `millgate` process whose stderr goes to a file."""

    def __init__(self, arguments: list[str], errors: Path, stdout: Any = subprocess.PIPE) -> None:
        self._errors = errors
        with errors.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millgate", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "NO_COLOR": "1"},
            )

    def ready(self) -> dict[str, Any]:
        """Return the one line of JSON that it prints when it serves."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], START_WITHIN_S)[0], self.errors()
        line = self.process.stdout.readline()
        assert line, self.errors()
        record: dict[str, Any] = json.loads(line)
        return record

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(END_WITHIN_S)

    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def records(self) -> list[dict[str, Any]]:
        """Return what a server has written to stderr: every line is JSON."""
        return [json.loads(line) for line in self.errors().splitlines()]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.process.kill()
        command.process.wait()
        if command.process.stdout is not None:
            command.process.stdout.close()


def start(commands: list[Command], tmp_path: Path, *arguments: str, stdout: Any = subprocess.PIPE) -> Command:
    command = Command(list(arguments), tmp_path / f"stderr-{len(commands)}.txt", stdout)
    commands.append(command)
    return command


def engine_of(command: Command) -> int:
    """Return the number of the one process that this command has started."""
    number = command.process.pid
    return int(Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii"))


def ask(url: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=2).close()
    except OSError:
        return False
    return True


def await_silence(url: str) -> None:
    """Return once nothing listens there any more."""
    give_up_at = time.monotonic() + END_WITHIN_S
    while listens(url):
        assert time.monotonic() < give_up_at, f"{url} is still served"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_serves_through_its_own_engine_and_a_signal_ends_both(
    commands: list[Command], tmp_path: Path, number: signal.Signals
) -> None:
    command = start(commands, tmp_path, "run", "--port", "0", "--admin-port", "0", "--json")
    ready = command.ready()

    status, answer = ask(ready["url"], "POST", "/v1/chat/completions", CHAT)
    assert (status, json.loads(answer)["object"]) == (200, "chat.completion")
    assert ask(ready["admin_url"], "GET", "/readyz")[0] == 200
    limits = {limit["name"]: limit for limit in ready["limits"]}
    assert "KV tokens" in limits["embedded max_inflight"]["why"]

    assert command.end(number) == 0
    assert not listens(ready["url"])
    await_silence(ready["engines"][0]["url"])
    banner, *rest = command.records()
    assert (banner["event"], banner["version"]) == ("serving", __version__)
    assert banner["build"] in {"compiled", "interpreted"}
    assert {name: banner[name] for name in ready} == ready
    assert [record["event"] for record in rest] == ["draining", "drained"]


def test_run_ends_with_its_own_exit_code_when_its_engine_dies(
    commands: list[Command], tmp_path: Path
) -> None:
    command = start(commands, tmp_path, "run", "--port", "0", "--admin-port", "0", "--json")
    ready = command.ready()
    engine = engine_of(command)

    os.kill(engine, signal.SIGKILL)

    assert command.process.wait(END_WITHIN_S) == 4
    assert not listens(ready["url"])
    problems = [record["problem"] for record in command.records() if record["event"] == "failed"]
    assert problems[0] == "millgate engine ended with -9:"


def test_serve_reads_its_file_and_sigterm_ends_it_with_0(commands: list[Command], tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(
        "listen: {port: 0}\nadmin: {port: 0}\n"
        "engines: [{name: gpu, url: 'http://127.0.0.1:9', max_inflight: 3, kv_tokens: 9k}]\n"
        "lanes: [{name: chat, ttft_slo: 2s, max_queue: 5}]\n",
        encoding="utf-8",
    )
    column = file.read_text(encoding="utf-8").splitlines()[2].index("kv_tokens") + 1
    command = start(commands, tmp_path, "serve", "--config", str(file), "--max-inflight", "2", "--json")
    ready = command.ready()

    state = json.loads(ask(ready["admin_url"], "GET", "/api/state")[1])
    assert [(engine["name"], engine["limit"], engine["kv_limit"]) for engine in state["engines"]] == [
        ("gpu", 2, 9000)
    ]
    assert [lane["name"] for lane in state["lanes"]] == ["chat"]
    assert {"name": "gpu max_inflight", "value": "2", "why": "--max-inflight"} in ready["limits"]
    assert {"name": "gpu kv_tokens", "value": "9,000", "why": f"{file}:3:{column}"} in ready["limits"]
    assert command.end(signal.SIGTERM) == 0
    assert "uncaught failure" not in command.errors()


def test_a_second_signal_cuts_a_running_stream_short(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "run", "--port", "0", "--admin-port", "0", "--json")
    ready = command.ready()
    endless = {
        "model": "any",
        "max_tokens": 4000,
        "stream": True,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    with contextlib.closing(HTTPConnection(urlsplit(ready["url"]).netloc, timeout=10)) as connection:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(endless), {"content-type": "application/json"}
        )
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")

        command.process.send_signal(signal.SIGTERM)
        give_up_at = time.monotonic() + START_WITHIN_S
        while ask(ready["admin_url"], "GET", "/readyz")[0] != 503:
            assert time.monotonic() < give_up_at

        assert command.end(signal.SIGTERM) == 130
        with pytest.raises((HTTPException, ConnectionError)):
            stream.read()
    await_silence(ready["engines"][0]["url"])
    assert "uncaught failure" not in command.errors()


@pytest.mark.parametrize("module", ["typer", "pydantic", "millgate.config.schema"])
def test_an_interrupt_while_a_command_is_imported_ends_it_without_a_traceback(module: str) -> None:
    interrupted = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['millgate', 'check', 'gate.yaml']\n"
        "from millgate.__main__ import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_gate_whose_banner_nobody_reads_serves_all_the_same() -> None:
    arguments = ["--upstream", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "millgate", "serve", *arguments], stdout=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())

        assert ask(ready["admin_url"], "GET", "/healthz")[0] == 200
    finally:
        process.terminate()
        code = process.wait(END_WITHIN_S)
        process.communicate()
    assert code == 0


def test_a_token_closes_the_admin_door_and_is_never_shown(
    commands: list[Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLGATE_ADMIN_TOKEN", "hush-hush-hush-hush")
    arguments = ["--upstream", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0", "--json"]
    command = start(commands, tmp_path, "serve", *arguments)
    ready = command.ready()

    assert ask(ready["admin_url"], "GET", "/api/state")[0] == 401
    assert ask(ready["admin_url"], "GET", "/healthz")[0] == 200
    assert command.end(signal.SIGTERM) == 0
    assert "hush-hush" not in command.errors() + json.dumps(ready)


def test_two_gates_cannot_have_one_port(commands: list[Command], tmp_path: Path) -> None:
    upstream = ["--upstream", "http://127.0.0.1:9", "--max-inflight", "1", "--set", "engines.0.kv_tokens=1k"]
    first = start(commands, tmp_path, "serve", *upstream, "--port", "0", "--admin-port", "0", "--json")
    port = urlsplit(first.ready()["url"]).port

    second = start(commands, tmp_path, "serve", *upstream, "--port", str(port), "--admin-port", "0", "--json")

    assert second.process.wait(START_WITHIN_S) == 3
    assert [record["problem"] for record in second.records()] == [
        f"127.0.0.1:{port} is taken by another program: stop it, or choose another port with --port"
    ]
    assert second.process.stdout is not None
    assert second.process.stdout.read() == b""
    assert first.end(signal.SIGTERM) == 0


def test_a_gate_that_cannot_say_that_it_is_ready_does_not_serve(
    commands: list[Command], tmp_path: Path
) -> None:
    arguments = ["--upstream", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0", "--json"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = start(commands, tmp_path, "serve", *arguments, stdout=full)

        assert command.process.wait(START_WITHIN_S) == 1
    assert command.records()[-1]["problem"] == "cannot write to stdout: No space left on device"


def test_a_closed_pipe_behind_stdout_is_one_line(commands: list[Command], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        command = start(commands, tmp_path, "version", stdout=closed)

        assert command.process.wait(START_WITHIN_S) == 1
    assert command.errors() == "millgate: cannot write to stdout: Broken pipe\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start_are_no_failure(closed: str) -> None:
    line = f'exec "$0" -m millgate serve --set engines=[] {closed}'  # speaks to stderr alone
    of_serve = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    line = f'exec "$0" -m millgate version {closed}'
    of_version = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )

    assert (of_serve.returncode, of_version.returncode) == (2, 0)
    assert "Traceback" not in of_serve.stderr + of_version.stderr


@pytest.mark.parametrize(
    "command", [["config", "reference"], ["config", "show", "--set", "engines.0.url=http://a"]]
)
def test_a_locale_without_letters_ends_no_command(command: list[str]) -> None:
    """LC_ALL=C where Python is told to heed it: the page was cut at its first sign beyond ASCII, with a word about arguments."""
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    pages = [
        subprocess.run(
            [sys.executable, "-m", "millgate", *command],
            capture_output=True,
            check=True,
            env=os.environ | more,
        ).stdout
        for more in (plain, {"PYTHONUTF8": "1"})
    ]

    assert pages[0] == pages[1]
    assert pages[0].decode("utf-8")


def test_without_docstrings_every_page_is_there() -> None:
    """With -OO, or PYTHONOPTIMIZE=2 as some images set it."""
    for page in ("reference", "metrics", "schema"):
        command = [sys.executable, "-OO", "-m", "millgate", "config", page]
        assert subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["serve", "--workers", "2", "--upstream", "http://127.0.0.1:9"]],
    ids=["run", "workers"],
)
def test_a_file_beside_which_a_gate_is_started_is_taken_for_no_library(
    tmp_path: Path, arguments: list[str]
) -> None:
    """A project has a `redis.py` or a `msgspec.py` of its own: the processes that the command starts died of it."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('this is no library')\n")
    code = "import os, sys; os.chdir(sys.argv.pop(1)); from millgate.__main__ import run; run()"
    asked = [str(tmp_path), *arguments, "--port", "0", "--admin-port", "0", "--json"]

    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _out, errors = process.communicate(timeout=START_WITHIN_S)

    assert line.startswith("{"), errors
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_a_gate_whose_streams_are_closed_from_the_start_ends_with_0(closed: str) -> None:
    """Descriptor 0 went to the loop, and libuv aborts where it closes one of the first three: a drained gate left a core dump."""
    gate = "-m millgate serve --upstream http://127.0.0.1:9 --port 0 --admin-port 0 --json"
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$0" {gate} {closed}', sys.executable], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"]
        assert Path(f"/proc/{process.pid}/fd/0").readlink() == Path(os.devnull)
        process.terminate()
        assert process.wait(END_WITHIN_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_engine_says_where_it_serves_and_ends_with_0(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "engine", "--port", "0", "--time-scale", "10")
    give_up_at = time.monotonic() + START_WITHIN_S
    while "\n" not in command.errors():
        assert time.monotonic() < give_up_at, command.errors()
        time.sleep(0.05)
    (ready,) = command.records()
    port = ready["port"]

    assert ask(f"http://127.0.0.1:{port}", "GET", "/health")[0] == 200
    assert command.end(signal.SIGINT) == 0
    assert "uncaught failure" not in command.errors()


def test_help_and_version_load_nothing_heavy() -> None:
    """What a shell completes or a script asks for must not wait for the gateway to be imported."""
    heavy = (
        "pydantic_settings",
        "uvloop",
        "starlette",
        "prometheus_client",
        "millgate.core.governor",
        "yaml",
        "openai",
    )
    code = (
        "import sys; from millgate.cli.main import main; main(['version']); main(['serve', '--help']);"
        f"print('loaded:', [name for name in {heavy} if name in sys.modules])"
    )

    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )

    assert shown.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_gateway_imports_nothing_that_only_other_commands_need(command: str) -> None:
    """What is imported stays for as long as it serves; the look is taken when it has drained and said so."""
    needless = (
        "rich",
        "yaml",
        "millgate.sim",
        "millgate.cli.top",
        "millgate.cli.line",
        "millgate.demos.overload",
    )
    code = (
        "import atexit, sys; from millgate.cli.main import run;"
        f"atexit.register(lambda: print([name for name in {needless} if name in sys.modules])); run()"
    )
    upstream = ["--upstream", "http://127.0.0.1:9"] if command == "serve" else []
    arguments = [command, *upstream, "--port", "0", "--admin-port", "0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ask(ready["admin_url"], "GET", "/metrics")[0] == 200
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=END_WITHIN_S)

    assert (process.returncode, out) == (0, "[]\n")
    assert "draining" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
def test_a_killed_run_leaves_no_engine_behind(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "run", "--port", "0", "--admin-port", "0", "--json")
    engine = command.ready()["engines"][0]["url"]
    assert listens(engine)

    command.process.kill()
    command.process.wait()

    await_silence(engine)


def test_explain_asks_the_gate_that_runs(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "run", "--port", "0", "--admin-port", "0", "--json")
    ready = command.ready()
    request = tmp_path / "request.json"
    request.write_bytes(CHAT)

    asked = subprocess.run(
        [sys.executable, "-m", "millgate", "explain", str(request), "--admin", ready["admin_url"], "--json"],
        capture_output=True,
        check=True,
        timeout=START_WITHIN_S,
    )

    answer = json.loads(asked.stdout)
    assert (answer["decision"]["kind"], answer["engine"], asked.stderr) == ("admit", "embedded", b"")
    assert command.end(signal.SIGTERM) == 0
