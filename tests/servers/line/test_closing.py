"""How the line door closes connections: every reply that was made reaches its client, and nothing stays for good."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

from gateway.harness import chat, run, until
from millgate.dialects.line import LineReply, Status, read_reply
from millgate.servers.line import LineLimits
from millgate.sockets.descriptors import LINGERING
from servers.line.stand import ping, upload
from servers.line.talk import Gate, LineStand, line_standing


def line_upload(job: str = "J", **more: Any) -> bytes:
    return upload(chat("hello"), job, 64, **more)


async def slow_peer(stand: LineStand) -> socket.socket:
    """Connect a client that takes a few kilobytes at a time."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", stand.gateway.line_port))
    return sock


async def read_all(sock: socket.socket) -> list[LineReply]:
    data, loop = b"", asyncio.get_running_loop()
    while piece := await loop.sock_recv(sock, 65536):
        data += piece
    return [read_reply(line) for line in data.splitlines()]


def test_a_peer_that_is_closed_while_it_sends_on_reads_every_reply_and_why() -> None:
    """A close with unread input is a reset, and a reset destroys what is still on its way."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with line_standing(limits=LineLimits(jobs=30, linger_s=60.0)) as stand:
            with await slow_peer(stand) as sock:
                jobs = b"".join([line_upload(job=f"J{number}") for number in range(40)])
                sending = asyncio.create_task(loop.sock_sendall(sock, jobs + ping() * 20_000))
                await asyncio.sleep(0.3)
                said = await read_all(sock)
                assert said[-1].need == "too_many_jobs"
                sending.cancel()
            await until(lambda: stand.door.connections == 0)

    run(body())


def test_a_drain_waits_for_a_peer_that_reads_its_result_slowly_and_sends_on() -> None:
    """A job that was executed and whose client never hears of it is executed twice."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        gate = Gate(content="x" * 3_000_000)
        # On a busy machine it takes seconds to read what the kernel holds, and no time of the gate's may be over by then.
        async with line_standing(gate, limits=LineLimits(write_stall_s=60.0, linger_s=60.0)) as stand:
            stand.gateway.settings = replace(stand.gateway.settings, drain_grace_s=60.0)
            with await slow_peer(stand) as sock:
                await loop.sock_sendall(sock, line_upload(want_result=True))
                await until(lambda: gate.running == 1)
                drain = asyncio.create_task(stand.gateway.drain())
                gate.go.set()
                # Before the job is done its connection is cut for so many pings whose replies are not read.
                await until(lambda: gate.served == 1 and not stand.snapshot.engines[0].running)
                pings = asyncio.create_task(_ping_on(sock))
                await asyncio.sleep(1.5)  # longer than a drain waits where nothing is under way
                assert not drain.done()
                said = await read_all(sock)
                assert [each.status for each in said[-2:]] == [Status.DONE, Status.YIELD]
                pings.cancel()
                await asyncio.wait([pings])
            await drain

    async def _ping_on(sock: socket.socket) -> None:
        while True:
            await asyncio.get_running_loop().sock_sendall(sock, ping() * 10)
            await asyncio.sleep(0.001)

    run(body())


def test_a_flood_of_connections_over_the_cap_is_cut_and_none_of_it_stays() -> None:
    """Those that are told linger for a second: of a flood so many would hold more descriptors than the cap leaves."""

    async def body() -> None:
        async with line_standing(limits=LineLimits(connections=1)) as stand:
            first = await stand.peer()
            first.send(ping())
            await first.reply()
            flood = [await stand.peer() for _ in range(80)]
            await until(lambda: stand.door.refused_connections == 80)
            assert stand.door.connections <= 1 + LINGERING + 2
            await until(lambda: stand.door.connections == 1)
            told = [peer for peer in flood if await peer.reader.read()]
            assert len(told) >= LINGERING
            first.send(ping())
            assert (await first.reply()).status is Status.OK

    run(body())
