"""Whatever a receiver of an engine's answer raises ends the attempt as failed: permit back, connection closed, one log line."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from lab.interpreted import is_compiled

from gateway.harness import DONE, ROLE, Asked, Client, answer, chat, event, run, standing, until, usage_event
from millgate.core.settings import LaneSettings
from millgate.core.words import FailureKind, Sent
from millgate.http1.client import AnswerHead, Call, Receiver, Upstream
from millgate.servers.http import DoorSettings, attempt

CALLBACKS = ("on_head", "on_data", "on_end", "on_failed")


class Bug(Exception):  # noqa: N818 - it stands for any exception
    """What only a bug of ours can raise."""


class Raising:
    """Hands every callback on to the receiver, and raises at one of them: before the receiver hears of it, or after."""

    def __init__(self, inner: Receiver, where: str, nth: int, *, after: bool) -> None:
        self._inner = inner
        self._where = where
        self._left = nth
        self._after = after

    def _around(self, name: str, hand_on: Callable[[], None]) -> None:
        is_here = name == self._where
        if is_here:
            self._left -= 1
        if is_here and self._left == 0 and not self._after:
            raise Bug(name)
        hand_on()
        if is_here and self._left == 0:
            raise Bug(name)

    def on_head(self, head: AnswerHead) -> None:
        self._around("on_head", lambda: self._inner.on_head(head))

    def on_data(self, data: bytes) -> None:
        self._around("on_data", lambda: self._inner.on_data(data))

    def on_end(self, *, delimited: bool) -> None:
        self._around("on_end", lambda: self._inner.on_end(delimited=delimited))

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        self._around("on_failed", lambda: self._inner.on_failed(kind, sent, detail))

    def on_raised(self) -> None:
        self._inner.on_raised()


class Rigged:
    """An upstream whose receivers raise as told."""

    def __init__(self, inner: Upstream, where: str, nth: int, *, after: bool) -> None:
        self._inner = inner
        self._rig = (where, nth)
        self._after = after

    def request(
        self,
        method: bytes,
        target: bytes,
        headers: Any,
        body: bytes,
        receiver: Receiver,
        **named: Any,
    ) -> Call:
        raising = Raising(receiver, *self._rig, after=self._after)
        return self._inner.request(method, target, headers, body, raising, **named)

    def close(self) -> None:
        self._inner.close()


def _script(*, stream: bool, ends: str) -> Callable[[Asked], Any]:
    async def play(asked: Asked) -> None:
        if stream:
            asked.open_stream()
            for piece in (ROLE, event("a"), event("b")):
                asked.send(piece)
                await asyncio.sleep(0.002)
        if ends == "cut":
            asked.cut()
        elif stream:
            asked.send(event(finish="stop"), usage_event(3, 2), DONE)
            asked.end_stream()
        else:
            asked.reply(answer())

    return play


async def _ask(client: Client, *, stream: bool) -> None:
    client.ask(chat(stream=stream))
    try:
        await client.answer()
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # a cut answer is one of the ways in which a client learns it


@settings(max_examples=40)
@given(
    where=st.sampled_from(CALLBACKS),
    nth=st.integers(1, 4),
    after=st.booleans(),
    stream=st.booleans(),
    ends=st.sampled_from(["whole", "cut"]),
)
def test_an_exception_in_any_callback_at_any_point_ends_the_attempt_and_gives_the_permit_back(
    where: str, nth: int, *, after: bool, stream: bool, ends: str
) -> None:
    async def body() -> None:
        logged: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: logged.append(context.get("exception"))
        )
        async with standing(_script(stream=stream, ends=ends), max_inflight=1) as stand:
            door = stand.gateway.door
            honest = door.engines
            door.engines = {
                name: route._replace(upstream=Rigged(route.upstream, where, nth, after=after))
                for name, route in honest.items()
            }
            await _ask(await stand.client(), stream=stream)
            await stand.settle()
            outcomes = stand.outcomes()
            assert sum(outcomes.values()) == 1
            assert [type(error) for error in logged] in ([], [Bug])
            if logged and not after:
                assert outcomes == {"engine_failed": 1}

            door.engines = honest
            stand.engine.script = _script(stream=False, ends="whole")
            again = await stand.ask(chat())
            assert again.status == 200
            assert stand.gateway.server.budget.held_bytes == 0

    run(body())


_DEEP = b'{"x":' + b"[" * 3000


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (b"/v1/chat/completions", chat()),
        (b"/v1/embeddings", b'{"model":"m","input":"hi"}'),
        (b"/v1/rerank", b'{"model":"m","query":"q","documents":["d"]}'),
        (b"/v1/audio/speech", b'{"model":"m","input":"hi","voice":"v"}'),
        (b"/v1/responses", b'{"model":"m","input":"hi"}'),
        (b"/v1/messages", b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'),
    ],
)
@pytest.mark.parametrize(
    "poison",
    [
        b'{"id":"resp_\xff\xfe","object":"response","usage":{"input_tokens":1,"output_tokens":1}}',
        b'{"object":"x","usage":' + _DEEP + b"]" * 3000 + b"}}",
        b'{"object":"x","usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
    ],
    ids=["no UTF-8", "nested", "endless number"],
)
def test_two_answers_that_no_reader_can_read_do_not_close_the_gate(
    path: bytes, sent: bytes, poison: bytes
) -> None:
    """At a cap of two, each of them kept its permit for ever, and every later request was refused."""

    async def script(asked: Asked) -> None:
        asked.reply(poison)

    async def body() -> None:
        async with standing(script, max_inflight=2) as stand:
            for _ in range(5):
                got = await stand.ask(sent, path)
                assert got.status in {200, 502}
            await stand.settle()
            assert sum(stand.outcomes().values()) == 5
            assert "yielded" not in stand.outcomes()

    run(body())


@pytest.mark.parametrize(
    ("path", "sent", "events"),
    [
        (
            b"/v1/messages",
            b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}',
            [
                b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"\xff"}}\n\n',
                b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
            ],
        ),
        (
            b"/v1/responses",
            b'{"model":"m","stream":true,"input":"hi"}',
            [
                b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"\xff"}\n\n',
                b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
            ],
        ),
    ],
)
def test_an_event_that_is_no_utf8_is_relayed_as_content(
    path: bytes, sent: bytes, events: list[bytes]
) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*events)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(sent, path)
            assert got.status == 200
            assert got.body == b"".join(events)
            await until(lambda: stand.outcomes() == {"good": 1})

    run(body())


STREAMS = 1_000


def test_a_thousand_streams_closed_on_done_are_good_and_their_permits_are_back_at_once() -> None:
    """Clients close on `[DONE]`, before the last chunk has come."""

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"), event(finish="stop"), usage_event(3, 2), DONE)
        await asyncio.sleep(0.01)
        asked.end_stream()

    async def ask_and_close(client: Client) -> None:
        client.ask(chat(stream=True))
        await client.head()
        said = b""
        while DONE not in said:
            said += await client.chunk()
        client.leave()

    async def body() -> None:
        async with standing(script, max_inflight=4) as stand:
            for _ in range(STREAMS // 4):
                await asyncio.gather(*[ask_and_close(await stand.client()) for _ in range(4)])
                running = stand.snapshot.engines[0]
                assert (running.running, running.departing) == (0, 0)
            assert stand.outcomes() == {"good": STREAMS}
            assert stand.snapshot.good_output_tokens == 2 * STREAMS

    run(body())


def _logged() -> list[BaseException | None]:
    """Return the list of what the loop is told of from now on."""
    logged: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: logged.append(context.get("exception"))
    )
    return logged


class RaisingObserver:
    """Fails at every step."""

    def on_step(self, *_: Any) -> None:
        raise Bug("on_step")


def test_an_observer_that_raises_keeps_no_decision_from_its_client_and_no_permit() -> None:
    async def body() -> None:
        logged = _logged()
        async with standing(max_inflight=1) as stand:
            stand.gateway.driver.observers.insert(0, RaisingObserver())
            for _ in range(3):
                assert (await stand.ask(chat())).status == 200
            await stand.settle()
            assert stand.outcomes() == {"good": 3}
            assert {type(error) for error in logged} == {Bug}

    run(body())


@pytest.mark.skipif(is_compiled(), reason="a compiled method cannot be replaced")
def test_a_refusal_that_cannot_be_written_closes_its_clients_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(asked: Asked) -> None:
        await asked.hung_up(30.0)

    def refuse(*_: Any) -> None:
        raise Bug("refusal")

    async def body() -> None:
        logged = _logged()
        async with standing(
            silent, max_inflight=1, lane=LaneSettings("interactive", max_queue=0, hold_due_s=0.0)
        ) as stand:
            first = await stand.client()
            first.ask(chat("first"))
            await stand.engine.next()
            monkeypatch.setattr(attempt, "refusal", refuse)
            second = await stand.client()
            second.ask(chat("second"))
            assert await second.reader.read() == b""
            assert [type(error) for error in logged] == [Bug]
            await until(lambda: stand.gateway.server.connections == 1)
            first.leave()
            await stand.settle()
            assert stand.gateway.server.budget.held_bytes == 0

    run(body())


def test_a_light_request_that_cannot_be_sent_is_answered_and_gives_its_place_back() -> None:
    async def body() -> None:
        async with standing(door=DoorSettings(light_at_once=1)) as stand:
            logged = _logged()
            door = stand.gateway.door
            honest = door.engines
            door.engines = {name: route._replace(upstream=Unusable()) for name, route in honest.items()}
            for _ in range(3):
                assert (await stand.ask(b"", b"/v1/models", b"GET")).status == 502
            assert [type(error) for error in logged] == [Bug] * 3
            assert door.ongoing == 0
            door.engines = honest
            assert (await stand.ask(b"", b"/v1/models", b"GET")).status == 200

    run(body())


class Unusable:
    """An upstream that fails before anything is sent."""

    def request(self, *_: Any, **__: Any) -> Call:
        raise Bug("request")

    def close(self) -> None: ...


@pytest.mark.skipif(is_compiled(), reason="a compiled method cannot be replaced")
def test_a_client_whose_leaving_cannot_be_told_leaves_no_bytes_and_no_connection_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_asked: Asked) -> None:
        await asyncio.get_running_loop().create_future()

    def on_gone(_exchange: object) -> None:
        raise Bug("on_gone")

    async def body() -> None:
        logged = _logged()
        async with standing(never) as stand:
            monkeypatch.setattr(stand.gateway.door, "on_gone", on_gone)
            client = await stand.client()
            client.ask(chat())
            await stand.engine.next()
            client.leave()
            await until(lambda: Bug in [type(error) for error in logged])
            await until(lambda: stand.gateway.server.connections == 0)
            assert stand.gateway.server.budget.held_bytes == 0
            assert stand.gateway.descriptors.clients == 0

    run(body())
