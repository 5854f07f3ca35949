"""The real gateway in a process of its own, and what can be seen of it from outside: its doors and /proc."""

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faults.talk import Talk

START_WITHIN_S = 60.0
"""Generous: the machine may be busy with other tests."""

PATIENCE_S = 30.0
"""How long a test waits for what must happen; only a failing test waits that long."""

# Deadlines that let a test see them pass; bounds that let a test reach them.
SHORT = {
    "limits.body": "4MiB",
    "limits.byte_budget": "16MiB",
    "limits.header_deadline": "1s",
    "limits.body_deadline": "1s",
    "limits.write_stall": "1s",
    "limits.idle": "2s",
    "limits.upstream_connect": "1s",
    "limits.upstream_idle": "1s",
    # A machine that is busy with other tests must not look like an overloaded gateway.
    "limits.loop_lag": "5s",
    # What is tested here is not prediction: a body of 4 MB counts as a million tokens, which take their time.
    "lanes.*.ttft_slo": "1h",
}

_PAGE_BYTES = resource.getpagesize()


def until(truth: Callable[[], object], within_s: float = PATIENCE_S, what: str = "") -> None:
    """Return as soon as `truth()` holds; AssertionError when it does not within `within_s`."""
    by = time.monotonic() + within_s
    while not truth():
        assert time.monotonic() < by, what or "this should have become true"
        time.sleep(0.005)


def full_pipe() -> tuple[int, int]:
    """Return a pipe that takes nothing more: its reader has stopped."""
    reader, writer = os.pipe()
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, before | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    fcntl.fcntl(writer, fcntl.F_SETFL, before)
    return reader, writer


class GateProcess:
    """`millgate serve` in front of one or more addresses; `settings` is what `--set` takes."""

    def __init__(
        self,
        *upstreams: str,
        errors: Path,
        settings: dict[str, str] | None = None,
        max_inflight: int = 8,
        open_files: int | None = None,
        config: str | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        arguments = ["serve", "--port", "0", "--admin-port", "0", "--json"]
        arguments += [part for url in upstreams for part in ("--upstream", url)]
        arguments += ["--max-inflight", str(max_inflight)]
        if config is not None:
            file = errors.with_suffix(".yaml")
            file.write_text(config, encoding="utf-8")
            arguments += ["--config", str(file)]
        for path, value in {**SHORT, **(settings or {})}.items():
            arguments += ["--set", f"{path}={value}"]
        token = (environ or {}).get("MILLGATE_ADMIN_TOKEN")
        self.admin_headers = {"authorization": f"Bearer {token}"} if token else {}
        self._errors = errors
        with errors.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [*_limited(open_files), sys.executable, "-m", "millgate", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "NO_COLOR": "1", **(environ or {})},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
            raise AssertionError(self.errors())
        self.ready: dict[str, Any] = json.loads(line)
        self.port: int = urlsplit(self.ready["url"]).port or 0
        self._admin: HTTPConnection | None = None
        self._talks: list[Talk] = []
        self._before: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    # ---- doors

    def connect(self, *, receive_bytes: int | None = None) -> Talk:
        """Open a client connection; it is closed by `hang_up` at the latest."""
        talk = Talk(self.port, receive_bytes=receive_bytes)
        self._talks.append(talk)
        return talk

    def hang_up(self) -> None:
        """Close every client connection."""
        for talk in self._talks:
            talk.close()
        self._talks.clear()

    def ask(self, path: str) -> tuple[int, bytes]:
        """GET a page of the admin door over one kept connection."""
        for last in (False, True):
            if self._admin is None:
                self._admin = HTTPConnection(urlsplit(self.ready["admin_url"]).netloc, timeout=PATIENCE_S)
            try:
                self._admin.request("GET", path, headers=self.admin_headers)
                answer = self._admin.getresponse()
                return answer.status, answer.read()
            except (OSError, HTTPException):
                self._admin.close()
                self._admin = None
                if last:
                    raise
        raise AssertionError

    def state(self) -> dict[str, Any]:
        """Return the snapshot of the core."""
        state: dict[str, Any] = json.loads(self.ask("/api/state")[1])
        return state

    # ---- accounts

    def begin(self) -> None:
        """Count outcomes from here on."""
        self.ended()
        self._before = self._now

    def ended(self) -> dict[str, int]:
        """Wait until nothing is in flight; return how attempts ended since `begin`, with their causes.

        Every attempt has exactly one outcome (INV-1) and every permit is back (INV-3).
        """
        by = time.monotonic() + PATIENCE_S
        while not _idle(state := self.state()):
            assert time.monotonic() < by, f"still in flight: {state}"
            time.sleep(0.005)
        for lane in state["lanes"]:
            assert sum(lane["outcomes"].values()) == lane["arrived"], lane
        self._now = _outcomes(state)
        return dict(self._now - self._before)

    # ---- /proc

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 - the links vanish while they are listed

    @property
    def resident_bytes(self) -> int:
        """How much memory it has in RAM."""
        return int(self._proc("statm").split()[1]) * _PAGE_BYTES

    @property
    def cpu_s(self) -> float:
        """Processor time so far, user and system."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Start measuring `peak_bytes` anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    @property
    def peak_bytes(self) -> int:
        """The most memory it has had in RAM since `forget_peak`."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="utf-8")

    # ---- the end

    def errors(self) -> str:
        """Return what it has written to stderr."""
        return self._errors.read_text(encoding="utf-8")

    def stop(self) -> int:
        """End it with SIGTERM and return the exit code; -9 if it had to be killed."""
        self.hang_up()
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()


def _limited(open_files: int | None) -> list[str]:
    """Return the beginning of a command line that lowers the limit of open files first."""
    if open_files is None:
        return []
    return ["sh", "-c", 'ulimit -n "$1"; shift; exec "$@"', "sh", str(open_files)]


def _idle(state: dict[str, Any]) -> bool:
    return not any(lane["queued"] or lane["running"] for lane in state["lanes"]) and not any(
        engine["running"] or engine["departing"] or engine["kv_tokens"] or engine["prefill_tokens"]
        for engine in state["engines"]
    )


def _outcomes(state: dict[str, Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for lane in state["lanes"]:
        for outcome in ("good", "late", "bad_request"):
            counts[outcome] += lane["outcomes"].get(outcome, 0)
        for name, field in (("yielded", "yields"), ("client_gone", "gone"), ("engine_failed", "failures")):
            for cause, count in lane[field].items():
                counts[f"{name}/{cause}"] += count
    return counts
