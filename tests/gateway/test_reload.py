"""A reload changes what comes from now on; what runs and what waits is not touched, and what is wrong changes nothing."""

import asyncio
import os
import ssl as tls
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.harness import Asked, Client, FakeEngine, Stand, answer, chat, event, run, until
from gateway.stand import core_settings, gating
from millgate.core.events import Event, Finished
from millgate.core.settings import LaneSettings
from millgate.gateway import AdminAddress, Certificate, Configuration, EngineAddress, Gateway, ReloadError
from millgate.gateway.notify import Notifier
from millgate.gateway.reload import Fetch, Reloader
from millgate.gateway.settings import ClusterSettings, ExtprocAddress, GatewaySettings, LineAddress
from millgate.http1.client import UpstreamPool, UpstreamSettings
from millgate.http1.server import ServerLimits
from millgate.observe.logs import ProcessLog
from millgate.observe.observers import ObserverSettings
from millgate.observe.tracing import TracingSettings
from millgate.runtime.callers import CallerSettings
from millgate.servers.http import DoorSettings


@pytest.fixture
def log() -> Iterator[ProcessLog]:
    with Path(os.devnull).open("wb") as nowhere:
        quiet = ProcessLog(nowhere.fileno())
        yield quiet
        quiet.close()


def reloader(gateway: Gateway, fetch: Fetch, log: ProcessLog) -> Reloader:
    return Reloader(gateway, fetch, log, Notifier({}))


async def _one_queued(stand: Stand) -> tuple[Client, Client]:
    """Return a client that the engine, which has one stream, is working for, and one that waits."""
    busy, queued = await stand.client(), await stand.client()
    busy.ask(chat())
    await stand.engine.next()
    queued.ask(chat("queued"))
    await until(lambda: stand.lane.queued == 1)
    return busy, queued


def test_lower_limits_end_nothing_and_keep_new_work_out() -> None:
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        await release.wait()
        asked.reply(answer())

    async def body() -> None:
        async with gating(script, core=core_settings(max_inflight=2)) as stand:
            clients = [await stand.client() for _ in range(4)]
            for count, client in enumerate(clients[:2], 1):
                client.ask(chat())
                await stand.engine.next(count)
            clients[2].ask(chat("queued"))
            await until(lambda: stand.lane.queued == 1)
            settings = replace(
                stand.gateway.settings,
                server=ServerLimits(body_bytes=1024, connections=4),
                door=DoorSettings(first_event_s=30.0),
                byte_budget=4096,
                drain_grace_s=1.0,
            )
            assert await stand.gateway.adopt(settings, core_settings(max_inflight=1)) == ()
            engine = stand.snapshot.engines[0]
            assert (engine.running, engine.limit, stand.lane.queued) == (2, 1, 1)
            big = await stand.ask(chat("x" * 2000))
            assert big.status == 503  # the fifth connection
            clients[3].leave()
            await until(lambda: stand.gateway.server.connections == 3)
            assert (await stand.ask(chat("x" * 2000))).status == 413
            release.set()
            assert [(await client.answer()).status for client in clients[:3]] == [200, 200, 200]
            await stand.settle()

    run(body())


def test_behind_envoy_an_engine_without_an_address_changes_nothing_at_all(log: ProcessLog) -> None:
    """Envoy is told addresses: a typo in a name is refused before anything of the new configuration is in force."""
    pytest.importorskip("envoy", reason="needs the extra extproc")

    async def body() -> None:
        async with gating(extproc=ExtprocAddress(port=0)) as stand:
            gateway = stand.gateway
            before = gateway.settings
            typo = EngineAddress("typo", "no-such-host.invalid", 8000)
            wanted = replace(before, engines=(*before.engines, typo), drain_grace_s=1.0)

            taken: list[str] = []

            async def fetch() -> Configuration:
                core = core_settings("engine", "typo")
                return Configuration(wanted, core, taken=lambda: taken.append("typo"))

            async def fit() -> Configuration:
                return await fetch()

            asked = Reloader(gateway, fetch, log, Notifier({}), fit=fit)
            for ask in (asked.ask, asked.ask_to_fit):
                ask()
                await until(lambda: asked._task is None)
                assert gateway.settings is before
                assert [engine.name for engine in stand.snapshot.engines] == ["engine"]
            assert gateway.failed_reloads == 1
            assert taken == []

    run(body())


def test_behind_envoy_a_name_that_is_found_nowhere_yet_is_waited_for() -> None:
    pytest.importorskip("envoy", reason="needs the extra extproc")

    async def body() -> None:
        async with gating(extproc=ExtprocAddress(port=0), address={"host": "", "is_up": False}) as stand:
            assert stand.gateway.extproc is not None
            assert stand.gateway.extproc.port > 0

    run(body())


