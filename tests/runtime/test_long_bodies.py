"""Long bodies are read in another process: with the same outcome, one after the other, and whatever becomes of it."""

import asyncio
import gc
import os
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.harness import run, until
from millgate.dialects import BY_PATH
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.far_reading import Question
from millgate.runtime.long_bodies import LongBodies, Outcome, ReaderFaultError, ReaderLostError

CHAT = b"/v1/chat/completions"
FORM = b"/v1/audio/transcriptions"
BOUNDARY = b"xyz"
MESSAGES = b'"messages":[{"role":"user","content":"x"}]'


def form(model: bytes) -> bytes:
    part = b'--xyz\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    return part % (b"model", b"", model) + part % (b"file", b'; filename="a"', b"\0" * 5000) + b"--xyz--\r\n"


BODIES = {
    CHAT: b'{"model":"m","stream":true,"max_tokens":7,"x":[' + b"[]," * 1_000_000 + b"0]," + MESSAGES + b"}",
    b"/v1/completions": b'{"prompt":"' + b"a" * 3_000_000 + b'","best_of":0}',
    b"/v1/messages": b'{"max_tokens":9,"messages":[{"role":"user","content":"a"}],"model":"c"',
    b"/v1/responses": b'{"previous_response_id":"resp_1","model":"r"}',
    b"/v1/embeddings": b'{"model":"e","input":["a","b"]}',
    FORM: form(b"whisper"),
}


class Said:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def ask(bodies: LongBodies, path: bytes, body: bytes, told: Callable[[Outcome], None]) -> Callable[[], None]:
    return bodies.read(Question(path, BOUNDARY if path == FORM else b"", len(body)), body, told).gone


def here(path: bytes, body: bytes) -> object:
    """Read a body in this process; return what there is to compare."""
    dialect = BY_PATH[path]
    try:
        return dialect.forms[path](body, BOUNDARY) if path == FORM else dialect.readers[path](body)
    except BadInputError as error:
        return plain(error)


def plain(outcome: Outcome) -> object:
    if isinstance(outcome, BadInputError):
        return outcome.message, outcome.field, outcome.status, outcome.code
    return outcome


async def one(bodies: LongBodies, path: bytes, body: bytes) -> Outcome:
    said = Said()
    ask(bodies, path, body, said)
    await until(lambda: said.outcomes)
    return said.outcomes[0]


def process_of(bodies: LongBodies) -> int:
    assert bodies._process is not None
    return bodies._process.pid


def test_every_body_has_the_outcome_that_it_has_in_this_process() -> None:
    async def body() -> None:
        bodies = LongBodies()
        for path, data in BODIES.items():
            assert plain(await one(bodies, path, data)) == here(path, data)
        bodies.close()

    run(body())


def test_bodies_are_told_in_their_order_and_never_before_the_call_returns() -> None:
    async def body() -> None:
        bodies, said = LongBodies(), Said()
        for number in range(5):
            ask(bodies, CHAT, b'{"model":"%d",' % number + b" " * 300_000 + MESSAGES + b"}", said)
            assert said.outcomes == []
        await until(lambda: len(said.outcomes) == 5)
        assert [facts.model for facts in said.outcomes if isinstance(facts, RequestFacts)] == list("01234")
        bodies.close()

    run(body())


