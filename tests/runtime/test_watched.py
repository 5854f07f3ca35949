"""Engines that take no new connections, and engines that come back: what becomes of streams, and who tries them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.talk import chat, request
from gateway.harness import run, until
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings, fleet
from millgate.http1.client import UpstreamSettings
from millgate.runtime.health import HealthSettings
from millgate.servers.http.whole_bound import GivenUp
from millgate.wiring.governor import build_governor

QUICK = HealthSettings(poll_s=0.05, quick_poll_s=0.02, page_within_s=0.3)
STREAM_HEAD = answers.head(200, answers.EVENT_STREAM)
ENDING = answers.chunks(answers.event(finish="stop"), answers.DONE) + answers.LAST_CHUNK


@contextlib.asynccontextmanager
async def gate_before(upstream: FakeUpstream, idle_s: float = 60.0) -> AsyncIterator[Gateway]:
    """Serve with a minute of patience for silence, or as told, and a third of a second once nobody listens there."""
    core = Settings((LaneSettings("interactive"),), (EngineSettings("a", 4),))
    settings = GatewaySettings(
        engines=(EngineAddress("a", "127.0.0.1", upstream.port),),
        port=0,
        upstream=UpstreamSettings(chunk_idle_s=idle_s, deserted_idle_s=0.3),
    )
    gateway = Gateway(build_governor(core, time.monotonic()), settings)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def streamed(gateway: Gateway, upstream: FakeUpstream) -> bytes:
    """Ask for a stream, let the engine desert when it has begun, and return all that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        writer.write(request(chat(stream=True)))
        got = await reader.readuntil(b"begun")
        upstream.desert()
        await until(lambda: not gateway.driver.snapshot().engines[0].up)
        with contextlib.suppress(ConnectionResetError):
            while not got.endswith(answers.LAST_CHUNK) and (piece := await reader.read(65536)):
                got += piece
        return got
    finally:
        writer.close()


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "HEALTH", QUICK)


def test_a_stream_of_an_engine_that_takes_no_connections_and_says_nothing_is_broken_off_soon() -> None:
    """INV-10: with an error event and a cut; vLLM that is stopped keeps such streams open for ever."""

    async def fall_silent(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD + answers.chunks(answers.event("begun")))
        await line.stall()

    async def body() -> None:
        async with FakeUpstream(fall_silent) as upstream, gate_before(upstream) as gateway:
            got = await streamed(gateway, upstream)
            assert b'"error"' in got
            assert b"[DONE]" not in got
            assert not got.endswith(answers.LAST_CHUNK)
            await until(lambda: upstream.aborted == 1)
            (failed,) = [n for word, n in gateway.driver.snapshot().lanes[0].outcomes if n]
            assert failed == 1

    run(body())


def test_a_stream_that_goes_on_speaking_is_heard_to_its_end() -> None:
    """A server that is stopped in good manners finishes what it has begun."""

    async def go_on(line: ScriptedConnection) -> None:
        await line.send(STREAM_HEAD + answers.chunks(answers.event("begun")))
        for _ in range(10):
            await asyncio.sleep(0.1)
            await line.send(answers.chunks(answers.event("more")))
        await line.send(ENDING)

    async def body() -> None:
        async with FakeUpstream(go_on) as upstream, gate_before(upstream) as gateway:
            got = await streamed(gateway, upstream)
            assert got.endswith(answers.LAST_CHUNK)
            assert b"[DONE]" in got
            assert b'"error"' not in got

    run(body())


async def answered_whole(gateway: Gateway) -> bytes:
    """Ask for a whole answer and return all that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        writer.write(request(chat()))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return head + await reader.readexactly(length)
    finally:
        writer.close()


def test_a_whole_answer_of_an_engine_that_hangs_is_given_up_long_before_it_could_be_there() -> None:
    """The longest that may come would take many minutes; nothing answers at its health page any more."""

    async def body() -> None:
        async with (
            FakeUpstream(ScriptedConnection.stall) as upstream,
            gate_before(upstream, idle_s=0.3) as gateway,
        ):
            told: list[GivenUp] = []
            gateway.door.on_given_up = told.append
            asking = asyncio.ensure_future(answered_whole(gateway))
            await until(lambda: upstream.answering == 1)
            upstream.desert()
            got = await asking
            assert got.startswith(b"HTTP/1.1 504")
            assert [(each.setting, each.why) for each in told] == [
                ("limits.upstream_idle", "silent for 0.3 s, and nothing answers there any more")
            ]
            await until(lambda: not gateway.driver.snapshot().engines[0].running)

    run(body())


def test_a_whole_answer_is_waited_for_in_silence_while_the_health_page_answers() -> None:
    async def take_long(line: ScriptedConnection) -> None:
        await asyncio.sleep(1.5)
        await line.send(answers.whole(answers.completion("late")))

    async def body() -> None:
        async with FakeUpstream(take_long) as upstream, gate_before(upstream, idle_s=0.3) as gateway:
            got = await answered_whole(gateway)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"late" in got

    run(body())


class Ailing:
    """An engine that fails what it gets, until it is `silent`, and then until it is `well`."""

    def __init__(self) -> None:
        self.well = asyncio.Event()
        self.silent = False

    async def __call__(self, line: ScriptedConnection) -> None:
        if self.silent:
            await self.well.wait()
        if self.well.is_set():
            await line.send(answers.whole(answers.completion("well")))
        else:
            await line.send(answers.whole(answers.error(500), 500, answers.JSON))


async def answer_slowly(line: ScriptedConnection) -> None:
    await asyncio.sleep(0.02)
    await line.send(answers.whole(answers.completion("slow")))


async def keep_asking(gateway: Gateway, times: int | None = None) -> None:
    """Ask again and again, or so many times, whatever the answer, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for _ in itertools.count() if times is None else range(times):
            writer.write(request(chat()))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
    finally:
        writer.close()