def test_a_queued_attempt_runs_on_an_engine_that_a_reload_has_brought() -> None:
    async def stay(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        second = FakeEngine()
        await second.start()
        async with gating(stay, core=core_settings(max_inflight=1)) as stand:
            busy, queued = await _one_queued(stand)
            engines = (*stand.gateway.settings.engines, EngineAddress("second", "127.0.0.1", second.port))
            settings = replace(stand.gateway.settings, engines=engines)
            await stand.gateway.adopt(settings, core_settings("engine", "second", max_inflight=1))
            assert (await queued.answer()).status == 200
            assert len(second.asked) == 1
            busy.leave()
            await stand.settle()
        await second.stop()

    run(body())


def test_what_falls_due_while_an_engine_is_taken_away_may_still_go_there() -> None:
    """Reading the configuration holds the loop: a client that waited for a paused account until then was told 502."""

    async def stay_or_answer(asked: Asked) -> None:
        if b"queued" in asked.body:
            asked.reply(answer())
        await asked.hung_up()

    async def body() -> None:
        second = FakeEngine()
        await second.start()
        async with gating(stay_or_answer, core=core_settings(max_inflight=1)) as stand:
            busy, queued = await _one_queued(stand)
            due: list[Event] = [Finished(1, 5, 2, released=True)]
            door = stand.gateway.door
            stand.gateway.driver.before_step = lambda: due.pop() if due and "second" in door.engines else None
            settings = replace(
                stand.gateway.settings, engines=(EngineAddress("second", "127.0.0.1", second.port),)
            )
            await stand.gateway.adopt(settings, core_settings("second", max_inflight=1))
            assert (await queued.answer()).status == 200
            assert (due, list(door.engines), len(second.asked)) == ([], ["second"], 0)
            busy.leave()
        await second.stop()

    run(body())


def stream_until(end: asyncio.Event) -> Callable[[Asked], Awaitable[None]]:
    """Return an engine's answer: a stream of one token that ends then."""

    async def stream(asked: Asked) -> None:
        asked.open_stream()
        asked.send(event("a"))
        await end.wait()
        asked.send(event(finish="stop"), b"data: [DONE]\n\n")
        asked.end_stream()

    return stream


def test_a_removed_engine_finishes_its_streams_and_gets_nothing_new() -> None:
    async def body() -> None:
        old_end = asyncio.Event()
        second = FakeEngine()
        await second.start()
        async with gating(stream_until(old_end)) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            settings = replace(
                stand.gateway.settings, engines=(EngineAddress("second", "127.0.0.1", second.port),)
            )
            await stand.gateway.adopt(settings, core_settings("second"))
            assert (await stand.ask(chat())).status == 200
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            old_end.set()
            parts = [await client.chunk() for _ in range(2)]
            assert b"[DONE]" in b"".join(parts)
            await until(lambda: stand.gateway.door.ongoing == 0)
            await until(lambda: [engine.name for engine in stand.snapshot.engines] == ["second"])
        await second.stop()

    run(body())


def test_the_counts_of_a_pod_that_leaves_stay_until_its_last_stream_has_ended() -> None:
    """`rate()` of its histograms saw a restart while it still answered, and its label stayed when it had gone."""

    async def body() -> None:
        old_end = asyncio.Event()
        second = FakeEngine()
        await second.start()
        async with gating(stream_until(old_end)) as stand:
            (old,) = [engine.name for engine in stand.snapshot.engines]
            counted = f'millgate_engine_ttft_seconds_count{{engine="{old}"}}'

            def page() -> str:
                return stand.gateway.exposition.render()[0].decode()

            clients = [await stand.client() for _ in range(2)]
            clients[0].ask(chat(stream=True))
            await clients[0].head()
            old_end.set()
            await until(lambda: stand.gateway.door.ongoing == 0)
            old_end.clear()
            assert f"{counted} 1.0" in page()

            clients[1].ask(chat(stream=True))
            await clients[1].head()
            settings = replace(
                stand.gateway.settings, engines=(EngineAddress("second", "127.0.0.1", second.port),)
            )
            await stand.gateway.adopt(settings, core_settings("second"))
            assert f"{counted} 1.0" in page()
            old_end.set()
            await until(lambda: [engine.name for engine in stand.snapshot.engines] == ["second"])
            assert f'engine="{old}"' not in page()
        await second.stop()

    run(body())


def test_an_engine_that_moves_is_reached_at_its_new_address() -> None:
    async def body() -> None:
        second = FakeEngine()
        await second.start()
        async with gating() as stand:
            assert (await stand.ask(chat())).status == 200
            moved = EngineAddress("engine", "127.0.0.1", second.port, api_key="sk-new")
            await stand.gateway.adopt(replace(stand.gateway.settings, engines=(moved,)), core_settings())
            assert (await stand.ask(chat())).status == 200
            assert second.asked[0].headers["authorization"] == "Bearer sk-new"
        await second.stop()

    run(body())


def test_what_open_sockets_stand_on_needs_a_restart_and_stays() -> None:
    async def body() -> None:
        async with gating() as stand:
            before = stand.gateway.settings
            wanted = replace(before, host="127.0.0.2", port=1, admin=AdminAddress(port=2), drain_grace_s=7.0)
            needs = await stand.gateway.adopt(wanted, core_settings())
            after = stand.gateway.settings
            assert needs == ("listen.host", "listen.port", "admin")
            assert (after.host, after.port, after.admin) == (before.host, before.port, before.admin)
            assert after.drain_grace_s == 7.0
            assert (await stand.ask(chat())).status == 200

    run(body())


CHANGED: dict[str, Any] = {
    "engines": (EngineAddress("engine", "127.0.0.1", 1),),
    "host": "127.0.0.2",
    "port": 1,
    "ssl": tls.SSLContext(tls.PROTOCOL_TLS_SERVER),
    "callers": CallerSettings(open_tenants=True),
    "admin": AdminAddress(port=2),
    "line": LineAddress(port=2),
    "cluster": ClusterSettings("redis://127.0.0.1:1", "gate", "one"),
    "extproc": ExtprocAddress(port=2),
    "door": DoorSettings(loop_lag_s=3.0),
    "server": ServerLimits(body_bytes=1024),
    "upstream": UpstreamSettings(connect_s=3.0),
    "byte_budget": 4096,
    "drain_grace_s": 7.0,
    "observers": ObserverSettings(kept_attempts=7),
    "quotas_file": "quotas.json",
    "workers": 3,
    "certificates": (Certificate("listen.tls.cert", "cert.pem", datetime.now(UTC), datetime.now(UTC)),),
}


def test_each_setting_is_taken_by_a_reload_or_named_as_one_that_needs_a_restart() -> None:
    assert list(CHANGED) == [each.name for each in fields(GatewaySettings)]

    async def body() -> None:
        for name, value in CHANGED.items():
            async with gating() as stand:
                wanted = replace(stand.gateway.settings, **{name: value})
                for _again in range(2):
                    needs = await stand.gateway.adopt(wanted, core_settings())
                    is_taken = getattr(stand.gateway.settings, name) == value
                    assert is_taken is not bool(needs), name

    run(body())


def test_each_setting_that_needs_a_restart_is_named_by_its_own_name() -> None:
    async def needs(stand: Stand, **changes: Any) -> tuple[str, ...]:
        return await stand.gateway.adopt(replace(stand.gateway.settings, **changes), core_settings())

    async def body() -> None:
        async with gating() as stand:
            tracing = TracingSettings("http://127.0.0.1:4318/v1/traces")
            assert await needs(stand, workers=3) == ("workers",)
            assert await needs(stand, quotas_file="quotas.json") == ("quotas_file",)
            assert await needs(stand, observers=ObserverSettings(tracing=tracing)) == ("tracing",)
            assert await needs(stand, observers=ObserverSettings(log_attempts="-")) == ("records",)
            assert await needs(stand, door=DoorSettings(ticket_key=b"k" * 32)) == ("retries.ticket_key_env",)

    run(body())


def test_an_engine_that_becomes_a_providers_account_is_metered() -> None:
    async def body() -> None:
        async with gating(address={"health": None}) as stand:
            (own,) = stand.gateway.settings.engines
            account = replace(stand.gateway.settings, engines=(replace(own, metered=True),))
            await stand.gateway.adopt(account, core_settings())
            (route,) = stand.gateway.fleet.routes
            assert isinstance(route.upstream, UpstreamPool)
            assert route.upstream.on_head is not None

    run(body())


def test_a_wrong_configuration_is_counted_and_changes_nothing(log: ProcessLog) -> None:
    async def body() -> None:
        async with gating() as stand:
            gateway = stand.gateway
            before = gateway.settings
            wrong = True

            async def fetch() -> Configuration:
                if wrong:
                    raise ReloadError("gate.yaml:3:5: limits.bodi: is not a setting")
                return Configuration(gateway.settings, core_settings(max_inflight=9))

            reload = reloader(gateway, fetch, log)
            reload.ask()
            await until(lambda: gateway.failed_reloads == 1)
            assert (gateway.settings, gateway.reload_success) == (before, False)
            assert stand.snapshot.engines[0].limit == 4
            wrong = False
            reload.ask()
            await until(lambda: gateway.reload_success)
            assert (gateway.reloads, gateway.failed_reloads) == (2, 1)
            assert stand.snapshot.engines[0].limit == 9

    run(body())


def test_of_a_storm_the_last_word_wins_and_no_request_is_lost(log: ProcessLog) -> None:
    async def body() -> None:
        async with gating() as stand:
            gateway = stand.gateway
            limit = 4
            finished = False

            async def fetch() -> Configuration:
                seen = limit
                await asyncio.sleep(0.002)
                return Configuration(gateway.settings, core_settings(max_inflight=seen))

            async def load(client: Client) -> int:
                served = 0
                while not finished:
                    client.ask(chat(stream=served % 2 == 0))
                    got = await client.answer()
                    assert (got.status, got.whole) == (200, True)
                    served += 1
                return served

            reload = reloader(gateway, fetch, log)
            loads = [asyncio.ensure_future(load(await stand.client())) for _ in range(4)]
            for number in range(100):
                limit = 5 + number
                reload.ask()
                await asyncio.sleep(0.002)
            await until(lambda: stand.snapshot.engines[0].limit == 104)
            finished = True
            assert min(await asyncio.gather(*loads)) > 5
            assert 2 <= gateway.reloads <= 100
            await stand.settle()
            assert stand.outcomes() == {"good": stand.lane.arrived}

    run(body())


def test_engines_that_are_found_while_a_wrong_file_is_read_are_taken_after_it(log: ProcessLog) -> None:
    """A name tells a change of its addresses once: the gate went on with pods that had left until the next change."""

    async def body() -> None:
        async with gating() as stand:
            gateway = stand.gateway

            async def fetch() -> Configuration:
                raise ReloadError("gate.yaml:3:5: limits.bodi: is not a setting")

            async def fit() -> Configuration:
                return Configuration(gateway.settings, core_settings(max_inflight=9))

            asked = Reloader(gateway, fetch, log, Notifier({}), fit=fit)
            asked.ask()
            asked.ask_to_fit()
            await until(lambda: asked._task is None)
            assert gateway.failed_reloads == 1
            assert stand.snapshot.engines[0].limit == 9

    run(body())


def test_a_gateway_that_leaves_is_not_reloaded(log: ProcessLog) -> None:
    async def body() -> None:
        async with gating() as stand:

            async def fetch() -> Configuration:
                raise AssertionError("nobody should ask")

            reload = reloader(stand.gateway, fetch, log)
            await stand.gateway.drain()
            reload.ask()
            await asyncio.sleep(0)
            assert stand.gateway.reloads == 0

    run(body())


def test_lanes_are_reloaded_and_keep_what_waits_in_them() -> None:
    async def stay(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        lanes = [LaneSettings("interactive"), LaneSettings("bulk")]
        async with gating(stay, core=core_settings(max_inflight=1)) as stand:
            busy, queued = await _one_queued(stand)
            await stand.gateway.adopt(stand.gateway.settings, core_settings(max_inflight=1, lanes=lanes))
            assert [(lane.name, lane.queued) for lane in stand.snapshot.lanes] == [
                ("interactive", 1),
                ("bulk", 0),
            ]
            busy.leave()
            queued.leave()
            await stand.settle()

    run(body())


def test_a_lane_that_a_reload_has_taken_away_leaves_the_page_and_the_metrics_with_its_last_stream() -> None:
    """The page showed it for ever: *runs at once*, within another lane's deadline, as if the reload had failed."""

    async def body() -> None:
        end = asyncio.Event()
        lanes = [LaneSettings("bulk"), LaneSettings("interactive")]
        async with gating(stream_until(end), core=core_settings(lanes=lanes)) as stand:
            (name,) = [engine.name for engine in stand.snapshot.engines]
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            settings = core_settings(name, lanes=lanes[1:])
            await stand.gateway.adopt(stand.gateway.settings, settings)

            def page() -> str:
                return stand.gateway.exposition.render()[0].decode()

            assert 'millgate_running{lane="bulk"} 1.0' in page()
            end.set()
            await until(lambda: [lane.name for lane in stand.snapshot.lanes] == ["interactive"])
            assert 'lane="bulk"' not in page()

    run(body())
