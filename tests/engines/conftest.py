"""One engine of each kind for the whole folder, restarted after tests that end it; a gate of its own for each test.

Without an engine every test is skipped and says how to have one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.findings import all_findings
from engines.process import (
    LLAMA,
    LLAMA_POOLING,
    SGLANG,
    SGLANG_CACHING,
    SGLANG_POOLING,
    VLLM,
    VLLM_CACHING,
    VLLM_POOLING,
    Engine,
    Kind,
)
from faults.process import GateProcess
from faults.starter import Starter

# The product's defaults where the fault tests have short ones.
DEFAULTS = {
    "limits.body_deadline": "30s",
    "limits.header_deadline": "10s",
    "limits.idle": "75s",
    "limits.upstream_connect": "5s",
    "limits.upstream_idle": "1m",
    "limits.write_stall": "30s",
    "lanes.*.ttft_slo": "10s",
}


class Bench:
    """An engine that serves, and gates in front of it."""

    def __init__(self, engine: Engine, start: Starter) -> None:
        self.engine = engine
        self._start = start

    def gate(self, *, cap: int, **settings: str) -> GateProcess:
        """Start `millgate serve` with defaults, but for the cap and for what is named (a double underscore is a dot)."""
        named = {name.replace("__", "."): value for name, value in settings.items()}
        return self._start(self.engine.url, max_inflight=cap, settings={**DEFAULTS, **named})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found := all_findings():
        terminalreporter.section("what the engines did")
        for line in found:
            terminalreporter.write_line(line)


def _told(kind: Kind) -> str:
    told = os.environ.get(kind.variable, "")
    if not told:
        pytest.skip(
            f"no {kind.name}: {kind.variable} names neither a command nor an address (see docs/how-to)"
        )
    return told


@pytest.fixture(scope="session", params=[VLLM, SGLANG, LLAMA], ids=lambda kind: kind.name)
def the_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    kind: Kind = request.param
    engine = Engine(kind, _told(kind), tmp_path_factory.mktemp("engine") / "log.txt")
    yield engine
    engine.stop()


@pytest.fixture(
    scope="module", params=[VLLM_POOLING, SGLANG_POOLING, LLAMA_POOLING], ids=lambda kind: kind.name
)
def the_pooling_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    kind: Kind = request.param
    engine = Engine(kind, _told(kind), tmp_path_factory.mktemp("pooling") / "log.txt")
    yield engine
    engine.stop()


@pytest.fixture(params=[VLLM_CACHING, SGLANG_CACHING, LLAMA], ids=lambda kind: kind.name)
def caching_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """The same as `bench` before an engine whose prefix cache holds a few conversations, or, as llama-server's, all of them."""
    kind: Kind = request.param
    engine, starter = Engine(kind, _told(kind), tmp_path / "engine.txt"), Starter(tmp_path)
    if not engine.owned:
        pytest.skip("an engine given by its address has the cache that it has")
    yield Bench(engine.up(), starter)
    starter.stop()
    engine.stop()


@pytest.fixture
def pooling_bench(the_pooling_engine: Engine, tmp_path: Path) -> Iterator[Bench]:
    """The same as `bench` before an engine that computes embeddings."""
    starter = Starter(tmp_path)
    yield Bench(the_pooling_engine.up(), starter)
    starter.stop()


@pytest.fixture
def bench(the_engine: Engine, tmp_path: Path) -> Iterator[Bench]:
    """An idle engine and a way to put gates before it; gates end whole, each with 0 and without a traceback."""
    starter = Starter(tmp_path)
    yield Bench(the_engine.up(), starter)
    starter.stop()


@pytest.fixture
def own_bench(bench: Bench) -> Bench:
    """The same, for tests that stop or kill the engine."""
    if not bench.engine.owned:
        pytest.skip("an engine given by its address is not ours to stop")
    return bench
