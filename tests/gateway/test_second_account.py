"""A house router: one model at several accounts, of which one does not speak the dialect, has no such model, no credit or another key."""

import asyncio
import contextlib
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.harness import (
    CHAT,
    ROLE,
    Answer,
    Asked,
    FakeEngine,
    Script,
    Stand,
    answer,
    answer_whole,
    chat,
    run,
)
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import FailureKind
from millgate.dialects.line import LineReply, Status
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.gateway.settings import LineAddress
from millgate.servers.line import LineSettings
from millgate.wiring.governor import build_governor
from servers.line.stand import upload
from servers.line.talk import Peer

FAST = ServicePrior(0.001, 0.0, 0.0001, 0.0)
NAMES = "first", "second"
MESSAGES = b"/v1/messages"
ASK = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
UNKNOWN = b'{"error":{"message":"Invalid URL","type":"invalid_request_error","param":null,"code":null}}'
SPENT = (
    b'{"error":{"message":"You exceeded your quota","type":"insufficient_quota","code":"insufficient_quota"}}'
)
SPENT_TOO = (
    b'{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}'
)
LIMITED = b'{"error":{"message":"Rate limit reached in organization org-ours","type":"tokens","code":"rate_limit_exceeded"}}'
BUSY = b'{"error":"Model is overloaded","error_type":"overloaded"}'
OURS = b'{"error":{"message":"Incorrect API key: *****lanted","type":"x","param":null,"code":"x"}}'


def always(status: int, body: bytes) -> Script:
    async def script(asked: Asked) -> None:
        asked.reply(body, status)

    return script


async def both_dialects(asked: Asked) -> None:
    """Answer as vLLM does, which speaks both dialects."""
    if asked.line.startswith(b"POST /v1/messages/count_tokens"):
        asked.reply(b'{"input_tokens":9}')
    elif asked.line.startswith(b"POST /v1/messages"):
        asked.reply(b'{"type":"message","content":[],"usage":{"input_tokens":9,"output_tokens":2}}')
    else:
        await answer_whole(asked)


async def chat_alone(asked: Asked) -> None:
    """Answer as a provider does that has no `/v1/messages`."""
    if b"/v1/messages" in asked.line:
        asked.reply(UNKNOWN, 404)
    else:
        await answer_whole(asked)


@contextlib.asynccontextmanager
async def two(
    first: Script, second: Script, *, own_key: bool = False
) -> AsyncIterator[tuple[Stand, FakeEngine]]:
    """Serve a gate before two engines of one model; without a load the first is always asked first."""
    engines = FakeEngine(first), FakeEngine(second)
    for engine in engines:
        await engine.start()
    core = Settings(
        (LaneSettings("lane"),), tuple(EngineSettings(name, 4, prior=FAST, own_key=own_key) for name in NAMES)
    )
    addresses = tuple(
        EngineAddress(name, "127.0.0.1", engine.port, health=None, api_key="sk-planted" if own_key else None)
        for name, engine in zip(NAMES, engines, strict=True)
    )
    line = LineAddress(port=0, door=LineSettings(lane="lane"))
    gateway = Gateway(build_governor(core, time.monotonic()), GatewaySettings(addresses, port=0, line=line))
    stand = Stand(gateway, engines[0])
    await gateway.start()
    try:
        yield stand, engines[1]
    finally:
        await stand.close()
        await engines[1].stop()


async def job(stand: Stand, name: str, ask: bytes = chat()) -> tuple[LineReply, bytes]:
    """Have a job done at the line door; return the reply that ends or yields it, and its answer."""
    peer, data = Peer(*await asyncio.open_connection("127.0.0.1", stand.gateway.line_port)), b""
    peer.send(upload(ask, name, 4096, want_result=True))
    while (reply := await peer.reply()).receipt("conn.outcome") is None:
        if reply.chunk is not None:
            data += b64decode(reply.chunk.bytes_b64)
    peer.leave()
    return reply, data


