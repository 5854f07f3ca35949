"""The stage of every demo: an embedded engine, and a gate in front of it, each a process on a free port.

Gate and engine share one time-scaled profile; the gate's own constants (how long an abort takes, how often gauges
are read, the granularity of hints) are not scaled.
"""

import contextlib
import http.client
import json
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from millgate.demos.connection import GateAddress
from millgate.demos.processes import Child, ChildError, Children
from millgate.demos.scores import EngineCounts
from millgate.demos.showing import Show
from millgate.engine.profile import find_profile, scaled

HOST = "127.0.0.1"
ANSWER_WITHIN_S = 5.0
HEALTHY_WITHIN_S = 20.0
MOST_TIME_SCALE = 10.0
"""The engine's own bound: beyond it its steps are shorter than its timer."""
EVENTS_PER_S = 1000.0
"""Of the engine at most. Each is sent, relayed and read: 3,000 a second over all is what two cores carry."""
AT_HOST = rf"http://{HOST}:(\d+)"
GATE_READY = {"door": rf'"url": "{AT_HOST}"', "admin": rf'"admin_url": "{AT_HOST}"'}
ENGINE_READY = r'"port": (\d+).*"engine ready"'

# HAProxy as people put it before an engine: a cap on connections to the server, and a queue with a time limit.
_CONFIG = """\
global
    nbthread 1
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
    timeout queue {queue_ms}ms
    option abortonclose
frontend door
    bind fd@{listening}
    default_backend engines
backend engines
    server engine {host}:{port} maxconn {max_inflight}
"""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The embedded engine of a run; `max_num_seqs` is also the cap of a gate in front of it."""

    profile: str
    time_scale: float
    max_num_seqs: int
    ignore_hangups: bool = False


class StagedEngine(NamedTuple):
    """An engine that answers."""

    child: Child
    address: GateAddress

    def stats(self) -> dict[str, Any]:
        """Read the engine's own counters."""
        return fetch(self.address, "/stats")

    def counts(self) -> EngineCounts:
        """Read the counters that a score needs."""
        stats = self.stats()
        return EngineCounts(
            generated_tokens=stats["output_tokens"],
            wasted_tokens=stats["wasted_tokens"],
            prefilled_tokens=stats["prompt_tokens"],
            peak_inflight=stats["peak_running_and_waiting"],
        )


class RunningGate(NamedTuple):
    """A gate that answers; `admin` is its door for state."""

    child: Child
    address: GateAddress
    admin: GateAddress

    def state(self) -> dict[str, Any]:
        """Read the whole snapshot of its core."""
        return fetch(self.admin, "/api/state")


class RunningPeer(NamedTuple):
    """A proxy that answers in the gate's place."""

    child: Child
    address: GateAddress


