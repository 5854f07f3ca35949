"""Hosts with several addresses, of which some are dead, and name servers that fail, say nothing, or say something else."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from millgate.sockets import addresses
from millgate.sockets.addresses import LOOK_UP_S, NEXT_AFTER_S, HostAddresses, resolve

GOOD, DEAD, REFUSING = "127.0.0.1", "127.0.0.2", "127.0.0.3"
_DESCRIPTORS = Path("/proc/self/fd")
LATE_S = 0.15
"""What a busy machine may add; far below the times that are told apart."""


class Names:
    """A name server for one name: what it answers, and what becomes of a question."""

    def __init__(self, *answer: str) -> None:
        self.answer = answer
        self.failure: OSError | None = None
        self.hangs = False
        self.asked = 0

    async def __call__(self, host: str) -> tuple[str, ...]:
        assert host == "engine.test"
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return self.answer


class Reached(asyncio.Protocol):
    """Knows which address it has reached."""

    def __init__(self) -> None:
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = transport.get_extra_info("peername")[0]
        transport.close()


@contextmanager
def _listening() -> Iterator[int]:
    """Listen on GOOD, and on DEAD with a backlog that is full: connecting there neither succeeds nor fails."""
    with socket.socket() as good, socket.socket() as dead:
        good.bind((GOOD, 0))
        good.listen(64)
        dead.bind((DEAD, good.getsockname()[1]))
        dead.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(dead.getsockname())
        try:
            yield good.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


def _run(test: Callable[[int], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20.0):
            await test(port)

    with _listening() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before = len(list(_DESCRIPTORS.iterdir()))
        runner.run(bounded())
        runner.run(asyncio.sleep(0.05))
        assert len(list(_DESCRIPTORS.iterdir())) <= before + 8, "sockets that lost the race are closed"


async def _reach(host: HostAddresses) -> tuple[str, float]:
    """Connect; return the address that was reached, and how long it took."""
    loop = asyncio.get_running_loop()
    began, reached = loop.time(), Reached()
    await host.connect(lambda: reached)
    await asyncio.sleep(0)
    return reached.peer, loop.time() - began


def test_a_name_whose_first_address_is_dead_is_reached_by_its_second_and_next_time_at_once() -> None:
    """An AAAA record that leads nowhere: the engine was down for this gate for good, while curl reached it."""

    async def body(port: int) -> None:
        host = HostAddresses("engine.test", port, Names(DEAD, GOOD))
        peer, took_s = await _reach(host)
        assert peer == GOOD
        assert NEXT_AFTER_S <= took_s < NEXT_AFTER_S + LATE_S
        for _ in range(20):
            peer, took_s = await _reach(host)
            assert peer == GOOD
            assert took_s < LATE_S

    _run(body)


def test_an_address_that_refuses_costs_no_time_and_is_tried_again_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(port: int) -> None:
        def host() -> HostAddresses:
            return HostAddresses("engine.test", port, Names(REFUSING, GOOD))

        within_a_minute, after_a_minute = host(), host()
        assert await _reach(within_a_minute) < (GOOD, LATE_S)
        monkeypatch.setattr(addresses, "SHUNNED_S", 0.01)
        await _reach(after_a_minute)
        with socket.socket() as back:
            back.bind((REFUSING, port))
            back.listen(8)
            await asyncio.sleep(0.05)
            assert (await _reach(within_a_minute))[0] == GOOD
            assert (await _reach(after_a_minute))[0] == REFUSING

    _run(body)


def test_addresses_that_all_fail_are_one_failure_and_a_call_that_is_given_up_leaves_nothing() -> None:
    async def body(port: int) -> None:
        host = HostAddresses("engine.test", port, Names("127.0.0.4", REFUSING))
        with pytest.raises(ConnectionRefusedError):
            await _reach(host)
        hanging = asyncio.ensure_future(_reach(HostAddresses("engine.test", port, Names(DEAD, DEAD))))
        await asyncio.sleep(0.05)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    _run(body)


@pytest.mark.parametrize("names", [("127.0.0.5", REFUSING), (REFUSING, "127.0.0.5")])
def test_tls_that_fails_at_one_address_is_told_and_not_that_another_one_refuses(
    names: tuple[str, ...],
) -> None:
    """A certificate that has expired, of an engine whose name has an IPv6 address too, was told as a connection that is refused."""

    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no handshake")
        writer.close()

    async def body(port: int) -> None:
        async with await asyncio.start_server(speak, "127.0.0.5", port):
            host = HostAddresses("engine.test", port, Names(*names))
            for _ in range(2):
                with pytest.raises(ssl.SSLError):
                    await host.connect(
                        Reached, ssl=ssl.create_default_context(), server_hostname="engine.test"
                    )

    _run(body)


def test_while_no_name_server_answers_the_addresses_of_before_are_used() -> None:
    """Every new connection asked for the name: an outage of DNS for a minute was an outage of every engine with a name."""

    async def body(port: int) -> None:
        names = Names(GOOD)
        host = HostAddresses("engine.test", port, names)
        assert (await _reach(host))[0] == GOOD
        names.failure = socket.gaierror(-3, "Temporary failure in name resolution")
        assert (await _reach(host))[0] == GOOD
        names.failure, names.answer = None, ()
        assert (await _reach(host))[0] == GOOD
        names.hangs = True
        first = await _reach(host)
        assert first[0] == GOOD
        assert LOOK_UP_S <= first[1] < LOOK_UP_S + LATE_S
        asked = names.asked
        for _ in range(50):  # the one look that hangs is that of all
            peer, took_s = await _reach(host)
            assert peer == GOOD
            assert took_s < LATE_S
        assert names.asked == asked

    _run(body)


def test_another_answer_counts_for_the_next_connection() -> None:
    async def body(port: int) -> None:
        names = Names(REFUSING)
        host = HostAddresses("engine.test", port, names)
        with pytest.raises(ConnectionRefusedError):
            await _reach(host)
        names.answer = (GOOD,)
        assert (await _reach(host))[0] == GOOD

    _run(body)


def test_an_address_that_has_left_the_name_is_the_hosts_no_more_after_a_minute_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine is exchanged by its name. Under load connections to the old one were used for as long as it lived, for days."""

    async def body(port: int) -> None:
        monkeypatch.setattr(addresses, "LOOK_AGAIN_S", 0.02)
        monkeypatch.setattr(addresses, "LEFT_AFTER_S", 0.3)
        names = Names(GOOD)
        host = HostAddresses("engine.test", port, names)
        await _reach(host)
        time = asyncio.get_running_loop().time

        async def is_there_for(within_s: float) -> bool:
            by = time() + within_s
            while has := host.has(GOOD, time()):
                if time() > by:
                    return has
                await asyncio.sleep(0.01)
            return False

        names.failure = socket.gaierror(-3, "Temporary failure in name resolution")
        assert await is_there_for(0.6), "no answer says nothing"
        names.failure, names.answer = None, (REFUSING, GOOD)
        assert await is_there_for(0.6)
        names.answer = (REFUSING,)
        left_at = time()
        assert not await is_there_for(2.0)
        assert time() - left_at >= 0.3 - 0.05
        assert host.has(REFUSING, time())
        names.answer = (GOOD,)
        await asyncio.sleep(0.05)
        host.has(GOOD, time())  # it looks the name up again
        await asyncio.sleep(0.05)
        assert host.has(GOOD, time())
        assert HostAddresses(GOOD, port).has("127.0.0.9", 1e9), "an address is no name"

    _run(body)


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), None])
def test_a_name_that_was_never_found_is_a_failure_in_words(failure: OSError | None) -> None:
    async def body(port: int) -> None:
        names = Names()
        names.failure = failure
        with pytest.raises(OSError, match="not known" if failure else "no address"):
            await _reach(HostAddresses("engine.test", port, names))

    _run(body)


def test_the_resolver_of_the_system_gives_addresses() -> None:
    async def body(_port: int) -> None:
        assert set(await resolve("localhost")) <= {"127.0.0.1", "::1"}
        assert await resolve("127.0.0.3") == ("127.0.0.3",)
        with pytest.raises(OSError, match=r"."):
            await resolve("no-such-name.invalid")

    _run(body)


@pytest.mark.parametrize("name", ["a..b", "a" * 64])
def test_what_cannot_be_a_name_is_not_found(name: str) -> None:
    """It was another error than a name that is not found: behind Envoy a reload with one was neither counted nor told."""
    with pytest.raises(OSError, match="empty or too long"):
        asyncio.run(resolve(name))
