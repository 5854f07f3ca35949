"""An engine, a gate of two workers before it, and a way to start more of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.workers.stand import CAP, Engine, Gate, Start


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    started = Engine(tmp_path_factory.mktemp("engine") / "stderr.txt")
    yield started
    started.close()


@pytest.fixture(scope="module")
def gate(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    started = Gate(engine.url, tmp_path_factory.mktemp("gate") / "stderr.txt", cap=CAP)
    try:
        yield started.begin()
    finally:
        started.close()


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Iterator[Start]:
    started: list[Gate] = []

    def begin(*more: str) -> Gate:
        started.append(Gate(engine.url, tmp_path / f"stderr-{len(started)}.txt", *more, cap=CAP))
        return started[-1]

    yield begin
    for each in started:
        each.close()
