"""The gateway as a whole: it starts, it drains, it leaves nothing open."""

import asyncio
import json
import re
import socket
import time

import pytest

from gateway.harness import DONE, ROLE, Asked, answer_whole, chat, event, run, standing, until
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.wiring.governor import build_governor


def a_gateway(port: int = 0, admin: AdminAddress | None = None) -> Gateway:
    core = Settings((LaneSettings("interactive"),), (EngineSettings("e", 1),))
    settings = GatewaySettings((EngineAddress("e", "127.0.0.1", 9),), port=port, admin=admin)
    return Gateway(build_governor(core, time.monotonic()), settings)


def test_a_taken_port_is_an_error_that_leaves_nothing_open() -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            await a_gateway(taken.getsockname()[1]).start()

    run(body())


def test_a_taken_admin_port_closes_the_front_door_again() -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            gateway = a_gateway(admin=AdminAddress(port=taken.getsockname()[1]))
            with pytest.raises(OSError, match="in use"):
                await gateway.start()
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", gateway.port)

    run(body())


def test_a_drain_refuses_what_waits_and_what_comes_and_lets_streams_end() -> None:
    end = asyncio.Event()

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await end.wait()
        asked.send(event(finish="stop"), DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script, max_inflight=1) as stand:
            streaming, queued, late = [await stand.client() for _ in range(3)]
            streaming.ask(chat(stream=True))
            await stand.engine.next()
            queued.ask(chat("queued"))
            await until(lambda: stand.lane.queued == 1)
            late.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            await asyncio.sleep(0.02)
            assert stand.gateway.ready().ready
            drain = asyncio.ensure_future(stand.gateway.drain())
            refused = await queued.answer()
            assert (refused.status, refused.headers["x-millgate-reason"]) == (503, "draining")
            assert refused.headers["connection"] == "close"
            assert not stand.gateway.ready().ready
            body = chat("late")
            late.writer.write(
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            assert (await late.answer()).headers["x-millgate-reason"] == "draining"
            end.set()
            got = await streaming.answer()
            assert got.body.endswith(DONE)
            assert got.whole
            await drain
            await stand.settle()
            assert stand.outcomes() == {"good": 1, "yielded": 2}

    run(body())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            b"/v1/chat/completions",
            {
                "message": "the gateway is shutting down",
                "type": "service_unavailable_error",
                "param": None,
                "code": "server_is_overloaded",
            },
        ),
        (b"/v1/messages", {"type": "overloaded_error", "message": "the gateway is shutting down"}),
    ],
)
def test_what_outlives_the_grace_is_cut_with_an_error_event_that_blames_no_engine(
    path: bytes, said: dict[str, object]
) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await asked.hung_up(60)

    async def body() -> None:
        async with standing(script, drain_grace_s=0.2) as stand:
            client = await stand.client()
            client.ask(chat(stream=True), path)
            await client.head()
            asked = await stand.engine.next()
            drain = asyncio.ensure_future(stand.gateway.drain())
            rest = await client.reader.read()
            (told,) = re.findall(rb'data: (\{.*"error".*\})', rest)
            assert json.loads(told)["error"] == said
            assert stand.gateway.driver.cancelled == 1
            assert not rest.endswith(b"0\r\n\r\n")
            await asked.hung_up()
            await drain
            await stand.settle()

    run(body())


def test_an_idle_gateway_drains_at_once() -> None:
    async def body() -> None:
        async with standing(answer_whole) as stand:
            client = await stand.client()
            client.ask(chat())
            assert (await client.answer()).whole
            await asyncio.wait_for(stand.gateway.drain(), 0.5)
            assert await client.reader.read() == b""

    run(body())


@pytest.mark.parametrize(
    ("url", "host", "port", "base_path"),
    [
        ("http://h:8000", "h", 8000, ""),
        ("http://h/", "h", 80, ""),
        ("http://h:1/v1", "h", 1, ""),
        ("http://h:1/v1/", "h", 1, ""),
        ("http://h:1/base/v1", "h", 1, "/base"),
        ("http://h:1/base/", "h", 1, "/base"),
        ("https://h", "h", 443, ""),
    ],
)
def test_an_engines_address_is_read_from_its_url(url: str, host: str, port: int, base_path: str) -> None:
    address = EngineAddress.from_url("e", url)
    assert (address.host, address.port, address.base_path) == (host, port, base_path)
    assert (address.ssl is not None) is url.startswith("https")


@pytest.mark.parametrize("url", ["h:8000", "ftp://h", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        EngineAddress.from_url("e", url)
