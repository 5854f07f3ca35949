"""The real parts: redis-server, `millgate engine`, and gates with a link of their own to Redis that can be cut."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millgate.testing.fault_proxy import FaultProxy

CAP, REPLICAS, LEASE_S = 16, 4, 2.0
_WITHIN_S = 60.0
_KEY = {"CLUSTER_TICKETS": "5a" * 32}
REDIS = shutil.which("redis-server")
COMPILER = shutil.which("cc")
"""Without a C compiler no clock jumps."""


class Redis:
    """One redis-server; its wall clock can jump where a C compiler is installed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder, self._clock = folder, folder / "clock"
        self.ahead_s = 0
        self.set_clock(0)
        self._environment = dict(os.environ)
        if COMPILER is not None:
            library, source = folder / "wall_clock.so", Path(__file__).parent / "wall_clock.c"
            subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
            self._environment |= {"LD_PRELOAD": str(library), "WALL_CLOCK_AHEAD": str(self._clock)}
        self.start()

    def start(self) -> None:
        """Start it, empty."""
        assert REDIS is not None
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([REDIS, *options], stdout=log, stderr=log, env=self._environment)

    def set_clock(self, ahead_s: int) -> None:
        """Let its wall clock go so many seconds ahead."""
        self.ahead_s = ahead_s
        with self._clock.open("r+b" if self._clock.exists() else "wb") as clock:
            clock.write(ahead_s.to_bytes(8, sys.byteorder, signed=True))

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def flush(self) -> None:
        """Let it lose everything."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"FLUSHALL\r\n")
        await reader.readline()
        writer.close()


class Process:
    """One `millgate` process; `record` is the line of JSON in which it says where it listens."""

    def __init__(self, folder: Path, name: str, *arguments: str, says: str) -> None:
        self._out, self._errors, self._says = folder / f"{name}.out", folder / f"{name}.err", says
        self.record: dict[str, Any] = {}
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millgate", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, "NO_COLOR": "1", **_KEY},
            )

    async def ready(self) -> None:
        """Wait until it has said where it listens; RuntimeError with what it says instead."""
        ends_at = time.monotonic() + _WITHIN_S
        while not self.is_ready():
            if time.monotonic() > ends_at or self.process.poll() is not None:
                raise RuntimeError(self._errors.read_text(encoding="utf-8"))
            await asyncio.sleep(0.05)

    def is_ready(self) -> bool:
        """Return whether it has said where it listens."""
        said = [line for line in [*_records(self._out), *self.events()] if self._says in line]
        self.record = said[0] if said else {}
        return bool(said)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of its log."""
        return _records(self._errors)

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as kill -9 does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def _records(file: Path) -> list[dict[str, Any]]:
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if isinstance(record := json.loads(line), dict):
                lines.append(record)
    return lines


def page(url: str, method: str = "GET") -> Any:
    """Return a page of JSON, that of an error too."""
    try:
        with urlopen(Request(url, method=method), timeout=3.0) as answer:
            return json.loads(answer.read() or b"{}")
    except HTTPError as error:
        return json.load(error)


class Gate:
    """One place of the cluster: a gate, its link to Redis, and the gates that stood there before."""

    def __init__(self, folder: Path, number: int, settings: dict[str, Any], redis: Redis | None) -> None:
        self._folder, self._number, self._settings = folder, number, settings
        self.link = None if redis is None else FaultProxy(redis.port)
        self._runs = 0

    async def start(self) -> None:
        """Start a gate, and its link where that is not there yet."""
        settings = dict(self._settings)
        if self.link is not None:
            if not self.link.port:
                await self.link.start()
            shared = {"store": f"redis://127.0.0.1:{self.link.port}", **settings.pop("cluster", {})}
            settings["cluster"] = shared
        file = self._folder / f"gate-{self._number}.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        self._runs += 1
        name = f"gate-{self._number}-{self._runs}"
        run = Process(self._folder, name, "serve", "--config", str(file), "--json", says="admin_url")
        await run.ready()
        # Not sooner: until then clients find the place of the one before, where no process listens.
        self.run = run

    @property
    def port(self) -> int:
        """Where clients ask."""
        return int(self.run.record["url"].rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        """Where it is asked whether it is ready."""
        return int(self.run.record["admin_url"].rpartition(":")[2])

    def state(self) -> dict[str, Any]:
        """Return its page of the state."""
        record: dict[str, Any] = page(f"{self.run.record['admin_url']}/api/state")
        return record

    def readiness(self) -> dict[str, Any]:
        """Return its readiness, with the detail."""
        record: dict[str, Any] = page(f"{self.run.record['admin_url']}/readyz")
        return record


class Stack:
    """Redis and gates before one engine, a process or a server of this one; with one gate no Redis."""

    def __init__(self, folder: Path, gates: int, engine: dict[str, Any], **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.redis = Redis(folder) if gates > 1 else None
        common = {
            "listen": {"port": 0},
            "admin": {"port": 0},
            "engines": [{"name": "engine", **engine}],
            "lanes": [{"name": "interactive", "ttft_slo": "10s"}],
            "retries": {"ticket_key_env": "CLUSTER_TICKETS"},
            **settings,
        }
        self.gates = [Gate(folder, number, common, self.redis) for number in range(gates)]

    async def start(self) -> None:
        """Start all gates, and wait until each has its lease."""
        await asyncio.gather(*[gate.start() for gate in self.gates])
        if self.redis is not None:
            await until(self.is_leased, _WITHIN_S)

    def is_leased(self) -> bool:
        """Return whether every gate has a lease."""
        return all(gate.state()["cluster"]["state"] == "leased" for gate in self.gates)

    async def close(self) -> None:
        """End everything."""
        for gate in self.gates:
            gate.run.kill()
            if gate.link is not None:
                await gate.link.stop()
        if self.redis is not None:
            self.redis.kill()


class Engine:
    """The embedded engine, which counts itself what it has at once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run = Process(folder, "engine", "engine", "--port", "0", says="port")

    @property
    def url(self) -> str:
        """Where gates ask."""
        return f"http://127.0.0.1:{self.run.record['port']}"

    def stats(self) -> dict[str, Any]:
        """Return what it says of itself since the last reset."""
        record: dict[str, Any] = page(f"{self.url}/stats")
        return record

    def reset(self) -> None:
        """Count anew from here."""
        page(f"{self.url}/stats/reset", "POST")


async def until(holds: Callable[[], bool], within_s: float) -> bool:
    """Return whether this comes true in time; a page that cannot be had is no."""
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if await asyncio.to_thread(holds):
                return True
        await asyncio.sleep(0.05)
    return False
