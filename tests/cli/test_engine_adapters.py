"""Adapters that no configuration names: a gate learns them from its engines, and follows where they come and go."""

import json
import signal
from pathlib import Path
from typing import Any

from cli.test_engine_sizes import _lines as lines, _until as until, await_start
from cli.test_processes import Command, ask, await_silence, commands, start
from ports import free_port

__all__ = ["commands"]


def an_engine(commands: list[Command], tmp_path: Path, port: int, *adapters: str) -> Command:
    named = [word for name in adapters for word in ("--lora-module", name)]
    words = ("engine", "--port", str(port), "--model-name", "base", "--max-loras", "2", "--lora-load", "0.01")
    command = start(commands, tmp_path, *words, *named, "--time-scale", "10")
    await_start(command)
    return command


def a_gate(commands: list[Command], tmp_path: Path, ports: list[int]) -> tuple[Command, dict[str, Any]]:
    upstreams = [word for port in ports for word in ("--upstream", f"http://127.0.0.1:{port}")]
    gate = start(commands, tmp_path, "serve", *upstreams, "--port", "0", "--admin-port", "0", "--json")
    return gate, gate.ready()


def asks(url: str, model: str) -> int:
    body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    return ask(url, "POST", "/v1/chat/completions", json.dumps(body).encode())[0]


def received(port: int) -> int:
    stats: dict[str, int] = json.loads(ask(f"http://127.0.0.1:{port}", "GET", "/stats")[1])
    return stats["received"]


def test_requests_for_an_adapter_go_to_the_engine_that_lists_it_wherever_it_is_now(
    commands: list[Command], tmp_path: Path
) -> None:
    first, second = ports = [free_port(), free_port()]
    an_engine(commands, tmp_path, first, "tea")
    has_law = an_engine(commands, tmp_path, second, "law")
    gate, ready = a_gate(commands, tmp_path, ports)
    until(lambda: len(lines(gate, "engine adapters")) == 2, "both have told")
    assert sorted(line["adapters"] for line in lines(gate, "engine adapters")) == [["law"], ["tea"]]

    assert [asks(ready["url"], "law") for _ in range(6)] == [200] * 6
    assert (received(first), received(second)) == (0, 6)

    has_law.end(signal.SIGTERM)
    await_silence(f"http://127.0.0.1:{second}")
    an_engine(commands, tmp_path, second, "tax")
    until(lambda: len(lines(gate, "engine adapters")) == 3, "the second has told again")
    said = lines(gate, "engine adapters")[-1]
    assert (said["adapters"], said["count"]) == (["tax"], 1)

    assert [asks(ready["url"], "tax") for _ in range(6)] == [200] * 6
    assert (received(first), received(second)) == (0, 6)
    assert gate.end(signal.SIGTERM) == 0
