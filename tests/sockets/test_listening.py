"""Sockets that several processes share: one address, taken as a whole, and nothing lost when one of them stops accepting."""

import asyncio
import socket
from typing import cast

import pytest
import uvloop

from millgate.sockets.listening import Listeners, shared_sockets


class Greeter(asyncio.Protocol):
    """Says its name to whoever connects."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass
        own.write(self._name)
        own.close()

    def meet(self) -> None:
        raise AssertionError("there is no TLS here")

    def met(self, protocol: object) -> None:
        raise AssertionError("there is no TLS here")


def listeners(name: bytes) -> Listeners:
    return Listeners(lambda: Greeter(name), Greeter(name), handshake_s=1.0, backlog=16)


def call(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as client:
        return client.recv(16)


def test_all_sockets_have_the_one_port_that_was_free() -> None:
    sockets = shared_sockets("127.0.0.1", 0, 3)
    ports = {sock.getsockname()[1] for sock in sockets}
    for sock in sockets:
        sock.close()
    assert len(ports) == 1
    assert ports != {0}


def test_an_address_that_others_share_is_taken() -> None:
    first = shared_sockets("127.0.0.1", 0, 2)
    port = first[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        shared_sockets("127.0.0.1", port, 2)
    for sock in first:
        sock.close()
    for sock in shared_sockets("127.0.0.1", port, 2):
        sock.close()


def test_what_has_connected_before_one_stops_is_accepted_by_the_one_that_goes_on() -> None:
    async def body() -> None:
        (shared,) = shared_sockets("127.0.0.1", 0, 1)
        port = shared.getsockname()[1]
        waiting = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        first, second = listeners(b"first"), listeners(b"second")
        own = shared.dup()
        await first.accept(own, None)
        await second.accept(shared.dup(), None)
        first.stop(own)
        await first.wait_closed()
        assert await asyncio.to_thread(call, port) == b"second"
        assert await asyncio.to_thread(waiting.recv, 16) in {b"first", b"second"}
        waiting.close()
        second.close()
        await second.wait_closed()
        shared.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())