def is_left_alone(gateway: Gateway, number: int) -> bool:
    engine = gateway.driver.snapshot().engines[number]
    return not engine.up and not engine.running


def test_an_engine_that_comes_back_is_tried_with_one_request_while_the_others_go_elsewhere() -> None:
    async def body() -> None:
        ailing = Ailing()
        async with FakeUpstream(answer_slowly) as steady, FakeUpstream(ailing) as ill:
            lane = LaneSettings("interactive", ttft_slo_s=60.0, deadline_s=60.0)
            core = Settings((lane,), (EngineSettings("steady", 2), EngineSettings("ill", 8)))
            addresses = [EngineAddress(n, "127.0.0.1", u.port) for n, u in (("steady", steady), ("ill", ill))]
            settings = GatewaySettings(engines=tuple(addresses), port=0)
            gateway = Gateway(build_governor(core, time.monotonic()), settings)
            await gateway.start()
            crowd = [asyncio.ensure_future(keep_asking(gateway)) for _ in range(20)]
            try:
                await until(lambda: is_left_alone(gateway, 1))
                ailing.silent, failed = True, len(ill.received)
                await until(lambda: ill.answering == 1)
                served = len(steady.received)
                await until(lambda: len(steady.received) >= served + 20)
                assert len(ill.received) == failed + 1, "one, while many wait"
                ailing.well.set()
                await until(lambda: len(ill.received) >= failed + 20)
            finally:
                for client in crowd:
                    client.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)
                await gateway.stop()

    run(body())


async def stay_up_through(*rounds: tuple[int, int]) -> None:
    """Ask two engines with one permit each, both at once, round by round; whatever they answer, both take work after each."""
    together = asyncio.Barrier(2)

    def answering(number: int) -> Callable[[ScriptedConnection], Awaitable[None]]:
        statuses = iter([each[number] for each in rounds])

        async def script(line: ScriptedConnection) -> None:
            await together.wait()
            status = next(statuses)
            body = answers.completion("well") if status == 200 else answers.error(status)
            await line.send(answers.whole(body, status, answers.JSON))

        return script

    async with FakeUpstream(answering(0)) as first, FakeUpstream(answering(1)) as second:
        lane = LaneSettings("interactive", ttft_slo_s=60.0, deadline_s=60.0)
        core = Settings((lane,), (EngineSettings("first", 1), EngineSettings("second", 1)))
        addresses = [EngineAddress(n, "127.0.0.1", u.port) for n, u in (("first", first), ("second", second))]
        gateway = Gateway(
            build_governor(core, time.monotonic()), GatewaySettings(engines=tuple(addresses), port=0)
        )
        await gateway.start()
        try:
            for statuses in rounds:
                await asyncio.gather(keep_asking(gateway, 1), keep_asking(gateway, 1))
                assert all(engine.up for engine in gateway.driver.snapshot().engines), statuses
        finally:
            await gateway.stop()


def test_requests_that_fail_at_every_engine_take_none_out_that_answers_others() -> None:
    """llama.cpp says 500 to a text that is longer than its batch: one client with many of these had the whole pool but for one engine."""
    bad, good = (500, 500), (200, 200)
    run(stay_up_through(bad, good, bad, bad, bad, bad, good))


def test_an_engine_that_does_no_work_of_this_kind_is_not_out_for_that() -> None:
    run(stay_up_through(*[(501, 200)] * 4))


def test_a_dead_last_engine_is_taken_out_while_requests_keep_failing_there() -> None:
    """Each failure asks for a look; it must not postpone the look that the failure before it has asked for."""

    async def body() -> None:
        async with FakeUpstream(answer_slowly) as upstream, gate_before(upstream) as gateway:
            upstream.desert()
            asking = asyncio.ensure_future(keep_asking(gateway))
            try:
                await until(lambda: not gateway.driver.snapshot().engines[0].up)
                assert not gateway.ready().ready
                assert not asking.done(), "requests came all the time"
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    run(body())
