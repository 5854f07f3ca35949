"""A client that reads slowly is told of, holds little, and gets everything when it reads on."""

import asyncio
import socket
import ssl
import time

import pytest
import trustme

from http1.server.wire import PATIENCE_S, Client, Recorder, Stand, get, ignore, run, serving, until
from millgate.http1.server import Exchange, ServerLimits
from millgate.http1.server.wire import Wire
from millgate.http1.wire.outbox import Outbox
from millgate.sockets.listening import notice_silence

PIECE = b"x" * 1000


async def stalled(stand: Stand) -> tuple[Client, int]:
    """Stream to a client that does not read, until it is called slow; return how much was written."""
    client = await stand.connect(receive_bytes=4096)
    client.send(get())
    await until(lambda: stand.application.exchanges)
    exchange = stand.application.exchanges[0]
    exchange.start(200, [])
    written_bytes = 0
    while not stand.application.slow:
        exchange.write(PIECE)
        written_bytes += len(PIECE)
        await asyncio.sleep(0)
    return client, written_bytes


def test_a_stalled_reader_is_told_of_within_kilobytes() -> None:
    """Buffer, kernel and the client's own window together: other servers take four megabytes."""

    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            _client, written_bytes = await stalled(stand)
            assert written_bytes < 400_000

    run(body())


def test_a_reader_that_catches_up_is_told_of_and_misses_nothing() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client, written_bytes = await stalled(stand)
            reading = asyncio.ensure_future(client.answer())
            await until(lambda: stand.application.slow == [True, False])
            exchange = stand.application.exchanges[0]
            exchange.write(b"end")
            exchange.finish()
            got = await reading
            assert got.whole
            assert len(got.body) == written_bytes + 3

    run(body())


def test_the_next_request_waits_until_the_answer_before_has_left() -> None:
    """Else a client that never reads could have any number of answers made for it."""

    async def body() -> None:
        async with serving(
            Recorder(answering=lambda exchange, _body: exchange.respond(200, [], b"x" * 1_000_000))
        ) as stand:
            client = await stand.connect(receive_bytes=4096)
            client.send(get() * 20)
            await asyncio.sleep(0.05)
            assert len(stand.application.bodies) == 1
            for _answer in range(20):
                assert len((await client.answer()).body) == 1_000_000

    run(body())


def test_a_slow_client_that_is_cut_does_not_get_a_whole_answer() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client, _written_bytes = await stalled(stand)
            stand.application.exchanges[0].abort()
            await until(lambda: stand.server.connections == 0)
            assert not (await client.rest()).endswith(b"0\r\n\r\n")

    run(body())


STALL_S = 0.4
LARGE = b"x" * 300_000


def answers_large(exchange: Exchange, _body: bytes) -> None:
    exchange.respond(200, [], LARGE)


def read_slowly(
    port: int, request: bytes, upto_bytes: int, context: ssl.SSLContext | None = None
) -> tuple[int, float]:
    """Read an answer up to so many bytes, a little at a time, and then no more; return what has come, and in how many seconds."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", port))
        spoken = sock if context is None else context.wrap_socket(sock, server_hostname="localhost")
        with spoken:
            spoken.sendall(request)
            began_at, got_bytes = time.monotonic(), 0
            while got_bytes < upto_bytes and (data := spoken.recv(len(LARGE) // 100)):
                got_bytes += len(data)
                time.sleep(STALL_S / 20)
            took_s = time.monotonic() - began_at
            if upto_bytes < len(LARGE):
                time.sleep(3 * STALL_S)
    return got_bytes, took_s


@pytest.mark.parametrize("lines", [(), (b"Connection: close",)], ids=["kept", "closed"])
@pytest.mark.parametrize("spoken", ["plain", "tls"])
def test_a_client_that_reads_all_the_time_is_never_cut_however_slowly(
    spoken: str, lines: tuple[bytes, ...]
) -> None:
    """Nothing of the answer is written after its first moment, and the transport's buffer falls below its low mark at its end."""

    async def body() -> None:
        ca = trustme.CA()
        there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        ca.issue_cert("localhost").configure_cert(there)
        ca.configure_trust(here)
        async with serving(Recorder(answering=answers_large), write_stall_s=STALL_S) as stand:
            port, context = stand.port, None
            if spoken == "tls":
                port, context = await stand.server.listen("127.0.0.1", 0, there), here
            request = get(b"/", *lines)
            got_bytes, took_s = await asyncio.to_thread(read_slowly, port, request, len(LARGE), context)
            assert got_bytes >= len(LARGE)
            assert took_s > 2 * STALL_S

    run(body())


def test_a_client_that_stops_reading_in_mid_answer_is_cut() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=answers_large), write_stall_s=STALL_S) as stand:
            half = asyncio.to_thread(read_slowly, stand.port, get(), len(LARGE) // 2)
            reading = asyncio.ensure_future(half)
            await until(lambda: stand.server.connections == 1)
            began_at = time.monotonic()
            await until(lambda: stand.server.connections == 0)
            cut_after_s = time.monotonic() - began_at
            assert not reading.done(), "it is the server that has closed"
            _got_bytes, took_s = await reading
            assert took_s < cut_after_s < took_s + 2 * STALL_S

    run(body())


def test_a_client_that_has_sent_more_than_it_may_can_read_its_last_answer_slowly() -> None:
    """What it has sent is dropped, and its connection lingers: with an answer to read, for as long as it reads."""

    async def body() -> None:
        application = Recorder(answering=answers_large)
        async with serving(
            application, write_stall_s=STALL_S, linger_s=0.2, kept_pipelined_bytes=100
        ) as stand:
            requests = get() + get(b"/" + b"a" * 200)
            got_bytes, took_s = await asyncio.to_thread(read_slowly, stand.port, requests, len(LARGE))
            assert got_bytes >= len(LARGE)
            assert took_s > 2 * STALL_S
            assert len(application.bodies) == 1

    run(body())


@pytest.mark.parametrize("told", [b"", bytes(128)], ids=["nothing", "zeros"])
def test_where_the_system_does_not_say_what_a_client_has_taken_what_is_left_says_it(told: bytes) -> None:
    """An older kernel, a sandbox, a Mac: a client that read all the time was cut after `limits.write_stall`."""

    class Kernel:
        def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
            return told

    class Transport(asyncio.Transport):
        left_bytes = 0

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

        def get_extra_info(self, name: str, default: object = None) -> object:
            return Kernel() if name == "socket" else default

        def get_write_buffer_size(self) -> int:
            return self.left_bytes

    wire, transport = Wire(Outbox(lambda _callback: None)), Transport()
    wire.attach(transport, ServerLimits())
    transport.left_bytes = 3000
    before = wire.taken_bytes
    transport.left_bytes = 2000

    assert wire.taken_bytes > before


@pytest.mark.parametrize(("write_stall_s", "unheard_s"), [(30.0, 60), (600.0, 600)])
def test_the_kernel_gives_a_client_no_less_time_than_its_operator_does(
    write_stall_s: float, unheard_s: int
) -> None:
    """With `limits.write_stall: 10m` a client may read nothing for so long, and its machine acknowledges nothing then."""

    class Transport(asyncio.Transport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

        def get_extra_info(self, name: str, default: object = None) -> object:
            return sock if name == "socket" else default

    with socket.socket() as sock:
        notice_silence(sock)  # by its listener
        Wire(Outbox(lambda _callback: None)).attach(Transport(), ServerLimits(write_stall_s=write_stall_s))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * unheard_s
