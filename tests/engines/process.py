"""A real inference engine on this machine: started, stopped and killed from the outside, and read by its own gauges.

What is started is told by the environment (`make test-engines`, docs/how-to/vllm.md and docs/how-to/llama-cpp.md):

    MILLGATE_TEST_VLLM   a command that serves one model, or the address of an engine that runs already
    MILLGATE_TEST_VLLM_POOLING  the same command once more: it is started to compute embeddings
    MILLGATE_TEST_SGLANG the same for SGLang, which a CPU runs too (docs/how-to/sglang.md); the command is started once more to compute embeddings
    MILLGATE_TEST_LLAMA  the same for llama-server; the command is started once more to compute embeddings

`{port}` in a command becomes the port; without it `--port N` is added. A command is started in a session of its own
and only what it has started is ever ended. An engine given by its address is never stopped, so it is not asked to be.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from faults.process import until
from ports import free_port

START_WITHIN_S = 180.0
"""vLLM takes 14-25 s on two idle cores; a busy machine takes several times that."""

STOP_WITHIN_S = 30.0
QUIET_S = 1.5


class Kind(NamedTuple):
    """One engine family: where it is configured, where it tells its version, what it calls its gauges, and what tests need to know of it.

    `flags` are added to a command, so that its bounds are within reach; `streams` is how many requests it runs at
    once, `most` how many it takes at all (None: any number), and `of_burst` how many of those that come together. `lets_go_s` is how long its gauges may take to
    show that a client has left. `messages` says whether it serves /v1/messages, `core` what the process of its own
    is called that computes (None: there is none apart). One that `looks_when_idle` notices that a client has left in a second in which it is
    asked nothing, its gauges included, and ends nothing. One that `drains` answers all that runs when it is asked to stop.
    """

    name: str
    variable: str
    version: tuple[str, str]
    gauges: tuple[str, str]
    flags: tuple[str, ...]
    streams: int
    most: int | None
    of_burst: int
    lets_go_s: float
    messages: bool
    core: str | None
    looks_when_idle: bool = False
    drains: bool = False


VLLM = Kind(
    name="vLLM",
    variable="MILLGATE_TEST_VLLM",
    version=("/version", "version"),
    gauges=("vllm:num_requests_running", "vllm:num_requests_waiting"),
    flags=("--max-num-seqs", "8", "--max-num-queued-reqs", "12"),
    streams=8,
    most=12,
    of_burst=12,
    lets_go_s=1.0,
    messages=True,
    core="EngineCore",
)
VLLM_CACHING = VLLM._replace(
    name="vLLM with a small cache",
    # 10,240 tokens, and what of a prompt came from them is told in its usage.
    flags=(
        *("--max-num-seqs", "8", "--enable-prefix-caching", "--block-size", "32"),
        *("--num-gpu-blocks-override", "320", "--enable-prompt-tokens-details"),
    ),
    most=None,
)
VLLM_POOLING = VLLM._replace(
    name="vLLM for pooling",
    variable="MILLGATE_TEST_VLLM_POOLING",
    flags=("--max-num-seqs", "8", "--runner", "pooling", "--convert", "embed"),
    most=None,
    messages=False,
)
SGLANG = Kind(
    name="SGLang",
    variable="MILLGATE_TEST_SGLANG",
    version=("/server_info", "version"),
    gauges=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    flags=(
        # Its gauges are renewed at each step, not at every fortieth: the tests read them for what runs.
        *("--enable-metrics", "--enable-cache-report", "--decode-log-interval", "1"),
        *("--max-running-requests", "8", "--max-queued-requests", "4", "--max-total-tokens", "32768"),
    ),
    streams=8,
    most=12,
    of_burst=4,  # they wait before any of them runs
    lets_go_s=6.0,  # it looks for who has left every 4 s where it sends nothing
    messages=True,
    core="sglang::scheduler",
    drains=True,
)
SGLANG_CACHING = SGLANG._replace(
    name="SGLang with a small cache",
    flags=(*SGLANG.flags[:6], "--max-total-tokens", "10240"),
    most=None,
)
SGLANG_POOLING = SGLANG._replace(
    name="SGLang for pooling",
    flags=(*SGLANG.flags[:6], "--is-embedding"),
    most=None,
    messages=False,
)
LLAMA = Kind(
    name="llama-server",
    variable="MILLGATE_TEST_LLAMA",
    version=("/props", "build_info"),
    gauges=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    flags=("--metrics", "--parallel", "8"),
    streams=8,
    most=None,
    of_burst=0,
    lets_go_s=4.0,  # two looks at its gauges
    messages=True,
    core=None,
    looks_when_idle=True,
)
LLAMA_POOLING = LLAMA._replace(
    name="llama-server for pooling",
    flags=(*LLAMA.flags, "--embeddings", "--pooling", "mean"),
    messages=False,
)


class Load(NamedTuple):
    """What an engine says it has at one moment."""

    running: int
    waiting: int

    @property
    def total(self) -> int:
        """Everything that it works for or will."""
        return self.running + self.waiting


class Engine:
    """One engine at one address, over several lives of its process."""

    def __init__(self, kind: Kind, told: str, log: Path) -> None:
        self.kind = kind
        self.log = log
        self.owned = "://" not in told
        port = free_port()
        self.url = f"http://127.0.0.1:{port}" if self.owned else told.rstrip("/")
        with_port = told if "{port}" in told else f"{told} --port {{port}}"
        self._command = [*shlex.split(with_port.replace("{port}", str(port))), *kind.flags]
        self._process: subprocess.Popen[bytes] | None = None

    # ---- its lives

    def up(self) -> "Engine":
        """Return when it serves: started if it is ours and does not run."""
        if self.owned and not self._alive:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        until(self._serves, START_WITHIN_S, f"{self.kind.name} does not serve at {self.url}; see {self.log}")
        return self

    def terminate(self) -> None:
        """Ask it to stop, as a scheduler does."""
        self._running.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all its processes at once, as a machine that fails does."""
        os.killpg(self._running.pid, signal.SIGKILL)

    def terminate_core(self) -> None:
        """Ask the process that computes to stop, as a supervisor does that asks every process of a group."""
        os.kill(_descendant(self._running.pid, str(self.kind.core)), signal.SIGTERM)

    def kill_core(self) -> None:
        """End the process that computes and leave the one that answers."""
        os.kill(_descendant(self._running.pid, str(self.kind.core)), signal.SIGKILL)

    def wait(self) -> int:
        """Return its exit code when it has ended, and end what it has left behind."""
        process = self._running
        try:
            return process.wait(STOP_WITHIN_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None

    def stop(self) -> None:
        """End it if it is ours and runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait()

    # ---- what it says

    @property
    def model(self) -> str:
        """The name under which it serves its first model."""
        return str(json.loads(self._get("/v1/models"))["data"][0]["id"])

    @property
    def version(self) -> str:
        """What it says of its version, if anything."""
        path, field = self.kind.version
        return str(json.loads(self._get(path)).get(field, "unknown"))

    def load(self) -> Load:
        """Read its gauges."""
        page = self._get("/metrics").decode()
        return Load(*(_gauge(page, name) for name in self.kind.gauges))

    def _get(self, path: str) -> bytes:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=10.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def _serves(self) -> bool:
        if self.owned and not self._alive:
            raise AssertionError(f"{self.kind.name} ended while it started; see {self.log}")
        try:
            return self.load().total == 0
        except (OSError, HTTPException, ValueError):
            return False

    @property
    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "only an engine that was started here can be stopped here"
        return self._process


def _gauge(page: str, name: str) -> int:
    """Add up the series of one gauge; ValueError when the page has none."""
    values = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith((name + "{", name + " "))
    ]
    if not values:
        raise ValueError(f"no {name} on the page")
    return round(sum(values))


def _descendant(pid: int, word: str) -> int:
    """Return the process below `pid` whose command line names `word`."""
    waiting = [pid]
    for each in waiting:
        if word in Path(f"/proc/{each}/cmdline").read_text(encoding="utf-8", errors="replace"):
            return each
        for task in Path(f"/proc/{each}/task").iterdir():
            waiting += map(int, (task / "children").read_text(encoding="ascii").split())
    raise AssertionError(f"no process below {pid} is called {word}")


def seconds_until_idle(engine: Engine, within_s: float = 10.0) -> float:
    """Return how long the engine's own gauges take to show that it has nothing left."""

    def is_idle() -> bool:
        if engine.kind.looks_when_idle:
            time.sleep(QUIET_S)
        return engine.load().total == 0

    return seconds_until(is_idle, within_s)


def seconds_until(truth: Callable[[], object], within_s: float = 10.0) -> float:
    """Return how long it takes until `truth()` holds; AssertionError when it does not within `within_s`."""
    began = time.monotonic()
    until(truth, within_s)
    return time.monotonic() - began
