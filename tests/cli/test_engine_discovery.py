"""Engines come and go while a gate runs: by the addresses of a name, and by a file. Every part is a process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli.test_engine_sizes import await_start
from cli.test_processes import CHAT, Command, ask, commands, start
from ports import free_port

__all__ = ["commands"]

# A look takes seconds, and the machine may be busy.
_WITHIN_S = 60.0
_NAMED = Path(__file__).with_name("gate_with_names.py")
_LONG = json.dumps(
    {"model": "any", "stream": True, "max_tokens": 600, "messages": [{"role": "user", "content": "Hello"}]}
).encode()


class NamedGate(Command):
    """A gate whose names have the addresses that stand in a file."""

    def __init__(self, names: Path, arguments: list[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(_NAMED), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "NO_COLOR": "1", "NAMES": str(names)},
            )


def until(holds: Callable[[], Any], what: str) -> None:
    by = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < by, what
        time.sleep(0.05)


@pytest.fixture
def engines(commands: list[Command], tmp_path: Path) -> int:
    """Run an engine at 127.0.0.2 and one at 127.0.0.3, and return their port."""
    port = free_port("127.0.0.2", "127.0.0.3")
    running = [
        start(commands, tmp_path, "engine", "--host", host, "--port", str(port))
        for host in ("127.0.0.2", "127.0.0.3")
    ]
    for engine in running:
        await_start(engine)
    return port


def standing(admin: str) -> dict[str, bool]:
    """Return which engines the gate has, and whether they are up."""
    state = json.loads(ask(admin, "GET", "/api/state")[1])
    return {engine["name"]: engine["up"] for engine in state["engines"]}


def events(gate: Command, event: str) -> list[dict[str, Any]]:
    return [record for record in gate.records() if record["event"] == event]


def chat(url: str) -> int:
    return ask(url, "POST", "/v1/chat/completions", CHAT)[0]


def prompts_read(port: int, host: str) -> float:
    """Return how many prompt tokens an engine has read, as it says itself."""
    page = ask(f"http://{host}:{port}", "GET", "/metrics")[1].decode()
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total{")]
    return float(line.split()[-1])


def test_engines_follow_the_addresses_of_a_name(
    commands: list[Command], engines: int, tmp_path: Path
) -> None:
    names = tmp_path / "names"
    names.write_text("", encoding="utf-8")
    upstream = f"dns://vllm.test:{engines}"
    options = ["--set", "discovery.every=200ms", "--port", "0", "--admin-port", "0", "--json"]
    gate = NamedGate(names, ["serve", "--upstream", upstream, *options], tmp_path / "gate.txt")
    commands.append(gate)
    ready = gate.ready()
    url, admin = ready["url"], ready["admin_url"]
    first, second = f"127.0.0.2:{engines}", f"127.0.0.3:{engines}"

    # A name without an address: the gate runs and takes no work.
    assert standing(admin) == {f"vllm.test:{engines}": False}
    assert (ask(admin, "GET", "/readyz")[0], chat(url)) == (503, 503)

    names.write_text("vllm.test 127.0.0.2\n", encoding="utf-8")
    until(lambda: standing(admin) == {first: True}, "the first engine is found")
    assert chat(url) == 200

    # Its address goes while it answers: the answer is whole, and nothing new is sent there.
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("POST", "/v1/chat/completions", _LONG, {"content-type": "application/json"})
    answer = connection.getresponse()
    head = answer.read(200)
    names.write_text("vllm.test 127.0.0.3\n", encoding="utf-8")
    until(
        lambda: any(second in line["came"] for line in events(gate, "engines changed")), "the second is found"
    )
    before = prompts_read(engines, "127.0.0.2")
    assert before > 0
    assert [chat(url) for _ in range(5)] == [200] * 5
    assert standing(admin).keys() == {first, second}
    assert (head + answer.read()).endswith(b"data: [DONE]\n\n")
    connection.close()
    until(lambda: standing(admin) == {second: True}, "the first engine is gone with its last answer")
    assert prompts_read(engines, "127.0.0.2") == before

    # A name server that fails changes nothing, and is told once.
    names.write_text("", encoding="utf-8")
    until(lambda: events(gate, "name not found, its engines stay as they are"), "the failure is told")
    time.sleep(1.0)
    assert (standing(admin), chat(url)) == ({second: True}, 200)
    # Once for the start, once for now.
    assert len(events(gate, "name not found, its engines stay as they are")) == 2

    # An address where nothing answers gets no request before its health page does.
    names.write_text("vllm.test 127.0.0.3 127.0.0.4\n", encoding="utf-8")
    until(lambda: len(standing(admin)) == 2, "the third address is found")
    assert standing(admin) == {second: True, f"127.0.0.4:{engines}": False}
    assert [chat(url) for _ in range(5)] == [200] * 5
    late = start(commands, tmp_path, "engine", "--host", "127.0.0.4", "--port", str(engines))
    until(lambda: all(standing(admin).values()), "the third engine has started")
    assert late.process.poll() is None
    assert "unexpected failure" not in gate.errors()
    assert gate.end(signal.SIGTERM) == 0


def test_engines_follow_a_file(commands: list[Command], engines: int, tmp_path: Path) -> None:
    file = tmp_path / "engines.yaml"
    file.write_text(f"- {{name: a, url: 'http://127.0.0.2:{engines}'}}\n", encoding="utf-8")
    options = ["--set", f"discovery.file={file}", "--port", "0", "--admin-port", "0", "--json"]
    gate = start(commands, tmp_path, "serve", *options)
    ready = gate.ready()
    url, admin = ready["url"], ready["admin_url"]
    assert standing(admin) == {"a": True}

    both = [
        {"name": name, "url": f"http://127.0.0.{number}:{engines}"} for name, number in (("a", 2), ("b", 3))
    ]
    file.write_text(json.dumps(both), encoding="utf-8")
    until(lambda: standing(admin) == {"a": True, "b": True}, "the second engine is found")

    # What cannot be used changes nothing, and is told once.
    file.write_text("- {name: a, url: nowhere}\n", encoding="utf-8")
    until(lambda: events(gate, "configuration refused, the old one stays in force"), "the file is refused")
    time.sleep(2.5)
    (refused,) = events(gate, "configuration refused, the old one stays in force")
    (problem,) = refused["problems"]
    assert problem == f"{file}:1:13: engines[0].url: 'nowhere' is not an address: write http://host:port"
    assert (standing(admin), chat(url)) == ({"a": True, "b": True}, 200)
    page = ask(admin, "GET", "/metrics")[1].decode()
    assert "millgate_config_reload_success 0.0" in page

    # As Kubernetes and careful people change a file: a new one in its place.
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps(both[1:]), encoding="utf-8")
    fresh.replace(file)
    until(lambda: standing(admin) == {"b": True}, "the first engine has gone")
    assert chat(url) == 200
    assert "millgate_config_reload_success 1.0" in ask(admin, "GET", "/metrics")[1].decode()
    until(lambda: len(events(gate, "engines changed")) == 2, "the log has told it")
    assert [(line["came"], line["gone"]) for line in events(gate, "engines changed")] == [
        (["b"], []),
        ([], ["a"]),
    ]
    assert gate.end(signal.SIGTERM) == 0


def test_a_config_map_is_exchanged_under_two_workers_and_nothing_is_said_to_need_a_restart(
    commands: list[Command], engines: int, tmp_path: Path
) -> None:
    """Kubernetes swaps the link `..data`. Workers warned that `retries.ticket_key_env` needs a restart, which no file names."""
    for version, hosts in (("..1", "2"), ("..2", "23")):
        (tmp_path / version).mkdir()
        listed = [{"name": f"e{host}", "url": f"http://127.0.0.{host}:{engines}"} for host in hosts]
        (tmp_path / version / "engines.yaml").write_text(json.dumps(listed), encoding="utf-8")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "engines.yaml").symlink_to("..data/engines.yaml")
    file = tmp_path / "engines.yaml"
    options = ["--set", f"discovery.file={file}", "--port", "0", "--admin-port", "0", "--json"]
    gate = start(commands, tmp_path, "serve", "--workers", "2", *options)
    ready = gate.ready()
    admin = ready["admin_url"]
    until(lambda: standing(admin) == {"e2": True}, "the first engine is up")

    (tmp_path / "..fresh").symlink_to("..2")
    (tmp_path / "..fresh").rename(tmp_path / "..data")
    until(lambda: standing(admin) == {"e2": True, "e3": True}, "the second engine is found")
    until(lambda: len(events(gate, "configuration reloaded")) == 2, "both workers have read it")

    assert events(gate, "configuration reloaded, but some of it needs a restart") == []
    assert chat(ready["url"]) == 200
    assert gate.end(signal.SIGTERM) == 0
