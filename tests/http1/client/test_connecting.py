"""Connections made without a task: at once, in few turns of the loop, and given up cleanly."""

import asyncio
import math
import socket
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from http1.client.engine import Receiver, engine, run, saying, sized, until
from millgate.core.words import FailureKind, Sent
from millgate.http1.client.connecting import Connecting
from millgate.http1.client.connection import UpstreamCall, UpstreamConnection
from millgate.http1.client.contract import AnswerHead, UpstreamSettings
from millgate.http1.client.pool import UpstreamPool
from millgate.sockets import addresses


class Deaf:
    """A receiver that hears nothing."""

    def on_head(self, head: AnswerHead) -> None: ...

    def on_data(self, data: bytes) -> None: ...

    def on_end(self, *, delimited: bool) -> None: ...

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None: ...

    def on_raised(self) -> None: ...


CALL = UpstreamCall(UpstreamPool("localhost", 1), b"", Deaf(), head_only=False, may_retry=False)


class Made:
    """What became of one attempt to connect."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.failures: list[str] = []
        self.connecting = Connecting(CALL, 0.0, coroutine, lambda _connecting, why: self.failures.append(why))


def test_the_first_step_is_taken_before_start_returns() -> None:
    async def body() -> None:
        steps: list[int] = []

        async def making() -> None:
            steps.append(1)
            await asyncio.sleep(0)
            steps.append(2)

        made = Made(making())
        made.connecting.start()
        assert steps == [1]
        await asyncio.sleep(0.01)
        assert (steps, made.failures) == ([1, 2], [])

    run(body())


def test_it_goes_on_when_what_it_waits_for_is_there() -> None:
    async def body() -> None:
        there = asyncio.get_running_loop().create_future()
        seen: list[str] = []

        async def making() -> None:
            seen.append(await there)

        Made(making()).connecting.start()
        there.set_result("yes")
        await asyncio.sleep(0.01)
        assert seen == ["yes"]

    run(body())


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("error", [ConnectionRefusedError("nobody there"), UnicodeError("no name")])
def test_a_failure_is_told_once_and_never_before_start_has_returned(waits: bool, error: Exception) -> None:
    """A name that cannot be one is no OSError: its caller waited until the connection was given up for its time."""

    async def body() -> None:
        async def making() -> None:
            if waits:
                await asyncio.sleep(0)
            raise error

        made = Made(making())
        made.connecting.start()
        assert made.failures == []
        await asyncio.sleep(0.01)
        assert made.failures == [str(error)]

    run(body())


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_given_up_says_nothing_and_cleans_up(fails: bool) -> None:
    async def body() -> None:
        cleaned: list[bool] = []

        async def making() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.append(True)
                if fails:
                    raise OSError("while cleaning up")

        made = Made(making())
        made.connecting.start()
        made.connecting.stop()
        await asyncio.sleep(0.01)
        assert (cleaned, made.failures) == ([True], [])

    run(body())


@pytest.mark.parametrize("gives_up", [True, False], ids=["the client left", "its time is over"])
def test_what_is_ended_between_two_waits_waits_for_nothing_more(gives_up: bool) -> None:
    """A proxy took the connection as its client left, said nothing, and the connection stayed open for good."""

    async def body() -> None:
        there, cleaned = asyncio.get_running_loop().create_future(), list[bool]()

        async def making() -> None:
            await there
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.append(True)

        made = Made(making())
        made.connecting.start()
        there.set_result(None)
        (made.connecting.stop if gives_up else made.connecting.expire)()
        await asyncio.sleep(0.01)
        assert (cleaned, made.failures) == ([True], [] if gives_up else ["no answer in time"])

    run(body())


def test_a_failure_in_the_first_step_is_not_told_after_it_was_given_up() -> None:
    async def body() -> None:
        async def making() -> None:
            raise OSError("at once")

        made = Made(making())
        made.connecting.start()
        made.connecting.stop()
        await asyncio.sleep(0.01)
        assert made.failures == []

    run(body())


def test_an_engine_whose_machine_is_gone_without_a_word_is_noticed_within_a_minute() -> None:
    """A balancer that forgets what is idle for minutes dropped the answer to come, and sees a sign of life every half minute now."""

    async def body() -> None:
        pool = UpstreamPool("127.0.0.1", 1)
        ours, theirs = socket.socket(), socket.socket()
        with ours, theirs:
            theirs.bind(("127.0.0.1", 0))
            theirs.listen()
            ours.connect(theirs.getsockname())
            call = UpstreamCall(pool, b"", Deaf(), head_only=False, may_retry=False)
            loop = asyncio.get_running_loop()
            connection = UpstreamConnection(pool, call)
            await loop.create_connection(lambda: cast("asyncio.Protocol", connection), sock=ours)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            pool.close()
            await until(lambda: pool.open == 0)

    run(body())


def test_a_connection_to_where_the_host_was_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async def look_up(_host: str) -> tuple[str, ...]:
            return tuple(answer)

        async def ask(pool: UpstreamPool) -> None:
            receiver = Receiver()
            pool.request(b"GET", b"/", [], b"", receiver)
            await until(lambda: receiver.over)

        monkeypatch.setattr(addresses, "LOOK_AGAIN_S", 0.01)
        monkeypatch.setattr(addresses, "LEFT_AFTER_S", 0.05)
        answer = ["127.0.0.1"]
        async with engine(saying(sized())) as stand:
            pool = UpstreamPool("engine.test", stand.port, look_up=look_up)
            kept: list[int] = []
            for turn in range(80):
                await ask(pool)
                kept.append(pool.kept)
                answer[:] = ["127.0.0.2"] if turn == 20 else answer
                if turn > 20 and not pool.kept:
                    break
                await asyncio.sleep(0.01)
            assert set(kept[:21]) == {1}
            assert kept[-1] == 0
            pool.close()

    run(body())


def test_a_connection_that_is_made_in_the_turn_in_which_its_time_is_over_is_not_used() -> None:
    """uvloop closed it without a word: writing to it raised, its request waited for its deadline, and it was never forgotten."""

    async def body() -> None:
        loop, receiver = asyncio.get_running_loop(), Receiver()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            pool = UpstreamPool(*listening.getsockname())
            pool.request(b"GET", b"/", [], b"", receiver).expire_at(loop.time() + 1.0)
            loop.call_soon(pool._check, math.inf)  # behind it comes the word that it is connected
            await until(lambda: receiver.over)
            assert receiver.failure == (FailureKind.CONNECT, Sent.NONE)
            assert pool.open == 0

    run(body())


def test_a_connection_that_is_made_after_its_time_is_told_as_failed() -> None:
    async def body() -> None:
        there = asyncio.get_running_loop().create_future()

        async def making() -> None:
            await there

        made = Made(making())
        made.connecting.start()
        there.set_result(None)
        made.connecting.expire()
        await until(lambda: made.failures)
        assert made.failures == ["no answer in time"]

    run(body())


def test_a_standstill_of_this_process_is_not_the_time_of_a_connection() -> None:
    """A gate that was stopped and goes on failed every connection that it was making, though its engine had taken it at once."""

    async def body() -> None:
        receiver = Receiver()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            pool = UpstreamPool(*listening.getsockname(), settings=UpstreamSettings(connect_s=0.1))
            pool.request(b"GET", b"/", [], b"", receiver)
            pool._forgive(60.0)
            pool._check_connecting(asyncio.get_running_loop().time() + 60.0)
            await until(lambda: pool.open and not pool._connecting)
            assert not receiver.over
            pool.close()

    run(body())
