"""A gate whose company lets traffic out through a proxy alone: its provider, its engines, and what an operator reads when the proxy fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trustme

from egress_proxy import EgressProxy
from gateway.harness import Asked, FakeEngine, Stand, answer_whole, chat, event, run, until
from gateway.stand import core_settings, gating
from millgate.core.settings import AccountSettings, EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, TlsFiles, listener_context
from millgate.gateway.fleet import answers, ask_engine
from millgate.http1.client import Proxy, UpstreamSettings
from millgate.runtime.health import Stance

LOGIN = "gate:a secret"
ACCOUNT = Settings(
    (LaneSettings("interactive"),), (EngineSettings("provider", 8, account=AccountSettings(())),)
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Return the files of a provider's certificate, and of the authority that it is of."""
    directory, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    issued = authority.issue_cert("provider.test")
    authority.cert_pem.write_to_path(str(directory / "ca"))
    issued.cert_chain_pems[0].write_to_path(str(directory / "cert"))
    issued.private_key_pem.write_to_path(str(directory / "key"))
    return TlsFiles(*(str(directory / name) for name in ("cert", "key", "ca")))


def through(proxy: EgressProxy, login: str = LOGIN) -> Proxy:
    return Proxy.from_url(f"http://{login.replace(' ', '%20')}@127.0.0.1:{proxy.port}")


def provider(files: TlsFiles, way: Proxy) -> EngineAddress:
    trusted = TlsFiles(authorities=files.authorities)
    return EngineAddress.from_url(
        "provider",
        "https://provider.test",
        files=trusted,
        api_key="theirs",
        metered=True,
        health=None,
        proxy=way,
    )


@asynccontextmanager
async def behind_a_proxy(
    files: TlsFiles, script: Any = answer_whole
) -> AsyncIterator[tuple[Stand, EgressProxy]]:
    """Serve a gateway whose provider, over TLS, only the proxy can look up."""
    engine = FakeEngine(script)
    await engine.start(ssl=listener_context(replace(files, authorities=None)))
    async with EgressProxy({"provider.test:443": engine.port}, LOGIN) as proxy, gating() as stand:
        await stand.engine.stop()
        stand.engine, upstream = engine, UpstreamSettings(connect_s=0.3)
        engines = (provider(files, through(proxy)),)
        settings = replace(stand.gateway.settings, engines=engines, upstream=upstream)
        await stand.gateway.adopt(settings, ACCOUNT)
        yield stand, proxy


async def refused(stand: Stand) -> str:
    """Have five requests fail, which opens the breaker, and return what an operator reads of the provider that is down."""
    for answer in await asyncio.gather(*(stand.ask(chat()) for _ in range(5))):
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert b"proxy" not in answer.body
    await until(lambda: stand.gateway.fleet.standings[0].stance is Stance.DOWN)
    return stand.gateway.fleet.standings[0].why


async def served_again(stand: Stand) -> None:
    """Have the next request be the one that tries the provider."""
    account = stand.gateway.driver._governor._knowledge.engines.by_name["provider"].provider  # type: ignore[attr-defined]
    account.breaker.next_try_at = account._next_trial_at = 0.0
    assert (await stand.ask(chat())).status == 200


def test_a_provider_that_only_the_proxy_can_look_up_answers_clients_over_one_tunnel(files: TlsFiles) -> None:
    async def body() -> None:
        async with behind_a_proxy(files) as (stand, proxy):
            for stream in (False, True, False):
                answer = await stand.ask(chat(stream=stream))
                assert (answer.status, answer.whole) == (200, True)
            assert {asked.headers["host"] for asked in stand.engine.asked} == {"provider.test"}
            assert not [asked for asked in stand.engine.asked if "proxy-authorization" in asked.headers]
            assert len(proxy.asked) == 1
            assert b"authorization: theirs" not in proxy.asked[0]
            await stand.settle()

    run(body())


