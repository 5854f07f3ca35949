"""A gate whose engine comes later, or comes back smaller: its limits follow, and one line says so."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.test_processes import START_WITHIN_S, Command, ask, await_silence, commands, start
from ports import free_port

__all__ = ["commands"]

# The gate looks once a second and believes two looks; the machine may be busy.
_FOLLOWS_WITHIN_S = 60.0


def _until(holds: Callable[[], bool], what: str) -> None:
    by = time.monotonic() + _FOLLOWS_WITHIN_S
    while not holds():
        assert time.monotonic() < by, what
        time.sleep(0.05)


def await_start(engine: Command) -> None:
    """Return once this `millgate engine` has said where it listens."""
    give_up_at = time.monotonic() + START_WITHIN_S
    while '"port"' not in engine.errors():
        assert engine.process.poll() is None, engine.errors()
        assert time.monotonic() < give_up_at, engine.errors()
        time.sleep(0.05)


def _engine(commands: list[Command], tmp_path: Path, port: int, profile: str) -> Command:
    command = start(
        commands, tmp_path, "engine", "--port", str(port), "--profile", profile, "--time-scale", "10"
    )
    await_start(command)
    return command


def _limits(admin_url: str) -> tuple[int, int | None]:
    state: dict[str, Any] = json.loads(ask(admin_url, "GET", "/api/state")[1])
    (engine,) = state["engines"]
    return engine["limit"], engine["kv_limit"]


def _lines(gate: Command, event: str) -> list[dict[str, Any]]:
    """Return what the gate has written of this kind."""
    records = [json.loads(line) for line in gate.errors().splitlines()]
    return [record for record in records if record["event"] == event]


def test_limits_follow_an_engine_that_starts_later_and_one_that_comes_back_smaller(
    commands: list[Command], tmp_path: Path
) -> None:
    port = free_port()
    gate = start(
        commands,
        tmp_path,
        "serve",
        "--upstream",
        f"http://127.0.0.1:{port}",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--json",
    )
    ready = gate.ready()
    admin = ready["admin_url"]
    assert _limits(admin) == (256, None)
    assert any("no metrics page yet" in limit["why"] for limit in ready["limits"])

    large = _engine(commands, tmp_path, port, "llama3-8b_h100_tp1")
    _until(lambda: _limits(admin) == (210, 378_590), f"210 streams, not {_limits(admin)}")
    large.end(signal.SIGTERM)
    await_silence(f"http://127.0.0.1:{port}")
    assert _limits(admin) == (210, 378_590), "an engine that is down keeps its limits"

    _engine(commands, tmp_path, port, "demo")
    _until(lambda: _limits(admin) == (16, 29_491), f"16 streams, not {_limits(admin)}")
    # The log's own thread writes: a limit is in force before its line is on the disk.
    _until(lambda: len(_lines(gate, "engine limits")) == 2, "a line for each")
    said = _lines(gate, "engine limits")
    assert [(line["max_inflight_before"], line["max_inflight"]) for line in said] == [(256, 210), (210, 16)]
    assert [line["kv_tokens"] for line in said] == [378_590, 29_491]
    assert gate.end(signal.SIGTERM) == 0


def test_limits_that_were_given_stay(commands: list[Command], tmp_path: Path) -> None:
    port = free_port()
    _engine(commands, tmp_path, port, "demo")
    given = ("--max-inflight", "7", "--set", "engines.0.kv_tokens=9k")
    gate = start(
        commands,
        tmp_path,
        "serve",
        "--upstream",
        f"http://127.0.0.1:{port}",
        *given,
        "--port",
        "0",
        "--admin-port",
        "0",
        "--json",
    )
    admin = gate.ready()["admin_url"]
    _until(
        lambda: json.loads(ask(admin, "GET", "/api/state")[1])["engines"][0]["seen_running"] is not None,
        "a look",
    )
    time.sleep(2.5)  # more looks than it takes to believe a size
    assert _limits(admin) == (7, 9_000)
    assert _lines(gate, "engine limits") == []
