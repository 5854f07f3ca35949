"""A cluster of real processes: a redis-server, an embedded engine that counts what it runs, and gateways that share its cap."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.cluster.crowd import Answer, ask
from lab.cluster.processes import CAP, REPLICAS, Process, page

from cluster.redis_server import RedisServer

_WITHIN_S = 60.0


class Replica(Process):
    """One gateway of the cluster; its admin door has a port of its own."""

    @property
    def port(self) -> int:
        return int(self.record["url"].rpartition(":")[2])

    def state(self) -> dict[str, Any]:
        record: dict[str, Any] = page(f"{self.record['admin_url']}/api/state")
        return record

    def readiness(self) -> dict[str, Any]:
        record: dict[str, Any] = page(f"{self.record['admin_url']}/readyz")
        return record

    def is_leased(self) -> bool:
        return bool(self.state()["cluster"]["state"] == "leased")


class Cluster:
    """Redis, one engine, and four gateways that share its cap of 16 streams."""

    def __init__(self, folder: Path, replicas: int = REPLICAS, **settings: Any) -> None:
        self.folder = folder
        self.redis = RedisServer(folder / "redis")
        self.engine = Process(folder, "engine", "engine", "--port", "0", says="port")
        await_ready(self.engine)
        self._config = folder / "gate.json"
        self._config.write_text(json.dumps(self._configuration(settings)), encoding="utf-8")
        self._started = 0
        self.replicas = [self._start() for _ in range(replicas)]
        for replica in self.replicas:
            await_ready(replica)

    def _configuration(self, settings: dict[str, Any]) -> dict[str, Any]:
        engine = {
            "name": "engine",
            "url": f"http://127.0.0.1:{self.engine.record['port']}",
            "max_inflight": CAP,
            "kv_tokens": 100_000,
        }
        return {
            "listen": {"port": 0},
            "admin": {"port": 0},
            "engines": [engine],
            "lanes": [{"name": "interactive", "ttft_slo": "10s"}],
            "retries": {"ticket_key_env": "CLUSTER_TICKETS"},
            "cluster": {"store": self.redis.url, **settings.pop("cluster", {})},
            **settings,
        }

    def _start(self) -> Replica:
        self._started += 1
        arguments = ("serve", "--config", str(self._config), "--json")
        return Replica(self.folder, f"replica-{self._started}", *arguments, says="admin_url")

    def restart(self, index: int) -> None:
        self.replicas[index] = self._start()
        await_ready(self.replicas[index])

    def stats(self) -> dict[str, Any]:
        record: dict[str, Any] = page(f"http://127.0.0.1:{self.engine.record['port']}/stats")
        return record

    def running(self) -> int:
        return int(self.stats()["running"]) + int(self.stats()["waiting"])

    def most(self) -> int:
        """Return the most that the engine ever had at once."""
        return int(self.stats()["peak_running_and_waiting"])

    def close(self) -> None:
        for each in [*self.replicas, self.engine]:
            with contextlib.suppress(ProcessLookupError):
                each.send(signal.SIGCONT)
            each.kill()
        self.redis.kill()


class Crowd:
    """So many clients, each of one port, asking again when its answer is there or its hint is over."""

    def __init__(self, at: Callable[[int], int], clients: int, max_tokens: int = 20) -> None:
        self._at, self._clients, self._max_tokens = at, clients, max_tokens
        self.statuses: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._clients)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, number: int) -> None:
        asked = 0
        while True:
            asked += 1
            try:
                answer = await ask(self._at(number), f"client {number} asks {asked}", self._max_tokens)
            except (OSError, EOFError, TimeoutError):
                answer = Answer(0, 0.2, "")
            self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
            await asyncio.sleep(answer.wait_s)


def await_ready(process: Process) -> None:
    """Return when it has said where it listens."""
    by = time.monotonic() + _WITHIN_S
    while not process.is_ready():
        assert process.process.poll() is None, process.events()
        assert time.monotonic() < by, process.events()
        time.sleep(0.05)


async def until(holds: Callable[[], bool], within_s: float) -> float:
    """Wait until this holds and return how long that took; AssertionError when it does not."""
    began = time.monotonic()
    while not await asyncio.to_thread(holds):
        assert time.monotonic() - began < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.05)
    return time.monotonic() - began
