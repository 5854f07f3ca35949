"""On a Mac one process serves; on Windows the library, the client and the reading commands work, and the others say one sentence."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

WITHIN_S = 60.0  # generous: the machine may be busy
SYSTEM = [sys.executable, str(Path(__file__).with_name("foreign_system.py"))]
CHAT = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
LIBRARY = """
import asyncio
import millgate, millgate.client, millgate.client.line, millgate.library.asgi

gate = millgate.Gate(max_inflight=1, max_queue=0)

async def outcome():
    try:
        async with gate.slot():
            await asyncio.sleep(0.01)
            return "served"
    except millgate.Yielded as refused:
        return refused.reason

async def main():
    print(await asyncio.gather(outcome(), outcome()))

asyncio.run(main())
"""


def said(system: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a program on this system."""
    done = subprocess.run(
        [*SYSTEM, system, *arguments], capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def serving(system: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Yield what the first line of a server says; it ends with 0 at a signal."""
    with subprocess.Popen(
        [*SYSTEM, system, "millgate", *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("{"), line + process.stderr.read()
            yield json.loads(line)
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=WITHIN_S)[1]
            assert (process.returncode, "Traceback" in errors) == (0, False), errors
        finally:
            process.kill()


def answered(url: str, body: dict[str, object], spaces: int = 0) -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=WITHIN_S)
    try:
        sent = json.dumps(body) + " " * spaces
        connection.request("POST", "/v1/chat/completions", sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_on_a_mac_one_process_serves_answers_streams_and_long_bodies() -> None:
    with serving("darwin", "run", "--port", "0", "--admin-port", "0") as ready:
        status, whole = answered(ready["url"], CHAT)
        streamed = answered(ready["url"], {**CHAT, "stream": True})

        assert (status, json.loads(whole)["object"]) == (200, "chat.completion")
        assert streamed[0] == 200
        assert streamed[1].endswith(b"data: [DONE]\n\n")
        status, refusal = answered(ready["url"], CHAT, spaces=2_000_000)
        assert (status, b"request_too_large" in refusal) == (413, True), "it is read, in a process of its own"


def test_on_a_mac_the_embedded_engine_serves() -> None:
    with serving("darwin", "engine", "--port", "0", "--time-scale", "10") as ready:
        assert answered(f"http://127.0.0.1:{ready['port']}", CHAT)[0] == 200


@pytest.mark.parametrize("command", ["check", "serve"])
def test_on_a_mac_several_workers_are_refused_in_one_sentence(tmp_path: Path, command: str) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(
        "engines: [{url: 'http://127.0.0.1:9'}]\nworkers: 2\nlisten: {port: 0}\nadmin: {port: 0}\n"
    )

    code, _out, errors = said(
        "darwin", "millgate", command, *(["--config"] * (command == "serve")), str(file)
    )

    assert code == 2
    assert "workers: 2 cannot share limits, use 1: this is not Linux" in errors
    assert errors.count("\n") == 1


def test_a_kernel_without_a_notice_of_the_end_of_processes_is_named(tmp_path: Path) -> None:
    """Linux before 5.3 and some sandboxes: workers could not join, and the gate would never have been ready."""
    code = (
        "import errno, os, sys\n"
        "def pidfd_open(number, flags=0): raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))\n"
        "os.pidfd_open = pidfd_open\n"
        "from millgate.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    asked = [
        "serve",
        "--workers",
        "2",
        "--upstream",
        "http://127.0.0.1:9",
        "--port",
        "0",
        "--admin-port",
        "0",
    ]

    done = subprocess.run(
        [sys.executable, "-c", code, *asked], capture_output=True, text=True, check=False, timeout=WITHIN_S
    )

    assert done.returncode == 2
    assert "pidfd_open(2), in Linux since 5.3: Function not implemented" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "run", "engine", "extproc", "check", "demo"])
def test_on_windows_what_cannot_run_says_so_in_one_sentence(command: str) -> None:
    code, out, errors = said("win32", "millgate", command)

    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert f"`millgate {command}` does not run on Windows: start it in WSL" in errors


@pytest.mark.parametrize(
    "command",
    ["version", "config reference", "config schema", "key new", "sim --help", "send --help", "size --help"],
)
def test_on_windows_the_other_commands_work(command: str) -> None:
    code, out, errors = said("win32", "millgate", *command.split())

    assert (code, "Traceback" in errors) == (0, False), errors
    assert out


def test_on_windows_a_gate_that_is_not_there_is_told() -> None:
    code, _out, errors = said("win32", "millgate", "top", "--admin", "http://127.0.0.1:9")

    assert (code, errors.count("\n")) == (1, 1)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_library_and_the_client_work_on_other_systems(system: str, tmp_path: Path) -> None:
    program = tmp_path / "jobs.py"
    program.write_text(LIBRARY, encoding="utf-8")

    code, out, errors = said(system, str(program))

    assert (code, errors) == (0, "")
    assert out == "['served', <Reason.SATURATED: 'saturated'>]\n"
