"""Several engines behind one gateway: one fails, and its work goes elsewhere; nobody is asked to wait for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from gateway.harness import Answer, Asked, Client, FakeEngine, answer, answer_whole, chat, run, until
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings, fleet
from millgate.observe.live.banner import Level
from millgate.runtime.health import EngineStanding, HealthSettings, Stance
from millgate.testing import FaultProxy
from millgate.wiring.governor import build_governor

# Fast enough that nobody is refused for what is predicted.
FAST = ServicePrior(0.001, 0.0, 0.0001, 0.0)
# Looks are quick; failures count for so long that they do on a busy machine, too.
QUICK = HealthSettings(
    poll_s=0.05, quick_poll_s=0.02, page_within_s=0.3, failures_within_s=120.0, shortest_probation_s=0.1
)


@dataclass
class Plant:
    """A gateway before several engines, each behind a proxy that can be broken."""

    gateway: Gateway
    engines: list[FakeEngine]
    proxies: list[FaultProxy]
    core: Settings

    async def ask(
        self,
        body: bytes = chat(),
        path: bytes = b"/v1/chat/completions",
        method: bytes = b"POST",
        retry: str = "0",
    ) -> Answer:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        client.ask(body, path, method, {"x-stainless-retry-count": retry})
        got = await client.answer()
        client.leave()
        return got

    @property
    def up(self) -> list[bool]:
        return [engine.up for engine in self.gateway.driver.snapshot().engines]

    @property
    def stances(self) -> list[Stance]:
        return [each.stance for each in self.gateway.fleet.standings]

    def outcomes(self) -> dict[str, int]:
        return {word.value: n for word, n in self.gateway.driver.snapshot().lanes[0].outcomes if n}

    async def kill(self, index: int) -> None:
        """Cut an engine's connections and refuse new ones."""
        await self.proxies[index].stop()

    async def revive(self, index: int) -> None:
        await self.proxies[index].start()

    async def settled(self) -> None:
        """Check that every attempt has had its one outcome and every permit is back (INV-1, INV-3)."""
        snapshot = self.gateway.driver.snapshot
        await until(lambda: not any(each.running + each.departing for each in snapshot().engines))
        lane = snapshot().lanes[0]
        assert lane.queued == 0
        assert sum(self.outcomes().values()) == lane.arrived


@contextlib.asynccontextmanager
async def plant(
    count: int, *, max_inflight: int = 4, lane: LaneSettings | None = None
) -> AsyncIterator[Plant]:
    engines = [FakeEngine(answer_whole) for _ in range(count)]
    for each in engines:
        await each.start()
    proxies = [FaultProxy(each.port) for each in engines]
    for proxy in proxies:
        await proxy.start()
    names = "abcdef"[:count]
    page = None if fleet.HEALTH.target is None else "/health"
    core = Settings(
        (lane or LaneSettings("lane"),),
        tuple(EngineSettings(name, max_inflight, prior=FAST) for name in names),
    )
    addresses = tuple(
        EngineAddress(name, "127.0.0.1", proxy.port, health=page)
        for name, proxy in zip(names, proxies, strict=True)
    )
    gateway = Gateway(build_governor(core, time.monotonic()), GatewaySettings(engines=addresses, port=0))
    await gateway.start()
    try:
        yield Plant(gateway, engines, proxies, core)
    finally:
        await gateway.stop()
        for proxy in proxies:
            await proxy.stop()
        for each in engines:
            await each.stop()


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask health pages, at the pace of a test."""
    monkeypatch.setattr(fleet, "HEALTH", QUICK)


@pytest.fixture
def by_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no page: only requests tell."""
    monkeypatch.setattr(fleet, "HEALTH", replace(QUICK, target=None, shortest_probation_s=0.2))


