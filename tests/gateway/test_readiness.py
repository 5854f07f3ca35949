"""Whether work should come: `/health` at the clients' door and `/readyz` at the admin door give one answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from gateway.harness import Asked, answer_whole, chat, run, standing, until
from gateway.paired_engines import scripted
from gateway.stand import core_settings
from gateway.test_paired_engines import reads
from gateway.test_two_engines import writes
from millgate.cluster.contract import Granted, Renewal, StoreUnavailableError
from millgate.core.events import EngineDown, EngineUp
from millgate.core.settings import AccountSettings, QuotaLimit
from millgate.core.words import QuotaKind
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.gateway.settings import ClusterSettings
from millgate.runtime.health import EngineStanding, Stance
from millgate.wiring.governor import build_governor


class _Gone:
    """A store that refuses every connection."""

    async def renew(self, renewal: Renewal) -> Granted:
        raise StoreUnavailableError("connection refused")

    async def leave(self, replica: str, epoch: int) -> None:
        """There is nothing to give back."""

    async def close(self) -> None:
        """There is nothing to close."""


async def _get(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


async def _ready(gateway: Gateway) -> bool:
    """Return what both doors say, which is the same."""
    assert gateway.admin is not None
    (health, nothing), (readyz, body) = (
        await _get(gateway.port, "/health"),
        await _get(gateway.admin.port, "/readyz"),
    )
    assert (nothing, health) == (b"", readyz)
    assert json.loads(body)["ready"] is (health == 200)
    return health == 200


@contextlib.asynccontextmanager
async def _alone(when_gone: Literal["closed", "open"]) -> AsyncIterator[Gateway]:
    """Serve a replica whose store has never answered, in front of an engine that is taken to be up."""
    cluster = ClusterSettings(
        "redis://nowhere", "test", "one", lease_s=0.4, renew_every_s=0.05, timeout_s=0.04, when_gone=when_gone
    )
    told = GatewaySettings(
        (EngineAddress("engine", "127.0.0.1", 9),), port=0, admin=AdminAddress(port=0), cluster=cluster
    )
    gateway = Gateway(build_governor(core_settings(), 0.0), told, store=_Gone())
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


def test_a_pair_is_ready_while_both_of_its_kinds_answer() -> None:
    async def story() -> None:
        async with scripted(reads=reads, also_reads=reads, writes=writes) as (two, _engines):
            for down, ready in (("reads", True), ("also_reads", False)):
                two.gateway.driver.post(EngineDown(down))
                assert await _ready(two.gateway) is ready
            two.gateway.driver.post(EngineUp("reads"))
            assert await _ready(two.gateway)
            two.gateway.driver.post(EngineDown("writes"))
            assert not await _ready(two.gateway)

    run(story())


@pytest.mark.parametrize(("when_gone", "ready"), [("closed", False), ("open", True)])
def test_a_closed_replica_is_not_ready_without_its_store_and_an_open_one_is(
    when_gone: Literal["closed", "open"], ready: bool
) -> None:
    async def story() -> None:
        async with _alone(when_gone) as gateway:
            cluster = gateway.cluster
            assert cluster is not None
            await until(lambda: cluster.readiness.startswith("degraded"))
            assert await _ready(gateway) is ready

    run(story())


def test_a_closed_replica_refuses_at_once_and_sends_its_clients_to_another_connection() -> None:
    async def story() -> None:
        async with _alone("closed") as gateway:
            cluster = gateway.cluster
            assert cluster is not None
            await until(lambda: cluster.readiness.startswith("degraded"))
            body = b'{"model": "any", "messages": [{"role": "user", "content": "hello"}]}'
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gate\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(head.encode() + body)
            answer = await asyncio.wait_for(reader.read(), 5.0)
            writer.close()
            await writer.wait_closed()
            status, *fields = answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
            assert status.split()[1] == b"503"
            assert {
                b"x-millgate-reason: no_lease",
                b"x-should-retry: true",
                b"retry-after-ms: 1000",
                b"connection: close",
            } <= set(fields)

    run(story())


def test_a_provider_whose_breaker_is_open_is_named_and_told_and_keeps_no_gate_away() -> None:
    """Only requests show that the account answers again: a balancer that sent none would keep it shut."""

    async def broken(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"boom"}}', 500)

    async def story() -> None:
        account = AccountSettings((QuotaLimit(QuotaKind.RPM, 6000),))
        async with standing(broken, account=account) as stand:
            told: list[EngineStanding] = []
            gateway = stand.gateway
            gateway.fleet.on_turn = told.append
            assert gateway.ready() == (True, {"gate": "open", "engine engine": "up"})
            for number in range(5):
                assert (await stand.ask(chat(str(number)))).status == 500

            assert gateway.ready() == (True, {"gate": "open", "engine engine": "breaker open"})
            live = gateway.views.live
            assert live is not None
            assert live.page_model.verdict().text == "Down: no engine takes work, every request is refused"
            await until(lambda: gateway.fleet.standings[0].stance is Stance.DOWN)
            stand.engine.script = answer_whole
            breaker = gateway.driver._governor._knowledge.engines.by_name["engine"].provider.breaker  # type: ignore[attr-defined]
            breaker.next_try_at = 0.0
            assert (await stand.ask(chat("tried"))).status == 200
            assert gateway.ready().detail["engine engine"] == "up"
            assert live.page_model.verdict().text == "Engines fail requests; 83 % failed on engines"
            await until(lambda: gateway.fleet.standings[0].stance is Stance.UP)
            turns = [(each.stance, each.why) for each in told if not each.failing]
            why = "requests failed and its breaker is open: single requests try it; the last failure: status 500"
            assert turns == [(Stance.DOWN, why), (Stance.UP, "")]

    run(story())
