"""Tries every query of the dashboard: a gate in overload, a real Prometheus that scrapes it, and what each panel then shows.

Everything is a process on loopback: three engines, one of which fails at times and one of which stands for a provider, the gate,
Prometheus with the shipped rules. Time is real.
"""

import contextlib
import hashlib
import json
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from lab.dashboard.panels import ROWS, DashboardPanel, Query
from lab.dashboard.users import KEYS, Users

RULES: Final = Path(__file__).parents[2] / "deploy/prometheus/millgate.rules.yaml"
_STARTS_WITHIN_S: Final = 30.0
_VARIABLES: Final = {"$job": "millgate", "$instance": ".*", "$__rate_interval": "15s"}


class Line(NamedTuple):
    """One line of a graph: its labels, and its samples as pairs of time and value."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


class Shown(NamedTuple):
    """What one query of a panel has shown."""

    row: str
    panel: DashboardPanel
    query: Query
    lines: list[Line]


def record(seconds: float, users: int, seed: int) -> list[Shown]:
    """Run the overload for so many seconds and return what every query shows of it; raises RuntimeError without Prometheus."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise RuntimeError("prometheus is not on this machine (Debian: apt-get install prometheus)")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as processes:
        folder = Path(name)
        engines = [_free_port() for _ in range(3)]
        gate, admin, database = _free_port(), _free_port(), _free_port()
        for number, port in enumerate(engines):
            processes.enter_context(_running(folder, "engine", *_engine(number, port)))
            _await(port)
        (folder / "gate.yaml").write_text(_gate(gate, admin, engines), encoding="utf-8")
        processes.enter_context(_running(folder, "serve", "--config", str(folder / "gate.yaml")))
        _await(admin)
        (folder / "prometheus.yaml").write_text(_scrape(admin), encoding="utf-8")
        processes.enter_context(_prometheus(prometheus, folder, database))
        _await(database)
        start = time.time()
        crowd = Users(gate, users, seed)
        crowd.start()
        time.sleep(seconds)
        end = time.time()
        shown = list(_shown(database, start, end))
        crowd.stop()
    return shown


def _engine(number: int, port: int) -> list[str]:
    troubles = ["--fail-rate", "0.05"] if number == 1 else []
    pace = ["--time-scale", "2", "--tokens-per-event", "4", "--enable-prefix-caching"]
    return ["--port", str(port), *pace, *troubles]


def _gate(port: int, admin: int, engines: list[int]) -> str:
    config = {
        "listen": {"port": port},
        "admin": {"port": admin},
        "engines": [
            {"name": "gpu-0", "url": f"http://127.0.0.1:{engines[0]}", "models": ["open"]},
            {"name": "gpu-1", "url": f"http://127.0.0.1:{engines[1]}", "models": ["open"]},
            {
                "name": "provider",
                "url": f"http://127.0.0.1:{engines[2]}",
                "models": ["provider"],
                "account": {"rpm": 600},
            },
        ],
        "lanes": [
            {"name": "interactive", "ttft_slo": "2s", "tpot_slo": "60ms", "max_queue": 8},
            {"name": "long_context", "takes": "long_prompts", "over": "200ms"},
            {"name": "throughput", "takes": "batch", "over": "3s"},
        ],
        "tenants": [
            {"name": name, "keys": [hashlib.sha256(key.encode()).hexdigest()]} for name, key in KEYS.items()
        ],
        "quotas": [{"name": "acme-rpm", "tenant": "acme", "rpm": 400}],
    }
    return json.dumps(config)


def _scrape(admin: int) -> str:
    return json.dumps(
        {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": "millgate", "static_configs": [{"targets": [f"127.0.0.1:{admin}"]}]}
            ],
        }
    )


def _running(folder: Path, *arguments: str) -> contextlib.AbstractContextManager[None]:
    return _process(folder, [sys.executable, "-m", "millgate", *arguments])


def _prometheus(binary: str, folder: Path, port: int) -> contextlib.AbstractContextManager[None]:
    options = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    return _process(folder, [binary, *options])


@contextlib.contextmanager
def _process(folder: Path, command: list[str]) -> Iterator[None]:
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(port: int) -> None:
    by = time.monotonic() + _STARTS_WITHIN_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        if time.monotonic() > by:
            raise RuntimeError(f"nothing listens on port {port} after {_STARTS_WITHIN_S:.0f} s")
        time.sleep(0.05)


def _shown(port: int, start: float, end: float) -> Iterator[Shown]:
    for row in ROWS:
        for panel in row.panels:
            for query in panel.queries:
                yield Shown(row.title, panel, query, _ask(port, query.expr, start, end))


def _ask(port: int, expr: str, start: float, end: float) -> list[Line]:
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    asked = urlencode({"query": expr, "start": start, "end": end, "step": 1})
    with urlopen(f"http://127.0.0.1:{port}/api/v1/query_range?{asked}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    lines = [Line(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in result]
    return [line for line in lines if any(math.isfinite(value) for _at, value in line.samples)]


def report(shown: list[Shown]) -> tuple[str, list[str]]:
    """Return a line for each query, and the titles of panels of which a query shows nothing."""
    lines, empty = [], []
    for row, panel, query, found in shown:
        values = [value for line in found for _at, value in line.samples if math.isfinite(value)]
        reach = f"{min(values):.4g} .. {max(values):.4g}" if values else "EMPTY"
        lines.append(f"{row:24} {panel.title:36} {query.legend:26} {len(found):3} lines  {reach}")
        if not values:
            empty.append(f"{panel.title}: {query.legend}")
    return "\n".join(lines), empty