@pytest.mark.usefixtures("by_requests")
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_a_dead_engine_never_had_is_answered_by_another(stream: bool) -> None:
    async def body() -> None:
        async with plant(2) as stand:
            await stand.kill(0)
            for _ in range(10):
                assert (await stand.ask(chat(stream=stream))).status == 200
            assert stand.outcomes() == {"good": 10}
            assert len(stand.engines[1].asked) == 10
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_when_no_engine_can_be_reached_the_client_is_told_once_and_honestly() -> None:
    async def body() -> None:
        async with plant(2) as stand:
            await stand.kill(0)
            await stand.kill(1)
            got = await stand.ask()
            assert (got.status, got.error["code"]) == (502, "upstream_unreachable")
            again = await stand.ask(retry="1")
            hints_s = [float(each.headers["retry-after-ms"]) / 1000 for each in (got, again)]
            assert 5.0 <= hints_s[0] < 10.0 <= hints_s[1] < 20.0, (
                "clients that found no engine do not come back at once"
            )
            assert stand.outcomes() == {"engine_failed": 2}
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_who_finds_the_other_engine_full_waits_for_it_first_in_line() -> None:
    release = asyncio.Event()

    async def wait_once(asked: Asked) -> None:
        await release.wait()
        asked.reply(answer())

    async def body() -> None:
        async with plant(2, max_inflight=1) as stand:
            stand.engines[1].script = wait_once
            running = [asyncio.create_task(stand.ask(chat(str(n)))) for n in range(2)]
            await stand.engines[1].next()
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await stand.kill(0)
            queued = asyncio.create_task(stand.ask(chat("third")))
            await until(lambda: stand.gateway.driver.snapshot().lanes[0].queued)
            release.set()
            assert (await queued).status == 200
            assert [(await each).status for each in running] == [200, 200]
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_what_the_engine_may_have_begun_is_not_sent_again() -> None:
    async def cut(asked: Asked) -> None:
        asked.cut()

    async def body() -> None:
        async with plant(2) as stand:
            for engine in stand.engines:
                engine.script = cut
            got = await stand.ask()
            assert (got.status, got.error["code"]) == (502, "upstream_broken")
            assert sum(len(engine.asked) for engine in stand.engines) == 1
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_an_engine_that_fails_three_times_is_left_alone_tried_once_and_taken_back() -> None:
    async def broken(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"boom"}}', 500)

    async def body() -> None:
        async with plant(2) as stand:
            stand.engines[0].script = broken
            while stand.up[0]:
                assert (await stand.ask()).status in {200, 500}
            failures = len(stand.engines[0].asked)
            assert failures == 3
            assert [(await stand.ask()).status for _ in range(5)] == [200] * 5
            assert len(stand.engines[0].asked) == failures

            stand.engines[0].script = answer_whole
            await until(lambda: stand.stances[0] is Stance.TRIAL)
            while stand.stances[0] is not Stance.UP:
                assert (await stand.ask()).status == 200
            assert stand.up == [True, True]
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("by_requests")
@pytest.mark.parametrize("status", [400, 404, 429, 503, 529])
def test_refusals_and_complaints_are_no_illness(status: int) -> None:
    async def refuse(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no"}}', status)

    async def body() -> None:
        async with plant(2) as stand:
            for engine in stand.engines:
                engine.script = refuse
            for _ in range(8):
                assert (await stand.ask()).status == status
            assert stand.up == [True, True]

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_one_clients_bad_requests_neither_hide_that_an_engine_fails_nor_end_its_trial() -> None:
    async def half_dead(asked: Asked) -> None:
        """Answer as an API server whose model is dead: it still knows which names it does not serve."""
        unknown = b"unknown" in asked.body
        asked.reply(b'{"error":{"message":"no"}}', 404 if unknown else 500)

    async def body() -> None:
        async with plant(2) as stand:
            for engine in stand.engines:
                engine.script = half_dead
            check = stand.gateway.fleet._engines["a"].check
            seen: set[bool] = (
                set()
            )  # at each request: on a busy machine the last may be a second after it was out
            for _ in range(12):
                assert (await stand.ask(chat("unknown"))).status in {404, 503}
                if (await stand.ask()).status == 503:
                    break
                seen.update(stand.up)
            assert False in {*seen, *stand.up}
            stand.engines[1].script = answer_whole
            await until(lambda: check.health.stance is Stance.TRIAL)
            before = len(stand.engines[0].asked)
            while len(stand.engines[0].asked) < before + 2:
                await stand.ask(chat("unknown"))
            assert not stand.up[0] or check.standing.stance is Stance.TRIAL
            stand.engines[0].script = answer_whole
            while stand.stances[0] is not Stance.UP:
                await stand.ask()

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_a_lone_engine_that_fails_every_request_is_told_although_its_page_is_good() -> None:
    async def broken(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"boom"}}', 500)

    async def body() -> None:
        async with plant(1) as stand:
            told: list[EngineStanding] = []
            stand.gateway.fleet.on_turn = told.append
            stand.engines[0].script = broken
            for _ in range(5):
                assert (await stand.ask()).status == 500
            assert [each.failing for each in told] == [
                f"{number} requests in a row failed: status 500" for number in (3, 4, 5)
            ]
            assert stand.gateway.views.live is not None
            said = stand.gateway.views.live.page_model.verdict()
            assert said.level is Level.WARNED
            assert said.text == (
                "Engines fail requests; 100 % failed on engines; a: 5 requests in a row failed: status 500"
            )
            stand.engines[0].script = answer_whole
            assert (await stand.ask()).status == 200
            said = stand.gateway.views.live.page_model.verdict()
            assert said.text == "Engines fail requests; 83 % failed on engines"

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_a_health_page_that_turns_bad_takes_the_engine_out_and_its_return_brings_it_back() -> None:
    async def body() -> None:
        async with plant(2) as stand:
            stand.engines[0].health = 503
            await until(lambda: stand.up == [False, True])
            assert stand.gateway.fleet.standings[0].why == "its health page says 503"
            stand.engines[0].health = 200
            await until(lambda: stand.up == [True, True])

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_an_engine_without_a_health_page_is_alive() -> None:
    async def body() -> None:
        async with plant(1) as stand:
            stand.engines[0].health = 404
            health = stand.gateway.fleet._engines["a"].check.health
            await until(lambda: health._good_looks >= 3)
            assert stand.up == [True]

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_a_single_engine_is_down_no_longer_than_it_is_away() -> None:
    async def body() -> None:
        async with plant(1) as stand:
            await stand.kill(0)
            await until(lambda: stand.up == [False])
            got = await stand.ask()
            assert (got.status, got.error["code"]) == (503, "no_healthy_upstream")
            await stand.revive(0)
            await until(lambda: stand.up == [True])
            assert (await stand.ask()).status == 200
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_an_engine_that_was_down_takes_work_as_soon_as_a_reload_names_where_it_is() -> None:
    async def body() -> None:
        async with plant(1) as stand:
            told: list[tuple[str, Stance]] = []
            stand.gateway.fleet.on_turn = lambda standing: told.append((standing.name, standing.stance))
            await stand.kill(0)
            await until(lambda: stand.up == [False])
            settings = stand.gateway.settings
            moved = replace(settings.engines[0], port=stand.engines[0].port)
            await stand.gateway.adopt(replace(settings, engines=(moved,)), stand.core)
            assert (stand.up, stand.stances) == ([True], [Stance.UP])
            assert (await stand.ask()).status == 200
            wrong = replace(moved, port=stand.proxies[0].port, is_up=False)
            await stand.gateway.adopt(replace(settings, engines=(wrong,)), stand.core)
            assert (stand.up, stand.stances) == ([False], [Stance.DOWN])
            assert told == [("a", Stance.DOWN), ("a", Stance.UP), ("a", Stance.DOWN)]
            await stand.settled()

    run(body())


