"""A real Envoy in front of `millgate extproc` and embedded engines, each in a process of its own."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from ports import free_port

ENVOY = Path(sys.executable).with_name("envoy")
START_WITHIN_S = 60.0
PATIENCE_S = 60.0
"""How long a test waits for what must happen; only a failing test waits that long."""


def until(truth: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Return as soon as `truth()` holds."""
    by = time.monotonic() + within_s
    while not truth():
        assert time.monotonic() < by, what
        time.sleep(0.01)


def answers(port: int) -> bool:
    """Return whether a server listens here."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class EnvoyStack:
    """One engine, one processor, one Envoy; `settings` go to the processor."""

    def __init__(self, folder: Path, settings: dict[str, str], *, time_scale: float = 2.0) -> None:
        self.folder = folder
        self._settings = settings
        self._time_scale = time_scale
        self.port, self.engine_port, self.processor_port = free_port(), free_port(), free_port()
        self.admin_port, self.envoy_admin_port = free_port(), free_port()
        self.log = folder / "attempts.jsonl"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def engine_url(self) -> str:
        """Return the engine's address."""
        return f"http://127.0.0.1:{self.engine_port}"

    def start(self) -> None:
        """Start all three, and return when a request is answered."""
        engine = ("engine", "--port", str(self.engine_port), "--time-scale", str(self._time_scale))
        self._spawn("engine", sys.executable, "-m", "millgate", *engine, "--enable-prefix-caching")
        until(lambda: answers(self.engine_port), "the engine listens", START_WITHIN_S)
        self.start_processor()
        printed = subprocess.run(self._envoy_config(), capture_output=True, check=True)
        (self.folder / "envoy.yaml").write_bytes(printed.stdout)
        self.restart_envoy()

    def restart_envoy(self) -> None:
        """Start Envoy, and return when it has found the processor."""
        config, base_id = str(self.folder / "envoy.yaml"), str(self.port)
        self._spawn("envoy", str(ENVOY), "-c", config, "--concurrency", "1", "--base-id", base_id)
        until(lambda: self.status("/health") == 200, "Envoy asks the processor", START_WITHIN_S)

    def start_processor(self) -> None:
        """Start the processor, and return when it is ready."""
        given = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        self._spawn(
            "processor",
            *(sys.executable, "-m", "millgate", "extproc", "--upstream", self.engine_url),
            *("--port", str(self.processor_port), "--admin-port", str(self.admin_port)),
            *("--log-attempts", str(self.log), *given),
        )
        until(lambda: answers(self.admin_port), "the processor listens", START_WITHIN_S)

    def _envoy_config(self) -> list[str]:
        return [
            *(sys.executable, "-m", "millgate", "extproc", "envoy-config", "--port", str(self.port)),
            *("--envoy-admin-port", str(self.envoy_admin_port)),
            *("--extproc-at", f"127.0.0.1:{self.processor_port}"),
        ]

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(arguments, stdout=log, stderr=log)

    def kill_processor(self) -> None:
        """Kill it without a word."""
        self.processes["processor"].send_signal(signal.SIGKILL)
        self.processes["processor"].wait()

    def freeze_processor(self) -> None:
        """Stop it where it stands."""
        self.processes["processor"].send_signal(signal.SIGSTOP)

    def thaw_processor(self) -> None:
        """Let it go on, and return when Envoy has found it again."""
        self.processes["processor"].send_signal(signal.SIGCONT)
        until(lambda: self.status("/health") == 200, "Envoy has found the processor again")

    def revive_processor(self) -> None:
        """Start another in its place, and return when Envoy has found it."""
        self.start_processor()
        until(lambda: self.status("/health") == 200, "Envoy has found the new processor")

    @contextmanager
    def another_envoy(self, change: Callable[[Any], None]) -> Iterator[int]:
        """Run one more Envoy with the printed configuration, changed, until the block ends; yield its port."""
        tree = yaml.safe_load((self.folder / "envoy.yaml").read_text(encoding="utf-8"))
        port, admin_port = free_port(), free_port()
        listener = tree["static_resources"]["listeners"][0]
        listener["address"]["socket_address"]["port_value"] = port
        tree["admin"]["address"]["socket_address"]["port_value"] = admin_port
        change(tree)
        file = self.folder / f"envoy-{port}.yaml"
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        name = f"envoy-{port}"
        self._spawn(name, str(ENVOY), "-c", str(file), "--concurrency", "1", "--base-id", str(port))
        try:
            until(lambda: answers(port), "the other Envoy listens", START_WITHIN_S)
            yield port
        finally:
            process = self.processes.pop(name)
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    # ---- asking

    def connection(self) -> HTTPConnection:
        """Return a connection to Envoy."""
        return HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(
        self, body: bytes, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Post a body and return status, headers and the whole answer."""
        connection = self.connection()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request("POST", path, body, {"content-type": "application/json", **named})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def status(self, path: str) -> int:
        """Return the status of a GET, 0 where there is none."""
        connection = self.connection()
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def begin(self, body: bytes, **headers: str) -> socket.socket:
        """Send a request on a socket of its own, and leave it to the test."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        lines = [
            b"%b: %b" % (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        head = [
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: envoy",
            b"content-type: application/json",
            *lines,
        ]
        client.sendall(b"\r\n".join((*head, b"content-length: %d" % len(body), b"", body)))
        return client

    # ---- what Envoy and the processor know

    def streams_started(self) -> int:
        """Return about how many requests Envoy has asked the processor."""
        address = f"http://127.0.0.1:{self.envoy_admin_port}/stats?filter=ext_proc.streams_started"
        with urllib.request.urlopen(address, timeout=5.0) as page:
            return int(page.read().split()[-1])

    def state(self) -> dict[str, Any]:
        """Return what its admin door says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/api/state", timeout=5.0) as page:
            found: dict[str, Any] = json.load(page)
            return found

    def running(self) -> int:
        """Return how many streams run at the engine, as the core believes."""
        return int(self.state()["engines"][0]["running"])

    def queued(self) -> int:
        """Return how many requests wait."""
        return sum(lane["queued"] for lane in self.state()["lanes"])

    def ended(self, outcome: str) -> int:
        """Return how many attempts have ended so."""
        return sum(lane["outcomes"].get(outcome, 0) for lane in self.state()["lanes"])

    def logged(self, request_id: str) -> dict[str, Any]:
        """Return the line of the log about this request, when it is there."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            lines = self.log.read_text().splitlines() if self.log.exists() else []
            found.extend(line for line in map(json.loads, lines) if line["id"] == request_id)
            return bool(found)

        until(look, f"{request_id} is in the log")
        return found[0]


@contextmanager
def envoy_stack(folder: Path, settings: dict[str, str], *, time_scale: float = 2.0) -> Iterator[EnvoyStack]:
    """Run one until the block ends."""
    stack = EnvoyStack(folder, settings, time_scale=time_scale)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def chat(*, tokens: int = 4, stream: bool = False, content: str = "Hello") -> bytes:
    """Return a request for an answer of so many tokens."""
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": tokens,
        "min_tokens": tokens,
        "messages": [{"role": "user", "content": content}],
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def read_all(client: socket.socket) -> bytes:
    """Read to the end of the chunked answer, or of the connection, and close it."""
    data = b""
    with client:
        while not data.endswith(b"\r\n0\r\n\r\n"):
            piece = client.recv(65_536)
            if not piece:
                break
            data += piece
    return data


def abort(client: socket.socket) -> None:
    """Leave with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
