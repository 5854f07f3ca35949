"""At 300 descriptors: clients of all doors together leave room for the admin door, health looks and engines."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lab.upstream import FakeUpstream

from faults.asking import ask
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import chat
from millgate.sockets.descriptors import RAISED_TO

OPEN_FILES = 300
PATIENT = {"limits.header_deadline": "1m", "limits.idle": "1m", "line.port": "0"}


@contextmanager
def silent(ports: list[int], clients: int) -> Iterator[list[socket.socket]]:
    """Let so many clients connect, to each port in turn, and say nothing."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[number % len(ports)]), 10.0))
            for number in range(clients)
        ]


def line_port(gate: GateProcess) -> int:
    return urlsplit(f"//{gate.ready['line_address']}").port or 0


def connected(gate: GateProcess) -> float:
    page = gate.ask("/metrics")[1].decode()
    line = next(line for line in page.splitlines() if line.startswith("millgate_door_connections "))
    return float(line.split()[1])


def test_400_silent_clients_on_both_doors_leave_the_admin_door_and_the_engine_within_reach(
    start: Starter, upstream: FakeUpstream
) -> None:
    gate = start(upstream.url, settings=PATIENT, open_files=OPEN_FILES)
    early = [gate.connect() for _ in range(8)]
    until(lambda: connected(gate) == len(early))
    asked = len(upstream.received)
    with silent([gate.port, line_port(gate)], 400) as clients:
        for client in clients[-2:]:
            client.settimeout(10.0)
        refusals = [client.recv(4096) for client in clients[-2:]]
        assert refusals[0].startswith(b"HTTP/1.1 503 ")
        assert b"yield" in refusals[1]
        with socket.create_connection(
            ("127.0.0.1", urlsplit(gate.ready["admin_url"]).port or 0), 10.0
        ) as admin:
            admin.sendall(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            assert admin.recv(4096).startswith(b"HTTP/1.1 200 ")
        for number, talk in enumerate(early):
            talk.ask(chat(f"question {number}", stream=True))
        for talk in early:
            assert talk.head().status == 200
        assert len(upstream.received) == asked + len(early)
        assert gate.descriptors < OPEN_FILES - 40
    gate.hang_up()
    until(lambda: ask(gate).status == 200, what="the gate has room again")


def test_400_silent_connections_to_the_admin_door_leave_clients_and_the_engine_within_reach(
    start: Starter, upstream: FakeUpstream
) -> None:
    gate = start(upstream.url, settings=PATIENT, open_files=OPEN_FILES)
    early = gate.connect()
    until(lambda: connected(gate) == 1)
    with silent([urlsplit(gate.ready["admin_url"]).port or 0], 400) as operators:
        # The one that has been silent for the longest makes room, long before its own ten seconds are over.
        operators[0].settimeout(8.0)
        with suppress(ConnectionError):
            assert operators[0].recv(1) == b""
        early.ask(chat("early"))
        assert early.answer().status == 200
        for number in range(8):
            assert ask(gate, content=f"question {number}").status == 200
        assert gate.descriptors < OPEN_FILES - 40


@pytest.mark.parametrize("workers", [1, 2])
def test_the_usual_soft_limit_of_a_host_is_no_limit_for_a_gate_or_its_workers(
    start: Starter, upstream: FakeUpstream, workers: int
) -> None:
    """1,024 of the 524,288 files that the host allows were room for 462 clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    try:
        gate = start(upstream.url, settings={**PATIENT, "workers": str(workers)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    main = gate.process.pid
    children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
    assert len(children) == (workers if workers > 1 else 0)
    limits = {resource.prlimit(process, resource.RLIMIT_NOFILE) for process in (main, *map(int, children))}
    assert limits == {(min(hard, RAISED_TO) if hard > 0 else RAISED_TO, hard)}
