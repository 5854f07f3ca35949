"""Signals that come while a gate starts: each does what it does later, and none is lost."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.process import PATIENCE_S, START_WITHIN_S, until

SERVE = (sys.executable, "-m", "millgate", "serve", "--port", "0", "--admin-port", "0", "--json")
SLOW = "import time; time.sleep(60)"
"""Stands where a module of the gate stands, so that a start lasts."""


def _blocks(process: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(mask, 16) & 1 << number - 1)


@contextmanager
def _starting(*command: str, errors: Path, paths: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((paths, os.environ.get("PYTHONPATH", "")))}
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environ
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _reloads(errors: Path) -> int:
    return errors.read_text(encoding="utf-8").count('"configuration reloaded')


def test_a_reload_that_is_asked_for_while_the_gate_starts_comes_when_it_has_started(tmp_path: Path) -> None:
    """A sidecar writes the file and signals; a second later the pod is ready. The gate ended by that signal, with no word in its log."""
    errors = tmp_path / "stderr.txt"
    with _starting(*SERVE, "--upstream", "http://127.0.0.1:9", errors=errors) as process:
        until(lambda: _blocks(process.pid, signal.SIGHUP), START_WITHIN_S)
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], START_WITHIN_S)[0]
        assert json.loads(process.stdout.readline())["url"]
        until(lambda: _reloads(errors) == 1)
        assert not _blocks(process.pid, signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        until(lambda: _reloads(errors) == 2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_a_reload_that_is_asked_for_while_workers_start_comes_to_each_of_them(tmp_path: Path) -> None:
    """They had read the file before it changed, and would have served by it until the next reload."""
    errors = tmp_path / "stderr.txt"
    serve = (*SERVE, "--upstream", "http://127.0.0.1:9", "--workers", "2")
    with _starting(*serve, errors=errors) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: len(children.read_text(encoding="ascii").split()) == 2, START_WITHIN_S)
        time.sleep(0.2)  # a worker that has not been told to read the file needs no reload
        process.send_signal(signal.SIGHUP)
        until(lambda: _reloads(errors) == 2, START_WITHIN_S)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def _may_make_a_container() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-pf", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not _may_make_a_container(), reason="this user may make no PID namespace")
def test_a_stop_ends_the_first_process_of_a_container_also_while_it_starts(tmp_path: Path) -> None:
    """The kernel drops it there without a handler: a rollout that changed its mind waited for the whole grace, and killed what then served."""
    module = tmp_path / "typer.py"
    module.write_text(SLOW, encoding="utf-8")
    command = ("unshare", "-pf", "--kill-child", *SERVE)
    with _starting(*command, errors=tmp_path / "stderr.txt", paths=str(tmp_path)) as outside:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
        until(lambda: children.read_text(encoding="ascii"), START_WITHIN_S)
        first = int(children.read_text(encoding="ascii"))
        until(
            lambda: _blocks(first, signal.SIGHUP), START_WITHIN_S
        )  # of what starts, the last step before the slow module
        began = time.monotonic()
        os.kill(first, signal.SIGTERM)
        assert outside.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert time.monotonic() - began < PATIENCE_S / 2
