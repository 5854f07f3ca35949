"""Clients that outlive their process's beginning, their own closing, or the gate that they call."""

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import httpx
import httpx2
import openai
import pytest
from lab.upstream import FakeUpstream, answers
from lab.upstream.fake_upstream import ScriptedConnection

from millgate.client import HostSettings, for_httpx, for_httpx2
from millgate.client.pacing import Cost
from millgate.client.session import HostSession, Turn
from ports import free_port

GOOD = answers.whole(answers.completion("hello"))
# The children call one after another: what one leaves on a shared connection is not what is looked at.
PRE_FORK = """
import os, sys
from millgate.client import for_httpx, for_httpx2
with getattr(sys.modules["millgate.client"], sys.argv[1]).client() as client:
    client.post(sys.argv[2], content=b"parent")
    for _ in range(3):
        if (child := os.fork()) == 0:
            client.post(sys.argv[2], content=b"child")
            os._exit(0)
        os.waitpid(child, 0)
    client.post(sys.argv[2], content=b"parent")
"""


@pytest.fixture(params=[for_httpx, for_httpx2], ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


async def _good(line: ScriptedConnection) -> None:
    await line.send(GOOD)


def test_processes_that_are_forked_after_the_first_call_have_connections_of_their_own(library: Any) -> None:
    """On one connection they would read each other's answers, as vectors of other texts."""
    name = library.__name__.rpartition(".")[2]
    with FakeUpstream(_good) as engine:
        command = [sys.executable, "-c", PRE_FORK, name, engine.url]
        subprocess.run(command, check=True, timeout=60, env=os.environ)
    assert [each.connection for each in engine.received] == [1, 2, 3, 4, 1]


def test_a_call_that_stands_in_line_when_its_client_is_closed_is_not_sent(library: Any) -> None:
    module: Any = httpx if library is for_httpx else httpx2

    came = threading.Event()

    async def script(line: ScriptedConnection) -> None:
        came.set()
        await line.stall()

    async def body(engine: FakeUpstream) -> list[Any]:
        client = library.async_client(HostSettings(max_inflight=1))
        calls = [asyncio.create_task(client.post(engine.url, content=b"x")) for _ in range(3)]
        await asyncio.to_thread(came.wait)
        await client.aclose()
        calls[0].cancel()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)

    with FakeUpstream(script) as engine:
        _, *waiting = asyncio.run(body(engine))
        assert [type(each) for each in waiting] == [module.ConnectError] * 2
        assert len(engine.received) == 1


def test_a_burst_outlives_a_gate_that_restarts(library: Any) -> None:
    """Thirty calls while nothing listens: but the four that the window lets go at once, they wait for the next gate."""
    engine = FakeUpstream(_good)
    engine.port = free_port()

    async def body() -> list[Any]:
        http_client = library.async_client()
        url = engine.url + "/v1"
        async with openai.AsyncOpenAI(
            base_url=url, api_key="k", max_retries=0, http_client=http_client
        ) as client:
            calls = [asyncio.create_task(client.post("/", cast_to=object)) for _ in range(30)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.4)  # so long nothing listens: calls that ran into it would all have failed
            with engine:
                return await asyncio.gather(*calls, return_exceptions=True)

    failures = [each for each in asyncio.run(body()) if isinstance(each, BaseException)]
    assert 1 <= len(failures) <= 15
    assert {type(each) for each in failures} == {openai.APIConnectionError}


def test_answers_that_a_transport_of_ones_own_has_read_leave_the_line(library: Any) -> None:
    """`MockTransport` gives such answers; beyond the window of four the next call waited for the pool timeout."""
    module: Any = httpx if library is for_httpx else httpx2
    mock = module.MockTransport(lambda _: module.Response(200, content=b"{}"))
    with library.client(transport=mock, timeout=5.0) as client:
        kept = [client.get("http://mocked.example") for _ in range(9)]
    assert [each.status_code for each in kept] == [200] * 9


def test_the_line_is_held_while_the_host_takes_no_calls_but_for_one_each_half_second() -> None:
    now = 0.0
    session = HostSession(HostSettings(), clock=lambda: now)
    turns = [Turn(order, Cost(), lambda: None) for order in range(100)]

    def sent() -> int:
        return sum(turn.sent and not turn.over for turn in turns)

    session.missed()
    for turn in turns:
        session.enter(turn)
    assert sent() == 0
    now = 0.5
    session.look(turns[-1])
    now = 0.75
    session.look(turns[-1])
    assert sent() == 1
    session.reached()
    assert sent() == 4, "the window"


def test_a_host_that_is_away_for_longer_than_a_restart_holds_no_call() -> None:
    now = 0.0
    session = HostSession(HostSettings(), clock=lambda: now)
    first, *turns = [Turn(order, Cost(), lambda: None) for order in range(4)]
    session.missed()
    now = 9.0
    session.missed(drains=True)
    now = 18.0
    session.missed()
    session.enter(first)
    assert not first.sent, "it was there 9 s ago"
    now = 20.0
    session.missed()
    for turn in turns:
        session.enter(turn)
    assert all(turn.sent for turn in turns)