class DemoStage:
    """A `with` block in which engines and gates run; leaving it, however, ends them all."""

    def __init__(self) -> None:
        self._children = Children()
        self._files = tempfile.TemporaryDirectory(prefix="millgate-demo-")

    def start_engine(self, setup: EngineSetup) -> StagedEngine:
        """Start an engine and wait until it is healthy."""
        arguments = ["engine", "--host", HOST, "--port", "0", "--profile", setup.profile]
        arguments += ["--time-scale", f"{setup.time_scale:g}", "--max-num-seqs", str(setup.max_num_seqs)]
        if setup.ignore_hangups:
            arguments.append("--ignore-hangups")
        child = self._children.start(arguments)
        address = GateAddress(HOST, int(child.await_ready({"door": ENGINE_READY})["door"]))
        await_healthy(child, address, "/health")
        return StagedEngine(child, address)

    def start_plain_gate(
        self, engine: StagedEngine, max_inflight: int, ttft_slo_s: float, *more: str
    ) -> RunningGate:
        """Start a gate as its users do, with flags alone: it is told nothing of the engine's speed.

        `ttft_slo_s` is real seconds, `more` are other flags.
        """
        url = f"http://{engine.address.host}:{engine.address.port}"
        flags = ["--upstream", url, "--max-inflight", str(max_inflight), "--ttft-slo", f"{ttft_slo_s:.6f}s"]
        return self.start_gate(*flags, "--port", "0", "--admin-port", "0", *more)

    def start_gate(self, *arguments: str) -> RunningGate:
        """Start `millgate serve` with these arguments and wait until it is ready."""
        child = self._children.start(["serve", *arguments])
        doors = child.await_ready(GATE_READY)
        admin = GateAddress(HOST, int(doors["admin"]))
        await_healthy(child, admin, "/readyz")
        return RunningGate(child, GateAddress(HOST, int(doors["door"])), admin)

    def file(self, name: str, text: str) -> Path:
        """Write a file that goes with the stage."""
        path = Path(self._files.name) / name
        path.write_text(text, encoding="utf-8")
        return path

    def start_haproxy(
        self, program: str, engine: StagedEngine, max_inflight: int, queue_s: float
    ) -> RunningPeer:
        """Start HAProxy before this engine, with the same cap and a queue that it may wait in for `queue_s`.

        It inherits a socket that listens already: asking for a free port and binding it later would be a race.
        """
        with socket.create_server((HOST, 0)) as door:
            text = haproxy_config(door.fileno(), engine.address, max_inflight, queue_s)
            file = self.file("haproxy.cfg", text)
            child = self._children.start(["-db", "-f", str(file)], (program,), (door.fileno(),))
            address = GateAddress(HOST, door.getsockname()[1])
        child.await_ready({})
        await_healthy(child, address, "/health")
        return RunningPeer(child, address)

    def stop(self, running: StagedEngine | RunningGate | RunningPeer) -> None:
        """End one process before the block ends."""
        self._children.stop(running.child)

    def __enter__(self) -> Self:
        self._children.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._children.__exit__()
        self._files.cleanup()


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError naming the option when its value is out of bounds."""
    if not least <= value <= most:
        raise ValueError(f"{name}: must be from {least:g} to {most:g}, got {value:g}")


def perform(show: Show, play: Callable[[DemoStage], None]) -> int:
    """Play on a stage and return the exit code: 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    try:
        with DemoStage() as stage:
            play(stage)
    except ChildError as error:
        show.note(str(error))
        return 1
    except KeyboardInterrupt:
        show.note("interrupted: no process is left behind")
        return 130
    return 0


def find_haproxy() -> str | None:
    """Return where HAProxy is installed, None where it is not; distributions keep it among the daemons."""
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def haproxy_config(listening: int, engine: GateAddress, max_inflight: int, queue_s: float) -> str:
    """Write a configuration that takes connections from an inherited socket, `queue_s` being real seconds.

    What waits longer gets a 503, a client that hangs up in the queue is dropped (`option abortonclose`): both as the
    HAProxy 2.6 configuration manual has them.
    """
    return _CONFIG.format(
        queue_ms=max(1, round(queue_s * 1000)),
        listening=listening,
        host=engine.host,
        port=engine.port,
        max_inflight=max_inflight,
    )


def tokens_per_event(setup: EngineSetup) -> int:
    """Say how many tokens one event must carry for a full engine to stay within `EVENTS_PER_S`."""
    prior = scaled(find_profile(setup.profile), setup.time_scale).prior()
    step_s = prior.tpot_base_s + setup.max_num_seqs * prior.tpot_per_stream_s
    return max(1, math.ceil(setup.max_num_seqs / step_s / EVENTS_PER_S))


def fetch(address: GateAddress, path: str) -> dict[str, Any]:
    """GET a JSON object; ChildError when the server does not answer with one."""
    try:
        status, body = _get(address, path)
    except (OSError, http.client.HTTPException) as error:
        raise ChildError(f"GET {path} of port {address.port} failed: {error}") from error
    if status != http.HTTPStatus.OK:
        raise ChildError(f"GET {path} of port {address.port} answered {status}")
    record: dict[str, Any] = json.loads(body)
    return record


def await_healthy(child: Child, address: GateAddress, path: str) -> None:
    """Wait until `path` answers 200; ChildError when the child dies first or takes too long."""
    ends_at = time.monotonic() + HEALTHY_WITHIN_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _get(address, path)[0] == http.HTTPStatus.OK:
                return
        child.check()
        if time.monotonic() > ends_at:
            raise ChildError(f"{child.name}: {path} did not answer 200 in {HEALTHY_WITHIN_S:g} s")
        time.sleep(0.05)


def _get(address: GateAddress, path: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=ANSWER_WITHIN_S)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