def test_the_health_look_the_gauges_and_the_questions_of_the_start_take_the_same_way() -> None:
    async def body() -> None:
        gauges = b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 0.0\n"
        engine = FakeEngine(metrics=gauges)
        await engine.start()
        routes = {"engine.test:80": engine.port, "engine.test:8002": engine.port}
        async with EgressProxy(routes, LOGIN) as proxy, gating() as stand:
            address = EngineAddress.from_url(
                "engine", "http://engine.test", metrics=":8002/metrics", proxy=through(proxy)
            )
            assert await answers(address)
            gauges_of = await ask_engine(address)
            assert gauges_of is not None
            assert gauges_of.running == 3
            settings = replace(stand.gateway.settings, engines=(address,))
            await stand.gateway.adopt(settings, core_settings())
            asked = len(proxy.asked)
            await until(lambda: len(proxy.asked) >= asked + 2)
            await until(lambda: engine.scrapes >= 2)
            assert (await stand.ask(chat())).status == 200
            engine.health = 500
            await until(lambda: "health page says 500" in stand.gateway.fleet.standings[0].why)
        await engine.stop()

    run(body())


def test_a_proxy_that_stops_is_named_and_one_that_is_back_serves_again(files: TlsFiles) -> None:
    async def body() -> None:
        async with behind_a_proxy(files) as (stand, proxy):
            assert (await stand.ask(chat())).status == 200
            await proxy.stop()
            why = f"connect (cannot connect to provider.test:443: the proxy 127.0.0.1:{proxy.port} cannot be reached: "
            assert f"the last failure: {why}" in await refused(stand)
            await stand.settle()
            assert stand.gateway.fleet.connections == 0
            await proxy.start()
            await served_again(stand)
            await until(lambda: stand.gateway.fleet.standings[0].stance is Stance.UP)
            await stand.settle()

    run(body())


FAULTS: dict[str, tuple[list[bytes] | None, str]] = {
    "wrong password": (None, "answers 407: its user or password is missing or wrong"),
    "not allowed": ([b"HTTP/1.1 403 Forbidden\r\n\r\n"], "answers 403: it does not allow this address"),
    "not reached": ([b"HTTP/1.1 502 Bad\r\n\r\n"], "answers 502: it does not reach this address"),
    "garbage": ([b"garbage\r\n"], "does not begin with an HTTP/1 status line"),
    "silence": ([], "opens no tunnel: no answer in time"),
}


@pytest.mark.parametrize(("says", "why"), FAULTS.values(), ids=FAULTS.keys())
def test_what_the_proxy_refuses_for_is_read_where_engines_stand_and_costs_no_permit(
    files: TlsFiles, says: list[bytes] | None, why: str
) -> None:
    async def body() -> None:
        async with behind_a_proxy(files) as (stand, proxy):
            proxy.says, proxy.login = says, "gate:another"
            read = await refused(stand)
            assert why in read
            assert "secret" not in read
            await stand.settle()
            await until(lambda: stand.gateway.fleet.connections == 0 and proxy.connections == 0)

    run(body())


def test_a_client_that_leaves_while_the_proxy_is_silent_costs_nothing(files: TlsFiles) -> None:
    async def body() -> None:
        async with behind_a_proxy(files) as (stand, proxy):
            proxy.says = []
            client = await stand.client()
            client.ask(chat())
            await until(lambda: proxy.connections == 1)
            client.leave()
            await until(lambda: proxy.connections == 0)
            await stand.settle()
            assert stand.gateway.fleet.connections == 0

    run(body())


def test_a_stream_whose_tunnel_is_cut_ends_with_an_error_and_not_like_a_finished_one(files: TlsFiles) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(event("a"))
        await asked.hung_up()

    async def body() -> None:
        async with behind_a_proxy(files, script) as (stand, proxy):
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            assert b'"content":"a"' in await client.chunk()
            await proxy.stop()
            assert b'"error"' in await client.chunk()
            await stand.settle()

    run(body())


def test_a_reload_with_another_proxy_takes_the_new_way_and_ends_nothing(files: TlsFiles) -> None:
    async def body() -> None:
        async with behind_a_proxy(files) as (stand, before), EgressProxy(before.routes, "new:login") as proxy:
            assert (await stand.ask(chat())).status == 200
            renewed = provider(files, through(proxy, "new:login"))
            await stand.gateway.adopt(replace(stand.gateway.settings, engines=(renewed,)), ACCOUNT)
            assert (await stand.ask(chat())).status == 200
            assert (len(before.asked), len(proxy.asked)) == (1, 1)

    run(body())
