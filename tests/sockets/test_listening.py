"""Sockets that several processes share: one address, taken as a whole, and nothing lost when one of them stops accepting."""

import asyncio
import socket
from typing import cast

import pytest
import uvloop

from millgate.sockets.listening import Listeners, listening_socket, shared_sockets


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


def kernel_options(sock: socket.socket) -> tuple[int, ...]:
    """Return what tells the kernel when a connection is over: whether it probes, from when on, how often, and how long it tries to send."""
    named = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    probes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return probes, *(sock.getsockopt(socket.IPPROTO_TCP, option) for option in named)


def test_a_client_whose_machine_is_gone_without_a_word_is_noticed_within_a_minute() -> None:
    """A phone without a network: the engine went on for it, a stream for a quarter of an hour and a whole answer to its end."""

    class Kept(Greeter):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            told.append(kernel_options(transport.get_extra_info("socket")))
            transport.close()

    async def body() -> None:
        door = Listeners(lambda: Kept(b""), Greeter(b""), handshake_s=1.0, backlog=16)
        port = await door.accept(await listening_socket("127.0.0.1", 0, 16), None)
        await asyncio.to_thread(call, port)
        probes, idle_s, every_s, times, unheard_ms = told.pop()
        assert probes
        assert idle_s + every_s * times <= 60
        assert unheard_ms == 60_000
        door.close()
        await door.wait_closed()

    told: list[tuple[int, ...]] = []
    asyncio.run(body())
    uvloop.run(body())
