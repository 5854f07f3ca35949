"""The Redis overlay as plain processes: a Redis, two gates and one engine, with the configuration that the pods would have."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.test_processes import ask, listens
from deploy.test_kubernetes import FOLDER, SECRETS
from ports import free_port

CAP = 8
USERS = 32
"""In a closed loop, half of them at each gate: four times what the engine may run."""
RUNS_S = 6.0
STARTS_WITHIN_S = 60.0
KEY = "a-key-of-the-test"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
CHAT = json.dumps(
    {
        "model": "any",
        "stream": True,
        "max_tokens": 60,
        "messages": [{"role": "user", "content": "Hello"}],
    }
).encode()

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not on this machine"),
]


@contextmanager
def process(folder: Path, *command: str) -> Iterator[None]:
    with (folder / "output.txt").open("ab") as output:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **SECRETS}
        )
    try:
        yield
    finally:
        running.kill()
        running.wait()


def await_port(port: int, folder: Path) -> None:
    by = time.monotonic() + STARTS_WITHIN_S
    while not listens(f"http://127.0.0.1:{port}"):
        assert time.monotonic() < by, (folder / "output.txt").read_text(encoding="utf-8")
        time.sleep(0.05)


def twin_of_pod(number: int, ports: dict[str, int]) -> dict[str, Any]:
    """Return the overlay's configuration with this machine's addresses in place of the cluster's."""
    config: dict[str, Any] = yaml.safe_load((FOLDER / "overlays/redis/gate.yaml").read_text(encoding="utf-8"))
    config["listen"] = {"port": ports[f"gate-{number}"]}
    config["admin"] = {"port": ports[f"admin-{number}"]}
    config["cluster"] |= {"store": f"redis://127.0.0.1:{ports['redis']}/0", "replica": f"gate-{number}"}
    (engine,) = config["engines"]
    del engine["discover"]
    config["engines"] = [engine | {"url": f"http://127.0.0.1:{ports['engine']}", "max_inflight": CAP}]
    config["tenants"][0]["keys"] = [hashlib.sha256(KEY.encode()).hexdigest()]
    return config


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Run the twin and return the port of each part."""
    names = ("redis", "engine", "gate-0", "gate-1", "admin-0", "admin-1")
    found = {name: free_port() for name in names}
    password = SECRETS["MILLGATE_REDIS_PASSWORD"]
    with ExitStack() as parts:
        quiet = ("--save", "", "--appendonly", "no", "--requirepass", password)
        redis = ("redis-server", "--port", str(found["redis"]), "--dir", str(tmp_path), *quiet)
        parts.enter_context(process(tmp_path, *redis))
        engine = ("engine", "--port", str(found["engine"]), "--profile", "llama3-8b_h100_tp1")
        parts.enter_context(process(tmp_path, sys.executable, "-m", "millgate", *engine))
        await_port(found["redis"], tmp_path)
        await_port(found["engine"], tmp_path)
        for number in range(2):
            file = tmp_path / f"gate-{number}.yaml"
            file.write_text(json.dumps(twin_of_pod(number, found)), encoding="utf-8")
            serve = ("-m", "millgate", "serve", "--config", str(file))
            parts.enter_context(process(tmp_path, sys.executable, *serve))
        for number in range(2):
            await_port(found[f"admin-{number}"], tmp_path)
        yield found


class Users:
    """Asks both gates in a closed loop, and counts how the answers went."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.statuses: list[tuple[int, int]] = []
        self.is_over = False
        self._threads = [
            threading.Thread(target=self._live, args=(number % 2, ports[f"gate-{number % 2}"]), daemon=True)
            for number in range(USERS)
        ]
        for thread in self._threads:
            thread.start()

    def _live(self, gate: int, port: int) -> None:
        while not self.is_over:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/chat/completions", CHAT, HEADERS)
            answer = connection.getresponse()
            answer.read()
            self.statuses.append((gate, answer.status))
            wait_ms = float(answer.getheader("retry-after-ms") or 0.0)
            connection.close()
            time.sleep(min(wait_ms / 1000.0, 1.0))

    def end(self) -> None:
        self.is_over = True
        for thread in self._threads:
            thread.join(30.0)


def at_the_engine(url: str) -> float:
    """Return the requests that run or wait, read from one page: between two pages one ends and the next one begins."""
    page = ask(url, "GET", "/metrics")[1].decode()
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum((float(line.split()[-1]) for line in page.splitlines() if line.startswith(gauges)), 0.0)


def admin_gauge(port: int, name: str) -> float:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    token = SECRETS["MILLGATE_ADMIN_TOKEN"]
    connection.request("GET", "/metrics", headers={"authorization": f"Bearer {token}"})
    page = connection.getresponse().read().decode()
    connection.close()
    return sum((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} ")), 0.0)


def test_two_gates_run_what_one_may_and_both_are_served(ports: dict[str, int]) -> None:
    engine = f"http://127.0.0.1:{ports['engine']}"
    admins = [ports["admin-0"], ports["admin-1"]]
    by = time.monotonic() + STARTS_WITHIN_S
    while [admin_gauge(port, "millgate_cluster_replicas") for port in admins] != [2.0, 2.0]:
        assert time.monotonic() < by, "both gates know each other"
        time.sleep(0.1)

    users = Users(ports)
    running = []
    until = time.monotonic() + RUNS_S
    while time.monotonic() < until:
        running.append(at_the_engine(engine))
        time.sleep(0.02)
    users.end()

    # The cap is kept, and it is used.
    assert max(running) == CAP
    served = [sum(1 for at, status in users.statuses if (at, status) == (gate, 200)) for gate in range(2)]
    assert min(served) > 0
    assert [admin_gauge(port, "millgate_cluster_degraded") for port in admins] == [0.0, 0.0]
