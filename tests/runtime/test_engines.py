"""Watching engines through their metrics pages."""

import asyncio
import time
from itertools import pairwise

from gateway.harness import Asked, FakeEngine, chat, run, standing, until
from millgate.core.decisions import Decision
from millgate.core.events import EngineSeen, Event
from millgate.gateway import EngineAddress, ask_engine
from millgate.runtime.engines import POLL_S

PAGE = b"""vllm:num_requests_running 3
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
"""


class Readings:
    """Collects the readings that are posted, with the time at which the core heard of each."""

    def __init__(self) -> None:
        self.seen: list[tuple[EngineSeen, float]] = []

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        if isinstance(event, EngineSeen):
            self.seen.append((event, now))


def test_gauges_are_posted_with_the_time_at_which_they_were_asked_for() -> None:
    async def body() -> None:
        async with standing(metrics=PAGE + b"vllm:num_preemptions_total 7.0\n") as stand:
            readings = Readings()
            stand.gateway.driver.observers.append(readings)
            await until(lambda: readings.seen)
            seen, now = readings.seen[0]
            assert (seen.running, seen.waiting, seen.kv_share, seen.preemptions) == (3, 1, 0.5, 7)
            assert stand.snapshot.engines[0].seen_preemptions == 7
            assert now - 1 < seen.seen_at < now

    run(body())


def test_an_engine_without_metrics_is_no_failure() -> None:
    async def body() -> None:
        async with standing() as stand:
            await until(lambda: stand.engine.scrapes)
            assert (await stand.ask(chat())).status == 200
            engine = stand.snapshot.engines[0]
            assert engine.up
            assert engine.seen_running is None

    run(body())


def test_hangups_are_followed_by_extra_looks_but_never_by_a_flood() -> None:
    async def wait_for_ever(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        async with standing(wait_for_ever, metrics=PAGE, max_inflight=64) as stand:
            began = time.monotonic()
            await until(lambda: stand.engine.scrapes == 1)
            clients = [await stand.client() for _ in range(30)]
            for number, client in enumerate(clients):
                client.ask(chat(str(number)))
            await stand.engine.next(30)
            for client in clients:
                client.leave()
            await until(lambda: stand.engine.scrapes >= 3)
            await asyncio.sleep(0.3)
            polls = (time.monotonic() - began) / POLL_S
            assert stand.engine.scrapes <= 5 + polls

    run(body())


def test_a_llama_server_is_left_alone_until_it_has_looked_for_clients_that_have_left() -> None:
    """Each reading of its metrics puts off its look by a second: a llama-server that is read every second never looks."""

    async def wait_for_ever(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        page = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
        async with standing(wait_for_ever, metrics=page) as stand:
            readings = Readings()
            stand.gateway.driver.observers.append(readings)
            await until(lambda: readings.seen)
            client = await stand.client()
            client.ask(chat())
            await stand.engine.next(1)
            left_at = time.monotonic()
            client.leave()
            await until(lambda: readings.seen[-1][0].seen_at > left_at + 1.0)
            times = [seen.seen_at for seen, _ in readings.seen]
            gaps = [after - before for before, after in pairwise(times) if after > left_at + 0.1]
            assert gaps[0] > 1.1

    run(body())


def test_a_llama_server_is_left_alone_for_more_than_a_second_between_any_two_readings() -> None:
    """It notices a client that left while others were answered in a second without a reading: no later hang-up asks the gate for such a one."""

    async def body() -> None:
        page = b"llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
        async with standing(metrics=page) as stand:
            readings = Readings()
            stand.gateway.driver.observers.append(readings)
            await until(lambda: len(readings.seen) >= 4)
            times = [seen.seen_at for seen, _ in readings.seen]
            # The first two are on their way before the engine is known by its page.
            assert min(after - before for before, after in pairwise(times[1:])) > 1.1

    run(body())


def test_what_sglang_shows_counts_as_a_second_old() -> None:
    """It renews its gauges at every fortieth step: a client that has just left may still be missing in them, or still be there."""

    async def body() -> None:
        page = b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\n"
        async with standing(metrics=page) as stand:
            readings = Readings()
            stand.gateway.driver.observers.append(readings)
            await until(lambda: readings.seen)
            assert readings.seen[0][0].seen_at <= time.monotonic() - 1.0

    run(body())


def test_an_engine_tells_its_size_before_the_gate_starts() -> None:
    async def body() -> None:
        engine = FakeEngine(metrics=PAGE)
        await engine.start()
        gauges = await ask_engine(EngineAddress("e", "127.0.0.1", engine.port))
        assert gauges is not None
        assert gauges.kv_tokens == 1600
        await engine.stop()
        assert await ask_engine(EngineAddress("e", "127.0.0.1", engine.port), within_s=0.5) is None

    run(body())
