"""A store across processes: what it answers comes through, what goes wrong has a name, and a process that ends gives back."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    LeasedShare,
    Line,
    Renewal,
    StoreUnavailableError,
)
from millgate.cluster.socket_store import MOST_STORE_FRAME_BYTES, SocketStore, StoreServer

RENEWAL = Renewal(
    "one",
    0,
    0,
    2.0,
    (Holding("engine/gpu/streams", 16.0, 3.0, 5.0, floor=1.0, lingers_s=60.0),),
    (Line("gpu", 4, 12.5),),
)
PROMPT_S = 30.0

_CHILD = """
import asyncio, sys
from millgate.cluster.contract import Holding, Renewal
from millgate.cluster.socket_store import SocketStore

async def hold():
    store = SocketStore(sys.argv[1], 10.0)
    await store.renew(Renewal("child", 0, 0, 60.0, (Holding("streams:gpu", 16.0, 3.0, 5.0),)))
    print("holding", flush=True)
    await store.close()
    await asyncio.sleep(60.0)

asyncio.run(hold())
"""


class RecordingStore:
    """Answers as it is told and remembers what it was asked."""

    def __init__(self) -> None:
        self.renewals: list[Renewal] = []
        self.left: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.waits_for: asyncio.Event | None = None

    async def renew(self, renewal: Renewal) -> Granted:
        self.renewals.append(renewal)
        if self.waits_for is not None:
            await self.waits_for.wait()
        if self.error is not None:
            raise self.error
        return Granted(
            7, len(self.renewals), 2.0, 1, (LeasedShare("engine/gpu/streams", 8.0),), renewal.lines
        )

    async def leave(self, replica: str, epoch: int) -> None:
        self.left.append((replica, epoch))

    async def close(self) -> None:
        pass


def run(body: Callable[[RecordingStore, StoreServer], Awaitable[None]]) -> None:
    async def served() -> None:
        store = RecordingStore()
        server = StoreServer(store, lets_go_s=0.0)
        await server.start()
        try:
            async with asyncio.timeout(30):
                await body(store, server)
        finally:
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(served())


async def until(truth: Callable[[], object]) -> None:
    by = time.monotonic() + PROMPT_S
    while not truth():
        assert time.monotonic() < by, "this should have become true"
        await asyncio.sleep(0.005)


def test_questions_and_answers_come_through_whole() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        client = SocketStore(server.address, PROMPT_S)

        granted = await client.renew(RENEWAL)
        await client.leave("one", granted.epoch)

        assert granted == Granted(7, 1, 2.0, 1, (LeasedShare("engine/gpu/streams", 8.0),), RENEWAL.lines)
        assert store.renewals == [RENEWAL]
        assert store.left == [("one", 7)]
        await client.close()

    run(body)


def test_an_epoch_that_has_ended_and_a_store_that_fails_are_raised_as_such() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        client = SocketStore(server.address, PROMPT_S)
        store.error = FencedError()
        with pytest.raises(FencedError):
            await client.renew(RENEWAL)
        store.error = StoreUnavailableError("it is being moved")
        with pytest.raises(StoreUnavailableError, match="it is being moved"):
            await client.renew(RENEWAL)
        await client.close()

    run(body)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        client = SocketStore(server.address, 0.05)
        store.waits_for = asyncio.Event()
        with pytest.raises(StoreUnavailableError, match="no answer within"):
            await client.renew(RENEWAL)
        store.waits_for.set()
        patient = SocketStore(server.address, PROMPT_S)
        assert (await patient.renew(RENEWAL)).number == 2
        client._within_s = PROMPT_S
        assert (await client.renew(RENEWAL)).number == 3
        await patient.close()
        await client.close()

    run(body)


def test_without_a_server_the_store_is_unavailable_and_a_new_connection_is_made_when_it_is_back() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        nowhere = SocketStore("millgate-nowhere", PROMPT_S)
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            await nowhere.renew(RENEWAL)

        client = SocketStore(server.address, PROMPT_S)
        await client.renew(RENEWAL)
        await client.close()
        assert (await client.renew(RENEWAL)).number == 2
        assert store.left == []
        await client.close()

    run(body)


def test_a_server_that_ends_fails_what_waits_at_once() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        client = SocketStore(server.address, 60.0)
        store.waits_for = asyncio.Event()
        asked = asyncio.ensure_future(client.renew(RENEWAL))
        await until(lambda: store.renewals)
        await server.close()
        with pytest.raises(StoreUnavailableError, match="has ended"):
            await asked

    run(body)


@pytest.mark.parametrize(
    "sent", [(MOST_STORE_FRAME_BYTES + 1).to_bytes(4), b"\0\0\0\3abc"], ids=["too long", "no question"]
)
def test_a_frame_that_is_none_ends_the_connection(sent: bytes) -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect("\0" + server.address)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        writer.write(sent)
        assert await reader.read() == b""
        assert store.renewals == []
        writer.close()

    run(body)


def test_what_a_process_holds_is_given_back_when_it_ends_and_not_when_its_connection_does() -> None:
    async def body(store: RecordingStore, server: StoreServer) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, server.address, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"holding\n"
            await until(lambda: not server._peers)
            assert store.left == []
            process.send_signal(signal.SIGKILL)
            await until(lambda: store.left == [("child", 7)])
            last = store.renewals[-1]
            assert (last.epoch, last.applied) == (7, 1)
            assert [(each.used, each.wanted) for each in last.holdings] == [(0.0, 0.0)]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    run(body)