@pytest.mark.usefixtures("looked_at")
def test_a_single_engine_that_answers_its_page_is_not_taken_out_for_failed_requests() -> None:
    async def broken(asked: Asked) -> None:
        asked.cut()

    async def body() -> None:
        async with plant(1) as stand:
            stand.engines[0].script = broken
            for _ in range(6):
                assert (await stand.ask()).status == 502
            assert stand.up == [True]
            stand.engines[0].script = answer_whole
            assert (await stand.ask()).status == 200

    run(body())


@pytest.mark.usefixtures("by_requests")
def test_impatient_clients_cannot_talk_an_engine_down() -> None:
    async def slow(asked: Asked) -> None:
        if b"slow" in asked.body:
            await asyncio.sleep(5)
        asked.reply(answer())

    async def impatient(stand: Plant) -> int:
        client = Client(*await asyncio.open_connection("127.0.0.1", stand.gateway.port))
        client.ask(chat("slow"), headers={"x-millgate-deadline-ms": "300"})
        got = await client.answer()
        client.leave()
        return got.status

    async def body() -> None:
        async with plant(2, max_inflight=16) as stand:
            for engine in stand.engines:
                engine.script = slow
            waiting = [asyncio.create_task(impatient(stand)) for _ in range(12)]
            while not all(each.done() for each in waiting):
                assert (await stand.ask()).status == 200
            assert sum(each.result() == 504 for each in waiting) >= 6
            assert stand.up == [True, True]

    run(body())