def test_a_client_that_has_left_is_told_nothing_and_the_next_one_is() -> None:
    async def body() -> None:
        bodies, left, stays = LongBodies(), Said(), Said()
        leave = [ask(bodies, CHAT, BODIES[CHAT], left) for _ in range(3)]
        ask(bodies, CHAT, BODIES[CHAT], stays)
        for gone in leave:
            gone()
        await until(lambda: stays.outcomes)
        assert left.outcomes == []
        bodies.close()

    run(body())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_body_is_let_go_at_once_and_not_when_cycles_are_looked_for(leaves: bool) -> None:
    class Client:
        """Holds what it waits for, which holds the client's method."""

        def __init__(self, bodies: LongBodies) -> None:
            self.told = False
            self.waiting = bodies.read(Question(CHAT, b"", len(BODIES[CHAT])), BODIES[CHAT], self.on_read)

        def on_read(self, _outcome: Outcome) -> None:
            self.told = True

    async def body() -> None:
        bodies = LongBodies()
        await one(bodies, CHAT, BODIES[CHAT])
        before = sys.getrefcount(BODIES[CHAT])
        clients = [Client(bodies)]
        if leaves:
            clients[0].waiting.gone()
        else:
            await until(lambda: clients[0].told)
        await one(bodies, CHAT, b"{}")
        lasting = weakref.ref(clients[0])
        gc.disable()
        try:
            clients.clear()
            after = sys.getrefcount(BODIES[CHAT])
            assert (lasting(), after) == (None, before)
        finally:
            gc.enable()
        bodies.close()

    run(body())


def test_a_body_that_the_process_dies_of_is_lost_and_the_next_one_gets_a_new_process() -> None:
    async def body() -> None:
        bodies = LongBodies()
        await one(bodies, CHAT, BODIES[CHAT])
        first, said = process_of(bodies), Said()
        os.kill(first, signal.SIGSTOP)
        ask(bodies, CHAT, BODIES[CHAT], said)
        ask(bodies, CHAT, BODIES[CHAT], said)
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(said.outcomes) == 2)
        assert isinstance(said.outcomes[0], ReaderLostError)
        assert isinstance(said.outcomes[1], RequestFacts)
        assert process_of(bodies) != first
        bodies.close()

    run(body())


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        bodies = LongBodies()
        await one(bodies, CHAT, BODIES[CHAT])
        first = process_of(bodies)
        os.kill(first, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr("millgate.runtime.long_bodies._LONGEST_S", 0.3)
            assert isinstance(await one(bodies, CHAT, BODIES[CHAT]), ReaderLostError)
        await until(lambda: not Path(f"/proc/{first}").exists())
        bodies.close()

    run(body())


def test_a_process_that_cannot_be_started_costs_the_body_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        bodies = LongBodies()
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", "/nowhere")
            assert isinstance(await one(bodies, CHAT, BODIES[CHAT]), ReaderLostError)
        assert isinstance(await one(bodies, CHAT, BODIES[CHAT]), RequestFacts)
        bodies.close()

    run(body())


def test_a_fault_of_the_reader_is_told_by_its_name() -> None:
    async def body() -> None:
        bodies = LongBodies()
        outcome = await one(bodies, b"/no/such/path", b"{}")
        assert isinstance(outcome, ReaderFaultError)
        assert str(outcome) == "KeyError"
        bodies.close()

    run(body())


def test_an_idle_process_ends_and_leaves_no_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        bodies = LongBodies()
        assert not bodies.running
        await one(bodies, CHAT, BODIES[CHAT])
        first = process_of(bodies)
        await until(lambda: not bodies.running)
        await until(lambda: not Path(f"/proc/{first}").exists())
        assert isinstance(await one(bodies, CHAT, BODIES[CHAT]), RequestFacts)
        bodies.close()

    monkeypatch.setattr("millgate.runtime.long_bodies._IDLE_S", 0.5)
    run(body())


def test_the_process_has_nothing_of_this_ones_environment_and_no_other_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        bodies = LongBodies()
        await one(bodies, CHAT, BODIES[CHAT])
        process = Path(f"/proc/{process_of(bodies)}")
        environment = (process / "environ").read_bytes().split(b"\0")
        assert {entry.partition(b"=")[0] for entry in environment} == {b"PYTHONPATH", b"LD_LIBRARY_PATH", b""}
        descriptors = await asyncio.to_thread(lambda: list((process / "fd").iterdir()))
        assert len(descriptors) == 4  # the three standard ones and its end of the line
        bodies.close()

    monkeypatch.setenv("A_SECRET", "hunter2")
    # An interpreter of an environment module starts by it alone: without it every long body was refused.
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    run(body())
