"""Rows 60-68: signals, reloads, logs that nobody takes, addresses that are taken, a loop that stands still."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.process import PATIENCE_S, START_WITHIN_S, GateProcess, full_pipe, until
from faults.starter import Starter
from faults.talk import Talk, chat

CONFIG = """engines:
  - url: URL
    name: engine
lanes:
  - name: interactive
    ttft_slo: 1h
limits:
  url: 300
"""


class Slow:
    """Streams a first event, and the rest when told."""

    def __init__(self) -> None:
        self.go_on = False

    async def __call__(self, line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(answers.event("a")))
        while not self.go_on:
            await line.wait(0.01)
        await line.send(answers.chunks(answers.event(finish="stop"), b"data: [DONE]\n\n") + b"0\r\n\r\n")


def streaming(gate: GateProcess, count: int = 1) -> list[Talk]:
    talks = []
    for _ in range(count):
        talk = gate.connect()
        talk.ask(chat(stream=True))
        assert talk.head().status == 200
        talks.append(talk)
    return talks


def records(gate: GateProcess) -> list[dict[str, Any]]:
    """Return the log, which is JSON where stderr is no terminal."""
    return [json.loads(line) for line in gate.errors().splitlines()]


def said(gate: GateProcess, event: str) -> list[dict[str, Any]]:
    return [record for record in records(gate) if event in record["event"]]


def metric(gate: GateProcess, name: str) -> float:
    page = gate.ask("/metrics")[1].decode()
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


@contextmanager
def a_gate(upstream: FakeUpstream, directory: Path, **more: Any) -> Iterator[GateProcess]:
    """Run a gateway that may end otherwise than with 0."""
    gate = GateProcess(upstream.url, errors=directory / "own.txt", **more)
    gate.begin()
    try:
        yield gate
    finally:
        gate.stop()


# ---- rows 60 and 61


def test_row_60_a_drain_refuses_what_waits_and_what_comes_and_lets_streams_end(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    slow = upstream.script = Slow()
    with a_gate(upstream, tmp_path, max_inflight=20, settings={"limits.drain_grace": "20s"}) as gate:
        talks = streaming(gate, 20)
        queued, idle, late = gate.connect(), gate.connect(), gate.connect()
        queued.ask(chat())
        late.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        until(lambda: gate.state()["lanes"][0]["queued"] == 1)
        gate.process.send_signal(signal.SIGTERM)
        refused = queued.answer()
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert gate.ask("/readyz")[0] == 503
        assert idle.rest() == b""
        body = chat()
        late.send(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert late.answer().status == 503
        newcomer = gate.connect()
        newcomer.ask(chat())
        assert newcomer.answer().status == 503
        until(lambda: said(gate, "draining"))
        assert said(gate, "draining")[0]["under_way"] >= 20
        slow.go_on = True
        for talk in talks:
            assert b"[DONE]" in talk.rest()
        assert gate.process.wait(PATIENCE_S) == 0
        assert said(gate, "drained")[0]["under_way"] == 0
        assert "uncaught failure" not in gate.errors()


def test_row_60_what_runs_beyond_the_grace_is_told_and_cut(upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.script = Slow()
    with a_gate(upstream, tmp_path, settings={"limits.drain_grace": "300ms"}) as gate:
        (talk,) = streaming(gate)
        gate.process.send_signal(signal.SIGTERM)
        rest = talk.rest()
        assert b'"error"' in rest
        assert b"[DONE]" not in rest
        assert b"the gateway is shutting down" in rest
        assert not rest.endswith(b"0\r\n\r\n")
        assert gate.process.wait(PATIENCE_S) == 0
        assert said(gate, "draining")[0]["under_way"] == 1
        assert (said(gate, "drained")[0]["under_way"], said(gate, "drained")[0]["cut"]) == (0, 1)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_row_61_a_second_signal_ends_at_once_and_says_so(
    upstream: FakeUpstream, tmp_path: Path, second: signal.Signals
) -> None:
    upstream.script = Slow()
    attempts = tmp_path / "attempts.jsonl"
    settings = {"limits.drain_grace": "1h", "records.log_attempts": str(attempts)}
    with a_gate(upstream, tmp_path, settings=settings) as gate:
        (talk,) = streaming(gate)
        gate.process.send_signal(signal.SIGTERM)
        until(lambda: said(gate, "draining"))
        gate.process.send_signal(second)
        assert gate.process.wait(PATIENCE_S) == 130
        rest = talk.rest()
        assert b"the gateway is shutting down" in rest
        assert b"[DONE]" not in rest
        assert said(gate, "second signal")[0]["under_way"] == 1
        assert json.loads(attempts.read_bytes())["outcome"] == "yielded", "its client had not left"


# ---- rows 62 and 63

WRONG = {
    "no YAML": ("engines: [", ":1:11: is not YAML"),
    "an unknown key": (CONFIG + "  bodi: 1MB\n", ":9:3: limits.bodi: is not a setting; did you mean `body`?"),
    "a missing secret": (
        CONFIG.replace("    name: engine\n", "    name: engine\n    api_key_env: NOT_THERE\n"),
        ":4:5: engines[0].api_key_env: the environment variable NOT_THERE is not set",
    ),
    "a missing certificate": (
        CONFIG + "listen:\n  tls: {cert: /nowhere.pem, key: /nowhere.key}\n",
        ":10:9: listen.tls.cert: /nowhere.pem cannot be read",
    ),
    "no file": (None, "cannot be read: No such file"),
}


@pytest.fixture
def configured(start: Starter, upstream: FakeUpstream) -> tuple[GateProcess, Path]:
    gate = start(config=CONFIG.replace("URL", upstream.url), settings={"limits.write_stall": "9s"})
    return gate, gate._errors.with_suffix(".yaml")


def ask_long_url(gate: GateProcess) -> int:
    talk = gate.connect()
    talk.ask(chat(stream=True), path="/v1/chat/completions?" + "x" * 400)
    status = talk.answer().status
    talk.close()
    return status


def test_row_62_a_wrong_file_keeps_the_old_configuration_and_says_where(
    configured: tuple[GateProcess, Path], upstream: FakeUpstream
) -> None:
    gate, file = configured
    slow = upstream.script = Slow()
    (talk,) = streaming(gate)
    for count, (text, complaint) in enumerate(WRONG.values(), 1):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text.replace("URL", upstream.url), encoding="utf-8")
        gate.process.send_signal(signal.SIGHUP)
        until(lambda: metric(gate, "millgate_config_reloads_failed_total") == count)  # noqa: B023 - called at once
        until(lambda: len(said(gate, "refused")) == count)  # noqa: B023 - called at once
        assert complaint in "\n".join(said(gate, "refused")[-1]["problems"])
        assert metric(gate, "millgate_config_reload_success") == 0
        assert ask_long_url(gate) == 414
    file.write_text(CONFIG.replace("URL", upstream.url).replace("url: 300", "url: 8KiB"), encoding="utf-8")
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: metric(gate, "millgate_config_reload_success") == 1)
    slow.go_on = True
    assert b"[DONE]" in b"".join(iter(talk.chunk, b""))
    assert ask_long_url(gate) == 200


def test_row_62_what_needs_a_restart_is_named(
    configured: tuple[GateProcess, Path], upstream: FakeUpstream
) -> None:
    gate, file = configured
    file.write_text(CONFIG.replace("URL", upstream.url) + "admin: {hosts: [gate.test]}\n", encoding="utf-8")
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: said(gate, "reloaded"))
    assert said(gate, "reloaded")[-1]["needs_restart"] == ["admin"]


def test_row_63_of_a_storm_of_signals_the_last_word_wins_and_no_request_is_lost(
    configured: tuple[GateProcess, Path], upstream: FakeUpstream
) -> None:
    gate, file = configured
    talk = gate.connect()
    for number in range(60):
        limit = 300 + number * 20
        fresh = file.with_suffix(".new")
        fresh.write_text(
            CONFIG.replace("URL", upstream.url).replace("url: 300", f"url: {limit}"), encoding="utf-8"
        )
        fresh.replace(file)
        gate.process.send_signal(signal.SIGHUP)
        talk.ask(chat(stream=number % 2 == 0))
        answer = talk.answer()
        assert (answer.status, answer.whole) == (200, True)
    until(lambda: ask_long_url(gate) == 200)
    assert metric(gate, "millgate_config_reloads_failed_total") == 0
    assert gate.ended() == {"good": gate.state()["lanes"][0]["arrived"]}


# ---- row 64


def serves(*arguments: str, stderr: int, upstream: FakeUpstream) -> "subprocess.Popen[bytes]":
    command = ["serve", "--port", "0", "--admin-port", "0", "--json", "--upstream", upstream.url, *arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "millgate", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


@pytest.mark.parametrize("kind", ["full disk", "closed pipe", "reader that stopped", "full pipe"])
def test_row_64_logs_that_nobody_takes_cost_nothing_but_lines(upstream: FakeUpstream, kind: str) -> None:
    read, stderr = os.pipe()
    if kind == "full disk":
        os.close(stderr)
        stderr = os.open("/dev/full", os.O_WRONLY)
    if kind == "closed pipe":
        os.close(read)
    if kind == "full pipe":  # from the start: the banner, too, finds no room
        os.close(read)
        os.close(stderr)
        read, stderr = full_pipe()
    process = serves(stderr=stderr, upstream=upstream)
    try:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        for _ in range(20):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.005)
        talk = Talk(port)
        talk.ask(chat())
        assert talk.answer().status == 200
        talk.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(stderr)
        if kind != "closed pipe":
            os.close(read)


# ---- rows 66 and 67


def test_row_66_a_loop_that_stands_still_is_measured_and_reported(gate: GateProcess) -> None:
    before = len(said(gate, "stood still"))
    gate.process.send_signal(signal.SIGSTOP)
    time.sleep(0.8)
    gate.process.send_signal(signal.SIGCONT)
    until(lambda: len(said(gate, "stood still")) > before)
    line = said(gate, "stood still")[-1]
    assert line["seconds"] >= 0.5
    assert line["cpu_s"] < 0.5 * line["seconds"], "it was stopped, and not busy"
    assert metric(gate, "millgate_loop_lag_worst_seconds") >= 0.5


def test_row_66_who_spoke_or_waited_while_the_gate_stood_still_is_not_late(
    start: Starter, upstream: FakeUpstream
) -> None:
    """For longer than an engine may be silent, and than a client may take for its head: neither of them was to blame."""

    async def go_on(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM))
        for _ in range(40):
            await line.send(answers.chunks(answers.event("a")))
            await line.wait(0.05)
        await line.send(answers.chunks(answers.event(finish="stop"), answers.DONE) + answers.LAST_CHUNK)

    # Times that only the standstill reaches, also on a machine that does other things.
    gate = start(upstream.url, settings={"limits.header_deadline": "3s", "limits.upstream_idle": "3s"})
    upstream.script = go_on
    (talk,) = streaming(gate)
    begun = gate.connect()
    begun.send(b"GET /v1/models HTTP/1.1\r\n")
    time.sleep(0.2)
    gate.process.send_signal(signal.SIGSTOP)
    time.sleep(3.3)
    begun.send(b"Host: gate\r\n\r\n")
    gate.process.send_signal(signal.SIGCONT)
    assert begun.head().status != 408
    assert answers.DONE in b"".join(iter(talk.chunk, b""))
    assert gate.ended() == {"good": 1}


def test_the_log_says_how_long_an_answer_was_silent_that_was_given_up(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    async def fall_silent(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.JSON) + answers.chunks(b"{"))
        await line.stall()

    upstream.script = fall_silent
    before, talk = len(said(gate, "answer given up")), gate.connect()
    talk.ask(chat())
    assert talk.answer().status == 504
    until(lambda: len(said(gate, "answer given up")) > before)
    line = said(gate, "answer given up")[-1]
    assert (line["setting"], line["bound_s"]) == ("limits.upstream_idle", 1.0)
    assert line["why"] == "silent for 1 s in the middle of an answer"


def test_row_67_a_second_instance_says_that_the_port_is_taken(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    second = serves("--port", str(gate.port), stderr=subprocess.PIPE, upstream=upstream)
    _out, errors = second.communicate(timeout=START_WITHIN_S)
    assert second.returncode == 3
    assert f"127.0.0.1:{gate.port} is taken by another program" in errors.decode()


def test_a_gate_that_cannot_start_ends_although_its_log_takes_nothing(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """It stood there for ever, and no service manager started it again."""
    read, stderr = full_pipe()
    try:
        second = serves("--port", str(gate.port), stderr=stderr, upstream=upstream)
        second.communicate(timeout=START_WITHIN_S)
        assert second.returncode == 3
    finally:
        os.close(read)
        os.close(stderr)


def test_sigusr2_does_nothing_to_a_gate_without_workers_but_a_line(gate: GateProcess) -> None:
    """It ended the gate with all that it served; with workers it is the signal that loses no request."""
    (talk,) = streaming(gate)
    gate.process.send_signal(signal.SIGUSR2)
    until(lambda: said(gate, "no workers to replace"))
    assert talk.chunk()
    assert gate.alive


# ---- the service manager


def test_a_service_manager_is_told_of_every_turn(upstream: FakeUpstream, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)

        def told(wanted: str) -> list[str]:
            while True:
                lines = manager.recv(4096).decode().splitlines()
                if wanted in lines:
                    return lines

        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with a_gate(upstream, tmp_path, environ=environ) as gate:
            told("READY=1")
            told("WATCHDOG=1")
            before_us = time.monotonic_ns() // 1000
            gate.process.send_signal(signal.SIGHUP)
            stamp = next(line for line in told("RELOADING=1") if line.startswith("MONOTONIC_USEC="))
            assert int(stamp.partition("=")[2]) >= before_us
            told("READY=1")
            gate.process.send_signal(signal.SIGTERM)
            assert told("STOPPING=1")[1] == "STATUS=draining, 0 under way"
            assert gate.process.wait(PATIENCE_S) == 0


def test_a_host_without_a_file_left_starves_no_watchdog(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Each word to systemd opened a socket: where there was none to have, it killed a gate that served, with all its streams."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with a_gate(upstream, tmp_path, environ=environ) as gate:
            soft, hard = resource.prlimit(gate.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(gate.process.pid, resource.RLIMIT_NOFILE, (3, hard))
            for _ in range(10):  # more than can have been sent before
                while manager.recv(4096) != b"WATCHDOG=1":
                    pass
            resource.prlimit(gate.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
            gate.process.send_signal(signal.SIGTERM)
            assert gate.process.wait(PATIENCE_S) == 0