def test_a_light_request_goes_to_an_engine_that_is_up_and_to_the_next_when_it_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "HEALTH", HealthSettings(target=None, poll_s=0.05, shortest_probation_s=30.0))

    async def tokens(asked: Asked) -> None:
        asked.reply(b'{"count":1,"tokens":[1]}')

    async def body() -> None:
        async with plant(3) as stand:
            for engine in stand.engines:
                engine.script = tokens
            await stand.kill(0)
            assert (await stand.ask(b'{"prompt":"x"}', b"/tokenize")).status == 200
            assert [len(engine.asked) for engine in stand.engines] == [0, 1, 0]
            await stand.kill(1)
            got = await stand.ask(b'{"prompt":"x"}', b"/tokenize")
            assert (got.status, got.error["code"]) == (502, "upstream_unreachable")
            while stand.up != [False, False, True]:
                await stand.ask(b'{"prompt":"x"}', b"/tokenize")
            assert (await stand.ask(b'{"prompt":"x"}', b"/tokenize")).status == 200
            assert stand.gateway.door.ongoing == 0

    run(body())


def test_gauges_may_stand_at_a_port_of_their_own() -> None:
    """Triton shows its metrics at a port of their own."""

    async def body() -> None:
        page = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n"
        engine, gauges = FakeEngine(answer_whole), FakeEngine(answer_whole, page)
        await engine.start()
        await gauges.start()
        address = EngineAddress(
            "engine", "127.0.0.1", engine.port, base_path="/models", metrics=f":{gauges.port}/metrics"
        )
        core = Settings((LaneSettings("lane"),), (EngineSettings("engine", 4, prior=FAST),))
        gateway = Gateway(build_governor(core, time.monotonic()), GatewaySettings((address,), port=0))
        await gateway.start()
        try:
            await until(lambda: gateway.driver.snapshot().engines[0].seen_running == 3)
            asked = await fleet.ask_engine(address)
            assert asked is not None
            assert asked.running == 3
            assert not engine.scrapes
        finally:
            await gateway.stop()
            await engine.stop()
            await gauges.stop()

    run(body())


def test_an_engine_without_a_metrics_page_is_not_asked_for_one() -> None:
    async def body() -> None:
        engine = FakeEngine(answer_whole, b"vllm:num_requests_running 3\n")
        await engine.start()
        address = EngineAddress("engine", "127.0.0.1", engine.port, metrics=None)
        core = Settings((LaneSettings("lane"),), (EngineSettings("engine", 4, prior=FAST),))
        gateway = Gateway(build_governor(core, time.monotonic()), GatewaySettings((address,), port=0))
        await gateway.start()
        try:
            client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
            client.ask(chat())
            assert (await client.answer()).status == 200
            client.leave()
            await asyncio.sleep(0.5)
            assert not engine.scrapes
        finally:
            await gateway.stop()
            await engine.stop()

    run(body())
