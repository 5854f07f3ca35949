"""The loop of a gate: what becomes of look-ups that a name server does not answer."""

import asyncio
import socket
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest

from millgate.sockets.loop import GateLoop

REAL = socket.getaddrinfo


class SilentServer:
    """Stands for the resolver: names that begin with `silent` have no answer before the test ends."""

    def __init__(self) -> None:
        self.over = Event()
        self.asked: list[str] = []
        self.answers: dict[str, list[str]] = {}

    def __call__(self, host: Any, port: Any, **hints: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.over.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [found for each in self.answers[host] for found in REAL(each, port, **hints)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    silent = SilentServer()
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    yield silent
    silent.over.set()


def on_loop(work: Any) -> Any:
    with asyncio.Runner(loop_factory=GateLoop) as runner:
        return runner.run(work)


async def _served() -> tuple[asyncio.Server, int]:
    door = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    return door, door.sockets[0].getsockname()[1]


def test_a_process_ends_while_a_file_server_is_silent() -> None:
    """A reload read the file from a mount that had gone: SIGTERM, sent twice, closed the doors and did not end the process."""
    over = Event()

    async def body() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(over.wait, 30), 0.05)
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "none")
        return await asyncio.to_thread(int, "7")

    began = time.monotonic()
    assert on_loop(body()) == 7
    assert time.monotonic() - began < 10
    over.set()


@pytest.mark.parametrize("how", ["getaddrinfo", "create_connection"])
def test_a_process_ends_while_a_name_server_is_silent(server: SilentServer, how: str) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        asked = (
            loop.getaddrinfo("silent", 80)
            if how == "getaddrinfo"
            else loop.create_connection(asyncio.Protocol, "silent", 80)
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked, 0.05)

    on_loop(body())  # the loop is closed
    assert server.asked == ["silent"]
    assert not server.over.is_set()


def test_names_without_an_answer_keep_no_other_name_waiting(server: SilentServer) -> None:
    server.answers["engine"] = ["127.0.0.1"]

    async def body() -> str:
        loop = asyncio.get_running_loop()
        silent = [loop.create_task(loop.getaddrinfo(f"silent{number}", 80)) for number in range(20)]
        found = await asyncio.wait_for(loop.getaddrinfo("engine", 80, type=socket.SOCK_STREAM), 10)
        for each in silent:
            each.cancel()
        return str(found[0][4][0])

    assert on_loop(body()) == "127.0.0.1"


def test_a_name_has_one_look_up_at_a_time_and_those_who_leave_it_leave_it_to_others(
    server: SilentServer,
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        first, second = [loop.create_task(loop.getaddrinfo("silent", 80)) for _ in range(2)]
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        server.over.set()
        with pytest.raises(socket.gaierror, match="Temporary failure"):
            await second
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("silent", 80)

    on_loop(body())
    assert server.asked == ["silent", "silent"]


def test_the_next_address_of_a_name_is_tried_where_one_takes_no_connection(server: SilentServer) -> None:
    server.answers["engine"] = ["127.0.0.2", "127.0.0.1"]

    async def body() -> tuple[str, int]:
        door, port = await _served()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "engine", port)
        peer: tuple[str, int] = transport.get_extra_info("peername")
        transport.close()
        door.close()
        return peer[0], peer[1] - port

    assert on_loop(body()) == ("127.0.0.1", 0)


def test_a_name_none_of_whose_addresses_takes_a_connection_says_why(server: SilentServer) -> None:
    server.answers |= {"engine": ["127.0.0.1"], "nothing": []}

    async def body() -> None:
        door, port = await _served()
        door.close()
        await door.wait_closed()
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(asyncio.Protocol, "engine", port)
        with pytest.raises(OSError, match="nothing has no address"):
            await loop.create_connection(asyncio.Protocol, "nothing", port)

    on_loop(body())


def test_what_cannot_be_a_name_is_refused_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        with pytest.raises(UnicodeError):
            await asyncio.get_running_loop().getaddrinfo("a" * 64 + ".b", 80)

    on_loop(body())


def test_a_host_without_a_thread_left_fails_one_look_up_and_not_all_that_follow(
    server: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name's question stayed open without one who asked it: the engine was never found again."""
    server.answers["engine"] = ["127.0.0.1"]

    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def body() -> str:
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as crowded:
            crowded.setattr(Thread, "start", refuse)
            with pytest.raises(OSError, match="can't start new thread"):
                await loop.getaddrinfo("engine", 80, type=socket.SOCK_STREAM)
        found = await asyncio.wait_for(loop.getaddrinfo("engine", 80, type=socket.SOCK_STREAM), 10)
        return str(found[0][4][0])

    assert on_loop(body()) == "127.0.0.1"