def reason(got: Answer) -> tuple[int, str]:
    return got.status, got.error["code"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_dialect_that_one_account_does_not_speak_is_answered_by_an_engine_that_does(stream: bool) -> None:
    """Its 404s came at once, so it was always the idlest: 99 of 100 requests went there and failed."""

    async def body() -> None:
        async with two(chat_alone, both_dialects) as (stand, speaks):
            unknown: list[str] = []
            stand.gateway.door.on_unknown = unknown.append
            for _ in range(5):
                got = await stand.ask(
                    ASK.replace(b"{", b'{"stream":%b,' % str(stream).lower().encode(), 1), MESSAGES
                )
                assert (got.status, got.json().get("type")) == (200, "message"), got
            assert len(speaks.asked) == 5
            assert unknown == ["first"] * len(stand.engine.asked), "its operator is told"
            assert (await stand.ask(chat(stream=stream))).status == 200
            await stand.settle()

    run(body())


def test_what_no_engine_knows_is_told_once_in_an_engines_own_words() -> None:
    async def body() -> None:
        async with two(always(404, UNKNOWN), always(404, UNKNOWN)) as (stand, second):
            got = await stand.ask(chat())
            assert (got.status, got.body) == (404, UNKNOWN)
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            await stand.settle()

    run(body())


@pytest.mark.parametrize(
    ("status", "refusal", "kind"),
    [
        (401, OURS, FailureKind.STATUS),
        (402, UNKNOWN, FailureKind.STATUS),
        (403, UNKNOWN, FailureKind.STATUS),
        (429, SPENT, FailureKind.NO_CREDIT),
        (400, SPENT_TOO, FailureKind.NO_CREDIT),
    ],
)
def test_an_account_that_refuses_the_gates_own_key_or_has_no_credit_costs_no_client_its_answer(
    status: int, refusal: bytes, kind: FailureKind
) -> None:
    async def body() -> None:
        async with two(always(status, refusal), answer_whole, own_key=True) as (stand, paid):
            told: list[tuple[str, FailureKind]] = []
            stand.gateway.door.on_refused = lambda *refused: told.append(refused)
            for stream in (True, False):
                assert (await stand.ask(chat(stream=stream))).status == 200
            assert told == [("first", kind)] * len(stand.engine.asked)
            assert len(paid.asked) == 2
            await stand.settle()

    run(body())


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("stream", [True, False])
def test_an_account_that_is_full_costs_no_client_its_answer_where_another_one_has_room(
    status: int, stream: bool
) -> None:
    """Its words name the house's organization, and its limit is none of the client's."""

    async def body() -> None:
        async with two(always(status, LIMITED), answer_whole, own_key=True) as (stand, roomy):
            for _ in range(3):
                assert (await stand.ask(chat(stream=stream))).status == 200
            assert len(roomy.asked) == 3
            await stand.settle()
        async with two(always(status, LIMITED), always(status, LIMITED), own_key=True) as (stand, _second):
            got = await stand.ask(chat(stream=stream))
            assert (got.status, got.body) == (status, LIMITED)
            assert got.headers.get("retry-after-ms") is None
        async with two(always(429, LIMITED), answer_whole) as (stand, second):
            got = await stand.ask(chat(stream=stream), authorization="Bearer theirs")
            assert (got.status, len(second.asked)) == (429, 0), (
                "the limit is that of the client's own account"
            )

    run(body())


@pytest.mark.parametrize(("status", "refusal"), [(429, BUSY), (503, BUSY), (503, b""), (529, LIMITED)])
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_refuses_what_it_gets_costs_no_client_its_answer_where_another_one_has_room(
    status: int, refusal: bytes, stream: bool
) -> None:
    """It refused at once, so it was always the idlest: 9 of 10 requests went there, and two engines beside it were idle."""

    async def body() -> None:
        async with two(always(status, refusal), answer_whole) as (stand, roomy):
            told: list[tuple[str, FailureKind]] = []
            stand.gateway.door.on_refused = lambda *refused: told.append(refused)
            for _ in range(3):
                assert (await stand.ask(chat(stream=stream), authorization="Bearer theirs")).status == 200
            assert len(roomy.asked) == 3
            assert told == [("first", FailureKind.REFUSED)] * len(stand.engine.asked), "its operator is told"
            await stand.settle()
        async with two(always(status, refusal), always(status, refusal)) as (stand, _second):
            got = await stand.ask(chat(stream=stream))
            assert (got.status, got.body) == (status, refusal)

    run(body())


@pytest.mark.parametrize(
    ("status", "refusal", "code"),
    [(401, OURS, "upstream_error"), (402, OURS, "upstream_no_credit"), (429, SPENT, "upstream_no_credit")],
)
def test_where_every_account_of_the_gate_is_refused_no_client_is_told_that_its_own_is(
    status: int, refusal: bytes, code: str
) -> None:
    async def body() -> None:
        async with two(always(status, refusal), always(status, refusal), own_key=True) as (stand, _second):
            got = await stand.ask(chat())
            assert reason(got) == (502, code)
            assert b"lanted" not in got.body
            assert got.headers.get("x-should-retry") == ("false" if code == "upstream_no_credit" else None)
            await stand.settle()

    run(body())


@pytest.mark.parametrize(("status", "refusal"), [(401, OURS), (402, UNKNOWN), (403, UNKNOWN), (429, SPENT)])
def test_a_client_whose_own_key_is_refused_hears_so_and_is_sent_nowhere_else(
    status: int, refusal: bytes
) -> None:
    async def body() -> None:
        async with two(always(status, refusal), answer_whole) as (stand, second):
            got = await stand.ask(chat(), authorization="Bearer theirs")
            assert (got.status, got.body) == (status, refusal)
            assert not second.asked

    run(body())


def test_tokens_are_counted_by_an_engine_that_speaks_the_dialect() -> None:
    async def body() -> None:
        async with two(chat_alone, both_dialects) as (stand, _speaks):
            got = await stand.ask(ASK, MESSAGES + b"/count_tokens")
            assert (got.status, got.json()) == (200, {"input_tokens": 9})
            assert (await stand.ask(ASK, CHAT)).status == 200
            assert stand.gateway.door.ongoing == 0

    run(body())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("code", [404, 429, 503])
def test_the_other_engine_gets_the_whole_request_where_the_first_says_its_refusal_with_status_200(
    code: int, stream: bool
) -> None:
    """It got an empty body, or half of one, and its complaint of that was the client's answer."""
    refusal = b'{"error":{"message":"not here","code":%d}}' % code

    async def body() -> None:
        async with two(always(200, refusal), answer_whole) as (stand, second):
            assert (await stand.ask(chat(stream=stream))).status == 200
            assert len(stand.engine.asked) == 1
            (asked,) = second.asked
            assert json.loads(asked.body)["messages"] == json.loads(chat())["messages"]
            await stand.settle()

    run(body())


@pytest.mark.parametrize("before", [b"", b": PROCESSING\n\n"])
@pytest.mark.parametrize(
    ("path", "refusal", "status"),
    [
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', 529),
        (CHAT, b'data: {"error":{"message":"no instances","code":503}}\n\n', 503),
        (CHAT, b'data: {"error":{"message":"no such model","code":404}}\n\n', 404),
    ],
)
def test_a_stream_that_begins_with_an_overload_is_begun_by_another_account(
    path: bytes, refusal: bytes, status: int, before: bytes
) -> None:
    """The provider sends 200 first: the client got the refusal, though the account beside it had room."""

    async def refuses(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*(piece for piece in (before, refusal) if piece))
        asked.end_stream()

    async def answers(asked: Asked) -> None:
        asked.open_stream()
        asked.send(b'event: message_start\ndata: {"type":"message_start","message":{"id":"x"}}\n\n')
        asked.send(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
        asked.end_stream()

    async def body() -> None:
        async with two(refuses, answer_whole if path == CHAT else answers) as (stand, roomy):
            ask = ASK.replace(b"{", b'{"stream":true,', 1)
            for _ in range(3):
                got = await stand.ask(ask, path)
                assert (got.status, got.whole, got.body.find(b"error")) == (200, True, -1), got
            assert [json.loads(asked.body)["messages"] for asked in roomy.asked] == [
                json.loads(ask)["messages"]
            ] * 3
            assert stand.engine.asked
            await stand.settle()
        async with two(refuses, refuses) as (stand, second):
            got = await stand.ask(ask, path)
            assert (got.status, got.whole) == (status, True)
            assert got.body in refusal
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            await stand.settle()

    run(body())


def test_a_stream_that_has_begun_goes_to_no_other_account() -> None:
    """Its client may have heard the first event, and the engine has worked for it."""

    async def gives_up(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE + b'data: {"error":{"message":"no instances","code":503}}\n\n')
        asked.end_stream()

    async def body() -> None:
        async with two(gives_up, answer_whole) as (stand, second):
            got = await stand.ask(chat(stream=True))
            assert b"no instances" in got.body
            assert not second.asked
            await stand.settle()

    run(body())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_comes_while_the_only_one_refuses_gets_the_whole_request(stream: bool) -> None:
    """As when a busy pool is enlarged: the body had been let go, as there was no other engine when it was sent."""
    has_come = asyncio.Event()

    async def refuses_late(asked: Asked) -> None:
        await has_come.wait()
        asked.reply(BUSY, 503)

    async def body() -> None:
        async with two(refuses_late, answer_whole) as (stand, second):
            gateway = stand.gateway
            settings, engines = gateway.settings, tuple(EngineSettings(name, 4, prior=FAST) for name in NAMES)
            lanes = (LaneSettings("lane"),)
            await gateway.adopt(replace(settings, engines=settings.engines[:1]), Settings(lanes, engines[:1]))
            asking = asyncio.ensure_future(stand.ask(chat(stream=stream, stream_options={})))
            await stand.engine.next()
            await gateway.adopt(settings, Settings(lanes, engines))
            has_come.set()
            assert (await asking).status == 200
            (asked,) = second.asked
            assert json.loads(asked.body)["messages"] == json.loads(chat())["messages"]
            await stand.settle()

    run(body())


@pytest.mark.parametrize(
    ("status", "refusal"), [(404, UNKNOWN), (401, OURS), (429, SPENT), (400, SPENT_TOO), (503, LIMITED)]
)
def test_a_job_that_one_account_has_left_undone_is_done_by_another_one(status: int, refusal: bytes) -> None:
    async def body() -> None:
        async with two(always(status, refusal), answer_whole, own_key=True) as (stand, does):
            keys, names = list[str](), list[str]()
            assert stand.gateway.line is not None
            stand.gateway.line.on_refused = lambda engine, _kind: keys.append(engine)
            stand.gateway.line.on_unknown = names.append
            for number in range(3):
                got, result = await job(stand, f"J{number}")
                assert (got.status, result) == (Status.DONE, answer())
            assert len(does.asked) == 3
            assert stand.engine.asked
            assert bool(keys) is (status != 404)
            assert bool(names) is (refusal == UNKNOWN)
            await stand.settle()

    run(body())


@pytest.mark.parametrize(
    ("status", "refusal", "told"), [(404, UNKNOWN, Status.ABORT), (503, LIMITED, Status.YIELD)]
)
def test_a_job_that_no_account_does_is_answered_once_in_the_words_of_the_last(
    status: int, refusal: bytes, told: Status
) -> None:
    async def body() -> None:
        async with two(always(status, refusal), always(status, refusal), own_key=True) as (stand, second):
            got, _nothing = await job(stand, "J")
            assert got.status is told
            assert f"the engine answered {status}" in got.message or told is Status.YIELD
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            await stand.settle()

    run(body())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("code", [404, 429, 503])
def test_a_job_goes_to_the_other_account_where_the_first_says_its_refusal_with_status_200(
    code: int, stream: bool
) -> None:
    """Over HTTP such a request went there; the job was aborted, or told to come back."""
    refusal = b'{"error":{"message":"not here","code":%d}}' % code

    async def refuses(asked: Asked) -> None:
        if not stream:
            asked.reply(refusal)
            return
        asked.open_stream()
        asked.send(b": PROCESSING\n\n", b"data: " + refusal + b"\n\n")
        asked.end_stream()

    async def body() -> None:
        async with two(refuses, answer_whole) as (stand, second):
            got, result = await job(stand, "J", chat(stream=stream))
            assert got.status is Status.DONE, got
            assert result.startswith(b"data: " if stream else b"{")
            assert b"not here" not in result
            assert b"PROCESSING" not in result
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            await stand.settle()

    run(body())


def test_a_job_whose_answer_has_begun_goes_to_no_other_account() -> None:
    async def gives_up(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE + b'data: {"error":{"message":"no instances","code":404}}\n\n')
        asked.end_stream()

    async def body() -> None:
        async with two(gives_up, answer_whole) as (stand, second):
            got, _nothing = await job(stand, "J", chat(stream=True))
            assert got.status is Status.ABORT
            assert not second.asked
            await stand.settle()

    run(body())
