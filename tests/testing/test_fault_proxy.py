"""The fault proxy passes bytes on unchanged, or breaks them exactly as told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from millgate.testing import NO_FAULTS, FaultProxy, Faults

TEXT = bytes(range(256)) * 64


class Echo:
    """A server that sends back what it gets; counts the reads."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended = asyncio.Event()
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                self.pieces.append(piece)
                writer.write(piece)
                await writer.drain()
        self.ended.set()
        writer.close()


Relayed = tuple[FaultProxy, Echo, asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def relayed(to_server: Faults = NO_FAULTS, to_client: Faults = NO_FAULTS) -> AsyncIterator[Relayed]:
    echo = Echo()
    echo.server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with FaultProxy(echo.server.sockets[0].getsockname()[1]) as proxy:
        proxy.to_server, proxy.to_client = to_server, to_client
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, echo, reader, writer
        writer.close()
    echo.server.close()


def relay(sent: bytes, to_server: Faults = NO_FAULTS, to_client: Faults = NO_FAULTS) -> tuple[bytes, bool]:
    """Send, half-close, and return what came back and whether the connection was reset."""

    async def body() -> tuple[bytes, bool]:
        got = b""
        async with relayed(to_server, to_client) as (_proxy, _echo, reader, writer):
            writer.write(sent)
            writer.write_eof()
            try:
                while piece := await asyncio.wait_for(reader.read(65536), 5):
                    got += piece
            except ConnectionResetError:
                return got, True
        return got, False

    return asyncio.run(body())


def test_without_faults_every_byte_and_the_end_pass() -> None:
    assert relay(TEXT) == (TEXT, False)


def test_slices_change_nothing_but_the_pieces() -> None:
    assert relay(TEXT[:300], Faults(slice_bytes=7), Faults(slice_bytes=1)) == (TEXT[:300], False)


def test_corruption_falls_on_its_byte() -> None:
    got, _ = relay(TEXT[:100], to_client=Faults(corrupt_at=42))
    assert [at for at in range(100) if got[at] != TEXT[at]] == [42]


def test_a_limit_ends_cleanly_after_its_bytes() -> None:
    assert relay(TEXT, to_client=Faults(limit_bytes=1000)) == (TEXT[:1000], False)


def test_a_reset_cuts_after_its_bytes() -> None:
    got, reset = relay(TEXT, to_server=Faults(reset_after_bytes=1000))
    assert reset
    assert len(got) <= 1000


def test_latency_delays_without_slowing_down() -> None:
    began = time.monotonic()
    assert relay(TEXT * 20, Faults(latency_s=0.1)) == (TEXT * 20, False)
    assert time.monotonic() - began >= 0.1


def test_the_rate_is_bounded() -> None:
    began = time.monotonic()
    relay(TEXT[:1000], to_client=Faults(bytes_per_s=10_000))
    assert time.monotonic() - began >= 0.09


def test_a_black_hole_swallows_and_healing_ends_it() -> None:
    async def body() -> None:
        async with relayed(Faults(blackhole=True)) as (proxy, echo, reader, writer):
            writer.write(b"lost")
            await asyncio.sleep(0.05)
            assert echo.pieces == []
            proxy.heal()
            writer.write(b"kept")
            assert await reader.read(10) == b"kept"
            assert (proxy.to_server_bytes, proxy.to_client_bytes) == (4, 4)

    asyncio.run(body())


def test_refused_connections_are_reset_and_counted() -> None:
    async def body() -> None:
        async with relayed() as (proxy, _echo, _reader, _writer):
            proxy.accepting = False
            reader, _other = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            assert proxy.connected == 2

    asyncio.run(body())


def test_a_reset_by_the_client_reaches_the_server_as_an_end() -> None:
    async def body() -> None:
        async with relayed() as (proxy, echo, reader, writer):
            writer.write(b"x")
            await reader.read(1)
            writer.transport.abort()
            await asyncio.wait_for(echo.ended.wait(), 5)
            async with asyncio.timeout(5):
                while proxy.open:  # noqa: ASYNC110 - the kit tells it as a number
                    await asyncio.sleep(0.001)

    asyncio.run(body())


def test_cut_resets_both_sides() -> None:
    async def body() -> None:
        async with relayed() as (proxy, echo, reader, writer):
            writer.write(b"x")
            await reader.read(1)
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            await asyncio.wait_for(echo.ended.wait(), 5)

    asyncio.run(body())


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_that_is_being_made_when_the_proxy_stops_ends_with_it(turns: int) -> None:
    async def scene() -> bytes:
        async with relayed() as (proxy, _echo, _reader, _writer):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.wait_for(proxy.stop(), 10.0)
            with contextlib.suppress(ConnectionError):
                return await asyncio.wait_for(reader.read(1), 10.0)
            writer.close()
            return b""

    assert asyncio.run(scene()) == b""
