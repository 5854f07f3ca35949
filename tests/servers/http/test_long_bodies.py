"""Requests whose bodies are read elsewhere: all else about them is as about any other."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator

from gateway.harness import DONE, Stand, answer, chat, run, standing, until
from millgate.core.decisions import Decision
from millgate.core.events import Arrived, Event
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.http import DoorSettings
from millgate.servers.http.long_requests import LongRequest

LONG = "x" * (LONG_BYTES + 1)


def process_of(stand: Stand) -> int:
    process = stand.gateway.door.long_bodies._process
    assert process is not None
    return process.pid


@contextlib.contextmanager
def halted(stand: Stand) -> Iterator[None]:
    """Let the reader do nothing until the block ends."""
    os.kill(process_of(stand), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_of(stand), signal.SIGCONT)


def booked(stand: Stand) -> int:
    return stand.gateway.server.budget.held_bytes


def test_a_long_body_passes_unchanged_and_is_counted() -> None:
    async def body() -> None:
        async with standing() as stand:
            sent = chat(LONG, max_tokens=5)
            got = await stand.ask(sent)
            assert (got.status, got.body) == (200, answer())
            assert (await stand.engine.next()).body == sent
            await stand.settle()
            assert stand.outcomes() == {"good": 1}
            assert booked(stand) == 0

    run(body())


def test_a_long_stream_is_asked_for_its_usage_unless_its_body_speaks_of_it() -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(LONG, stream=True))
            assert got.body.endswith(DONE)
            assert (await stand.engine.next()).body == b'{"stream_options":{"include_usage":true},' + chat(
                LONG, stream=True
            )[1:]
            spoken = chat(LONG, stream=True, stream_options=None)
            await stand.ask(spoken)
            assert (await stand.engine.next(2)).body == spoken

    run(body())


def test_a_long_body_that_is_refused_is_not_kept() -> None:
    """A cycle kept each, beside the budget of bodies: some hundred refused bodies of 8 MB were more memory than a host has."""

    async def body() -> None:
        async with standing() as stand:
            gc.disable()  # what waits for a while is in its last generation, which is hardly ever looked at
            try:
                refused = await stand.ask(chat(LONG, max_tokens=-1))
                assert refused.status == 400
                await stand.settle()
                assert [each for each in gc.get_objects() if isinstance(each, LongRequest)] == []
            finally:
                gc.enable()

    run(body())


def test_a_long_body_with_a_fault_is_refused_as_a_short_one_is() -> None:
    async def body() -> None:
        async with standing() as stand:
            refusals = [await stand.ask(chat(content, max_tokens=-1)) for content in ("x", LONG)]
            assert [got.status for got in refusals] == [400, 400]
            assert refusals[0].body == refusals[1].body
            assert stand.gateway.door.rejected == 2
            assert stand.gateway.door.ongoing == 0

    run(body())


def test_a_model_that_no_engine_has_is_refused_in_a_long_body_too() -> None:
    async def body() -> None:
        async with standing(door=DoorSettings(models=frozenset({"other"}))) as stand:
            assert (await stand.ask(chat(LONG))).status == 404

    run(body())


def test_requests_behind_a_long_one_on_its_connection_wait_and_those_on_others_do_not() -> None:
    async def body() -> None:
        async with standing() as stand:
            await stand.ask(chat(LONG))
            client = await stand.client()
            with halted(stand):
                client.ask(chat(LONG, n=1))
                await until(lambda: stand.gateway.door.ongoing == 1)
                client.ask(chat("second"))
                for _ in range(20):
                    assert (await stand.ask(chat("beside"))).status == 200
                assert len(stand.engine.asked) == 21
            for _ in range(2):
                assert (await client.answer()).status == 200
            assert [len(asked.body) > LONG_BYTES for asked in stand.engine.asked[-2:]] == [True, False]

    run(body())


def test_a_client_that_leaves_while_its_body_is_read_costs_no_engine_and_gives_its_bytes_back() -> None:
    async def body() -> None:
        async with standing() as stand:
            await stand.ask(chat(LONG))
            with halted(stand):
                clients = [await stand.client() for _ in range(3)]
                for client in clients:
                    client.ask(chat(LONG))
                await until(lambda: stand.gateway.door.ongoing == 3)
                assert booked(stand) > 3 * LONG_BYTES
                for client in clients:
                    client.leave()
                await until(lambda: booked(stand) == 0)
                assert stand.gateway.door.ongoing == 0
            assert (await stand.ask(chat(LONG))).status == 200
            assert len(stand.engine.asked) == 2

    run(body())


def test_a_reader_that_is_lost_is_a_refusal_that_may_be_tried_again() -> None:
    async def body() -> None:
        async with standing() as stand:
            reports: list[str] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, said: reports.append(said["message"]))
            await stand.ask(chat(LONG))
            client = await stand.client()
            os.kill(process_of(stand), signal.SIGSTOP)
            client.ask(chat(LONG))
            await until(lambda: stand.gateway.door.ongoing == 1)
            os.kill(process_of(stand), signal.SIGKILL)
            got = await client.answer()
            assert (got.status, got.headers["x-should-retry"]) == (503, "true")
            assert reports == ["a long body could not be read"]
            client.ask(chat(LONG))
            assert (await client.answer()).status == 200

    run(body())


def test_the_end_waits_for_a_long_body_within_its_grace() -> None:
    async def body() -> None:
        async with standing() as stand:
            await stand.ask(chat(LONG))
            client = await stand.client()
            with halted(stand):
                client.ask(chat(LONG))
                await until(lambda: stand.gateway.under_way == 1)
                stand.gateway.server.drain()
                assert stand.gateway.under_way == 1
            assert (await client.answer()).headers["connection"] == "close"

    run(body())


def test_nothing_is_left_when_the_gateway_stops_while_a_body_is_read() -> None:
    async def body() -> None:
        async with standing() as stand:
            await stand.ask(chat(LONG))
            process = process_of(stand)
            client = await stand.client()
            os.kill(process, signal.SIGSTOP)
            client.ask(chat(LONG))
            await until(lambda: stand.gateway.door.ongoing == 1)
            await stand.gateway.stop()
            assert not stand.gateway.door.long_bodies.running
            assert not os.path.exists(f"/proc/{process}")  # noqa: ASYNC240, PTH110 - a look at the kernel's memory

    run(body())


class Licences:
    """Observes which arrivals may be cut short."""

    def __init__(self) -> None:
        self.given: list[bool] = []

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        if isinstance(event, Arrived):
            self.given.append(event.may_clip)


def test_the_answer_to_a_long_body_is_never_cut_short() -> None:
    """Writing a bound into 32 MB would read them again, on the loop."""

    async def body() -> None:
        async with standing(door=DoorSettings(clips=True)) as stand:
            licences = Licences()
            stand.gateway.driver.observers.append(licences)
            await stand.ask(chat("x"))
            await stand.ask(chat(LONG))
            assert licences.given == [True, False]

    run(body())
