"""The processes of the bench: started on a given core, read through /proc, ended with the run."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.load import BenchError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_TIMEOUT_S = 30.0

HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
ENVOY = str(Path(sys.executable).with_name("envoy"))
_ENVOY_LOOKS_S = 2.0
"""Envoy asks for the processor's health every second, and sends it nothing before."""
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Process(NamedTuple):
    """One running program of the bench and the port on which it answers."""

    name: str
    pid: int
    port: int

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads so far, user and system, in seconds."""
        return cpu_s(self.pid)

    def rss_mb(self) -> float:
        """Return its resident memory in MB of 10^6 bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise BenchError(f"{self.name} has no VmRSS: it has ended")


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds: the scheduler's nanoseconds, else its clock ticks."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except FileNotFoundError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Cores(NamedTuple):
    """Which core the proxies run on and which one everything else; the same one on a one-core machine."""

    proxy: int
    others: int


def choose_cores() -> Cores:
    """Return the first two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[1] if len(allowed) > 1 else allowed[0])


class Stage:
    """Starts programs, each on its core, and ends them all at `close`; their output goes to files in `folder`.

    Without `pins` each runs where the system puts it.
    """

    def __init__(self, folder: Path, cores: Cores, *, pins: bool = True) -> None:
        self._folder = folder
        self._cores = cores
        self._pins = pins
        self._running: list[subprocess.Popen[bytes]] = []

    def engine(self, spacing_ms: float) -> Process:
        """Start the trivial engine beside the load."""
        port = free_port()
        command = [sys.executable, "-m", "bench.engine", str(port), str(spacing_ms)]
        return self._start("engine", command, port, self._cores.others)

    def millgate(self, engine: Process, name: str, *flags: str) -> Process:
        """Start the gate as its users do, with everything on; `flags` are those of `millgate serve`."""
        port, admin_port = free_port(), free_port()
        command = [sys.executable, "-m", "millgate", "serve", "--upstream", f"http://127.0.0.1:{engine.port}"]
        command += ["--port", str(port), "--admin-port", str(admin_port), *flags]
        return self._start(name, command, port, self._cores.proxy)

    def processor(
        self, engine_port: int, *flags: str, under: Sequence[str] = (), timeout_s: float = _START_TIMEOUT_S
    ) -> tuple[Process, Process]:
        """Start an external processor, `under` another program, and Envoy before it; `flags` are those of `millgate extproc`."""
        port, admin_port, envoy_port = free_port(), free_port(), free_port()
        cli, url = [sys.executable, "-m", "millgate", "extproc"], f"http://127.0.0.1:{engine_port}"
        command = [*under, *cli, "--upstream", url, "--port", str(port), "--admin-port", str(admin_port)]
        processor = self._start("processor", [*command, *flags], port, self._cores.proxy, timeout_s=timeout_s)
        asked = [*cli, "envoy-config", "--port", str(envoy_port), "--extproc-at", f"127.0.0.1:{port}"]
        printed = subprocess.run(
            [*asked, "--envoy-admin-port", str(free_port())], check=True, capture_output=True
        )
        config = self._folder / "envoy.yaml"
        config.write_bytes(printed.stdout)
        command = [ENVOY, "-c", str(config), "--concurrency", "1", "--base-id", str(port)]
        envoy = self._start("envoy", command, envoy_port, self._cores.others)
        time.sleep(_ENVOY_LOOKS_S)
        return processor, envoy

    def workers(self, engine: Process, count: int, cores: Sequence[int]) -> Process:
        """Start a gate of so many processes, 1 without a supervisor, which may use all these cores."""
        port = free_port()
        command = [sys.executable, "-m", "millgate", "serve", "--upstream", f"http://127.0.0.1:{engine.port}"]
        command += ["--port", str(port), "--admin-port", str(free_port()), "--max-inflight", "256"]
        command += ["--workers", str(count)]
        return self._start(f"{count} workers", command, port, *cores)

    def haproxy(self, engine: Process) -> Process | None:
        """Start HAProxy on one thread, or return None where it is not installed."""
        if HAPROXY is None:
            return None
        port = free_port()
        config = self._folder / "haproxy.cfg"
        config.write_text(_HAPROXY_CONFIG.format(port=port, engine=engine.port))
        return self._start("haproxy", [HAPROXY, "-db", "-f", str(config)], port, self._cores.proxy)

    def nginx(self, engine: Process) -> Process | None:
        """Start nginx as one process, or return None where it is not installed."""
        if NGINX is None:
            return None
        port = free_port()
        config = self._folder / "nginx.conf"
        config.write_text(_NGINX_CONFIG.format(port=port, engine=engine.port, folder=self._folder))
        command = [NGINX, "-p", str(self._folder), "-e", str(self._folder / "nginx.err"), "-c", str(config)]
        return self._start("nginx", command, port, self._cores.proxy)

    def _start(
        self, name: str, command: Sequence[str], port: int, *cores: int, timeout_s: float = _START_TIMEOUT_S
    ) -> Process:
        output = self._folder / f"{name}.log"
        where = _on_cores(*cores) if self._pins else contextlib.nullcontext()
        with output.open("wb") as log, where:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running.append(process)
        deadline_s = time.monotonic() + timeout_s
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise BenchError(f"{name} did not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        return Process(name, process.pid, port)

    def close(self) -> None:
        """End everything that was started, the newest first."""
        for process in reversed(self._running):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _on_cores(*cores: int) -> Iterator[None]:
    """What is started inside inherits these cores from its first instruction on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# http-no-delay: without it HAProxy holds SSE chunks back to fill packets. One thread, as the gate has one.
_HAPROXY_CONFIG = """
global
    nbthread 1
    maxconn 9000
defaults
    mode http
    option http-no-delay
    option http-keep-alive
    http-reuse always
    timeout connect 5s
    timeout client 300s
    timeout server 300s
frontend door
    bind 127.0.0.1:{port}
    default_backend engine
backend engine
    server engine 127.0.0.1:{engine}
"""

_NGINX_CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 18000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    keepalive_requests 100000000;
    upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
