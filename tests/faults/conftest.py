"""One gateway process and one scripted engine for the whole folder; after every test the gateway must be as before.

After each test nothing is in flight, every attempt has had one outcome, and descriptors and memory are back.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.upstream import FakeUpstream

from faults.baseline import serve_one, unchanged, warm_up
from faults.process import GateProcess
from faults.starter import Starter

SAID_BY_CLIENTS = ("sk-secret", "private-prompt", "unmistakable", "evil", "jndi", "Bearer")
"""Parts of what the tests of this folder send in bodies, names and credentials: none of it belongs into the log."""


@pytest.fixture(scope="session")
def the_upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def the_gate(the_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GateProcess]:
    the_upstream.on_loop(the_upstream.forget)  # a test with a gate of its own may have left it silent
    gate = GateProcess(the_upstream.url, errors=tmp_path_factory.mktemp("gate") / "stderr.txt")
    try:
        warm_up(gate)
        yield gate
    finally:
        code = gate.stop()
    assert code == 0, gate.errors()
    assert "uncaught failure" not in gate.errors(), gate.errors()
    assert not [said for said in SAID_BY_CLIENTS if said in gate.errors()], "row 28"


@pytest.fixture
def upstream(the_upstream: FakeUpstream) -> FakeUpstream:
    """The engine behind the gate; answers politely unless told otherwise."""
    the_upstream.on_loop(the_upstream.forget)
    return the_upstream


@pytest.fixture
def gate(the_gate: GateProcess, upstream: FakeUpstream) -> Iterator[GateProcess]:
    """The gateway, held against what it was before the test."""
    serve_one(the_gate)
    upstream.on_loop(upstream.forget)
    with unchanged(the_gate, upstream):
        yield the_gate


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Start gateways with settings of their own; they end with the test."""
    starter = Starter(tmp_path)
    yield starter
    starter.stop()
