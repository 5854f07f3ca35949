"""The transports under the real SDKs, against an engine that does what it is told."""

import asyncio
import contextlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from lab.upstream import FakeUpstream, answers
from lab.upstream.fake_upstream import ScriptedConnection

from millgate.client import HostSettings, Limits, for_httpx, for_httpx2
from millgate.client.transport import HostSessions

LIBRARIES = [for_httpx, for_httpx2]
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


def refusal(hint_ms: int | None = 50, status: int = 503, *fields: str) -> bytes:
    hint = [] if hint_ms is None else [f"retry-after-ms: {hint_ms}", "retry-after: 1"]
    return answers.whole(b'{"error":{"message":"full"}}', status, answers.JSON, *hint, *fields)


def script_of(*replies: bytes) -> Callable[[ScriptedConnection], Any]:
    """Return a script that gives these answers one after another, the last one for ever."""
    left = list(replies)

    async def script(line: ScriptedConnection) -> None:
        await line.send(left.pop(0) if len(left) > 1 else left[0])

    return script


GOOD = answers.whole(answers.completion("hello"))
MESSAGE = answers.whole(
    json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }
    ).encode()
)


def ask_openai(url: str, library: Any, settings: HostSettings | None = None, **more: Any) -> str:
    with library.client(settings) as http_client:
        client = openai.OpenAI(base_url=url + "/v1", api_key="k", http_client=http_client, **more)
        answer = client.chat.completions.create(model="m", messages=HELLO)
        return answer.choices[0].message.content or ""


def ask_openai_async(url: str, library: Any, settings: HostSettings | None = None, **more: Any) -> str:
    async def body() -> str:
        async with library.async_client(settings) as http_client:
            client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", http_client=http_client, **more)
            answer = await client.chat.completions.create(model="m", messages=HELLO)
            return answer.choices[0].message.content or ""

    return asyncio.run(body())


def ask_anthropic(url: str, library: Any, settings: HostSettings | None = None, **more: Any) -> str:
    with library.client(settings) as http_client:
        client = anthropic.Anthropic(base_url=url, api_key="k", http_client=http_client, **more)
        answer = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        return answer.content[0].text  # type: ignore[union-attr]


def ask_anthropic_async(url: str, library: Any, settings: HostSettings | None = None, **more: Any) -> str:
    async def body() -> str:
        async with library.async_client(settings) as http_client:
            client = anthropic.AsyncAnthropic(base_url=url, api_key="k", http_client=http_client, **more)
            answer = await client.messages.create(model="m", max_tokens=9, messages=HELLO)
            return answer.content[0].text  # type: ignore[union-attr]

    return asyncio.run(body())


# The Anthropic SDK takes clients of httpx2 only, and says so.
PAIRS = [
    (ask_openai, for_httpx),
    (ask_openai_async, for_httpx),
    (ask_openai, for_httpx2),
    (ask_openai_async, for_httpx2),
    (ask_anthropic, for_httpx2),
    (ask_anthropic_async, for_httpx2),
]


@pytest.fixture(params=LIBRARIES, ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(("ask", "library"), PAIRS)
def test_a_refused_call_comes_back_at_its_hint_and_the_sdk_never_knows(ask: Any, library: Any) -> None:
    good = MESSAGE if "anthropic" in ask.__name__ else GOOD
    with FakeUpstream(script_of(refusal(150, 503, "x-millgate-ticket: t1"), good)) as engine:
        began = time.monotonic()
        assert ask(engine.url, library) == "hello"
        assert time.monotonic() - began >= 0.15
        first, second = engine.received
        assert first.header(b"x-millgate-ticket") is None
        assert second.header(b"x-millgate-ticket") == b"t1"
        assert (first.header(b"x-stainless-retry-count"), second.header(b"x-stainless-retry-count")) == (
            b"0",
            b"1",
        )
        assert first.body == second.body


@pytest.mark.parametrize(("ask", "library"), PAIRS)
def test_retries_never_multiply(ask: Any, library: Any) -> None:
    """Three attempts are three, though the SDK would make each of them three times."""
    with FakeUpstream(script_of(refusal(20))) as engine:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
            ask(engine.url, library, HostSettings(max_retries=2), max_retries=2)
        assert len(engine.received) == 3


def test_what_must_not_be_retried_is_not(library: Any) -> None:
    for reply in (refusal(20, 429, "x-should-retry: false"), refusal(20, 400), refusal(20, 413)):
        with FakeUpstream(script_of(reply)) as engine:
            with pytest.raises(openai.APIStatusError):
                ask_openai(engine.url, library)
            assert len(engine.received) == 1


def test_without_a_hint_two_retries_with_full_jitter(library: Any) -> None:
    with FakeUpstream(script_of(refusal(None, 500))) as engine:
        with pytest.raises(openai.InternalServerError):
            ask_openai(engine.url, library)
        assert len(engine.received) == 3


def test_a_hint_beyond_the_calls_time_is_not_waited_for(library: Any) -> None:
    with FakeUpstream(script_of(refusal(5_000))) as engine:
        began = time.monotonic()
        with pytest.raises(openai.InternalServerError):
            ask_openai(engine.url, library, timeout=2.0)
        assert time.monotonic() - began < 2.0
        assert len(engine.received) == 1


def test_the_deadline_is_the_calls_timeout_and_shrinks(library: Any) -> None:
    with FakeUpstream(script_of(refusal(200), GOOD)) as engine:
        ask_openai(engine.url, library, timeout=30.0)
        first, second = (int(each.header(b"x-millgate-deadline-ms") or 0) for each in engine.received)
        assert 29_900 <= first <= 30_000  # sent a moment after the call began
        assert 25_000 < second <= 29_800


def test_the_retry_budget_is_the_processs(library: Any) -> None:
    """Ten calls, a floor of three and no share: three retries in all, whoever makes them."""
    with FakeUpstream(script_of(refusal(5))) as engine:
        for _ in range(10):
            with pytest.raises(openai.InternalServerError):
                ask_openai(engine.url, library, settings := HostSettings(retry_share=0.0, retry_floor=3.0))
            with library.client(settings) as kept:  # the session lives as long as a client of it
                del kept
        assert 10 <= len(engine.received) <= 10 + 3 * 10

    with FakeUpstream(script_of(refusal(5))) as engine, library.client(settings) as http_client:
        client = openai.OpenAI(base_url=engine.url + "/v1", api_key="k", http_client=http_client)
        for _ in range(10):
            with pytest.raises(openai.InternalServerError):
                client.chat.completions.create(model="m", messages=HELLO)
        assert len(engine.received) == 13


def test_an_outage_is_not_tripled_by_the_sdk(library: Any) -> None:
    """The SDK retries what got no answer at all; without budget its retries are answered at home."""
    with library.client(HostSettings(retry_share=0.0, retry_floor=1.0)) as http_client:
        client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", http_client=http_client)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(model="m", messages=HELLO)
        assert refused.value.code == "slow_down"


def test_a_burst_waits_at_home_and_in_order(library: Any) -> None:
    """Forty calls, four at once to begin with: never more in flight than the window, oldest first."""
    running = most = 0

    async def script(line: ScriptedConnection) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await line.wait(0.01)
        running -= 1
        await line.send(GOOD)

    async def body(url: str) -> list[int]:
        done: list[int] = []
        async with library.async_client(HostSettings(max_inflight=4)) as http_client:
            client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", http_client=http_client)

            async def one(number: int) -> None:
                await client.chat.completions.create(model=str(number), messages=HELLO)
                done.append(number)

            # The SDK looks the platform up in a thread for each call before its first answer.
            await one(0)
            await asyncio.gather(*(one(number) for number in range(1, 40)))
        return done

    with FakeUpstream(script) as engine:
        asyncio.run(body(engine.url))
        models = [each.json()["model"] for each in engine.received]
        assert most <= 4
        # Connections are made as they come, so neighbours may arrive swapped.
        assert all(abs(int(model) - place) < 8 for place, model in enumerate(models))


def test_a_cancelled_call_leaves_the_line_and_the_flight(library: Any) -> None:
    async def script(line: ScriptedConnection) -> None:
        await line.stall()

    async def body(url: str) -> None:
        module: Any = httpx if library is for_httpx else httpx2
        kind: Any = (
            for_httpx.AsyncGateTransport if library is for_httpx else for_httpx2.AsyncHttpx2GateTransport
        )
        transport = kind(settings=HostSettings(max_inflight=1))
        async with module.AsyncClient(transport=transport, base_url=url) as client:
            first, second = (asyncio.create_task(client.post("/", content=b"x")) for _ in range(2))
            await asyncio.sleep(0.1)
            session = transport.sessions.of(module.URL(url))
            assert (session.window.inflight, session.waiting) == (1, 1)
            second.cancel()
            await asyncio.wait((second,))
            assert session.waiting == 0
            first.cancel()
            await asyncio.wait((first,))
            assert session.window.inflight == 0

    with FakeUpstream(script) as engine:
        asyncio.run(body(engine.url))


def test_a_stream_is_in_flight_until_it_is_closed(library: Any) -> None:
    async def script(line: ScriptedConnection) -> None:
        head = answers.head(200, answers.EVENT_STREAM)
        await line.send(head + answers.chunks(answers.event("a"), answers.event(finish="stop"), answers.DONE))
        await line.send(answers.LAST_CHUNK)

    with FakeUpstream(script) as engine, library.client() as http_client:
        client = openai.OpenAI(base_url=engine.url + "/v1", api_key="k", http_client=http_client)
        session = http_client._transport.sessions.of(http_client._merge_url(engine.url))
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert session.window.inflight == 1
        assert next(chunk.choices[0].delta.content for chunk in stream if chunk.choices) == "a"
        stream.close()
        assert session.window.inflight == 0
        lost = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert session.window.inflight == 1
        lost.response.close()
        assert session.window.inflight == 0


THREE_EVENTS = b"".join(
    (
        answers.head(200, answers.EVENT_STREAM),
        answers.chunks(answers.event("a"), answers.event("b"), answers.event(finish="stop"), answers.DONE),
        answers.LAST_CHUNK,
    )
)


def test_a_break_out_of_each_stream_leaves_room_for_the_next_call(library: Any) -> None:
    """No SDK closes a stream that a loop has left, and the window was full of such for good: each further call timed out."""
    settings = HostSettings(max_inflight=1)
    with FakeUpstream(script_of(THREE_EVENTS)) as engine, library.client(settings) as http_client:
        client = openai.OpenAI(
            base_url=engine.url + "/v1", api_key="k", http_client=http_client, timeout=20.0
        )
        kept = []
        for _call in range(3):
            stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
            kept.append(stream)
            for _chunk in stream:
                break


def test_a_break_out_of_each_asynchronous_stream_leaves_room_for_the_next_call(library: Any) -> None:
    async def body(url: str) -> None:
        async with library.async_client(HostSettings(max_inflight=1)) as http_client:
            client = openai.AsyncOpenAI(
                base_url=url + "/v1", api_key="k", http_client=http_client, timeout=20.0
            )
            kept = []
            for _call in range(3):
                stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
                kept.append(stream)
                async for _chunk in stream:
                    break

    with FakeUpstream(script_of(THREE_EVENTS)) as engine:
        asyncio.run(body(engine.url))


def test_a_stream_that_is_read_is_in_flight_for_as_long_as_it_takes(library: Any) -> None:
    """An engine that thinks for three seconds between two tokens has not been left: the next call waits for its end."""

    async def script(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(answers.event("a")))
        await asyncio.sleep(3.0)
        await line.send(answers.chunks(answers.event(finish="stop"), answers.DONE) + answers.LAST_CHUNK)

    async def body(url: str) -> None:
        async with library.async_client(HostSettings(max_inflight=1)) as http_client:
            client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", http_client=http_client)
            ended = []

            async def read(name: str) -> None:
                async for _chunk in await client.chat.completions.create(
                    model="m", messages=HELLO, stream=True
                ):
                    began.setdefault(name, asyncio.get_running_loop().time())
                ended.append(asyncio.get_running_loop().time())

            began: dict[str, float] = {}
            await asyncio.gather(read("first"), read("second"))
            assert sorted(began.values())[1] >= ended[0]

    with FakeUpstream(script) as engine:
        asyncio.run(body(engine.url))


def test_clients_of_one_host_share_one_home() -> None:
    sessions = [HostSessions(None), HostSessions(None)]
    url = httpx.URL("http://shared.example:1/v1")
    other = httpx2.URL("http://shared.example:1/other")
    assert sessions[0].of(url) is sessions[1].of(other)
    assert sessions[0].of(httpx.URL("http://other.example:1")) is not sessions[0].of(url)


def test_a_child_that_is_forked_in_the_midst_of_calls_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parent's four streams fill its window, and none of them ever ends in the child."""
    sessions = HostSessions(None)
    url = httpx.URL("http://forked.example:1")
    parent = sessions.of(url)
    while parent.window.has_room:
        parent.window.send()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert sessions.of(url).window.has_room
    assert HostSessions(None).of(url) is sessions.of(url)


@pytest.mark.parametrize("settings", [HostSettings(max_inflight=1), HostSettings(limits=Limits(rpm=1))])
def test_a_wait_in_line_ends_with_the_calls_pool_timeout(library: Any, settings: HostSettings) -> None:
    """A call with a timeout of 0.2 s stood behind a stream of minutes, or for the minute that its pace asks."""
    module: Any = httpx if library is for_httpx else httpx2

    async def script(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM))
        await line.stall()

    async def body(url: str) -> None:
        async with library.async_client(settings, base_url=url) as client:
            session = client._transport.sessions.of(module.URL(url))
            async with client.stream("POST", "/", content=b"x"):
                with pytest.raises(module.PoolTimeout, match=r"no turn within 0\.2 s"):
                    await asyncio.wait_for(client.post("/", content=b"y", timeout=0.2), 10)
                assert session.waiting == 0

    with FakeUpstream(script) as engine:
        asyncio.run(body(engine.url))
    with FakeUpstream(script) as engine, library.client(settings, base_url=engine.url) as client:
        first = client.send(client.build_request("POST", "/", content=b"x"), stream=True)
        with pytest.raises(module.PoolTimeout, match=r"no turn within 0\.2 s"):
            client.post("/", content=b"y", timeout=0.2)
        first.close()


def test_a_task_that_survived_a_cancellation_waits_in_line_as_any_other(library: Any) -> None:
    """A task group whose member failed leaves its task so in Python 3.11.2, and the wait ended with a CancelledError."""
    module: Any = httpx if library is for_httpx else httpx2

    async def script(line: ScriptedConnection) -> None:
        await line.send(answers.head(200, answers.EVENT_STREAM))
        await line.stall()

    async def survivor(client: Any) -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        async with client.stream("POST", "/", content=b"x"):
            with pytest.raises(module.PoolTimeout):
                await client.post("/", content=b"y", timeout=0.1)

    async def body(url: str) -> None:
        async with library.async_client(HostSettings(max_inflight=1), base_url=url) as client:
            await asyncio.create_task(survivor(client))

    with FakeUpstream(script) as engine:
        asyncio.run(body(engine.url))


def test_calls_through_a_proxy_have_manners(library: Any) -> None:
    """The proxy was asked by a transport of the client's own, which knew no hint."""
    with FakeUpstream(script_of(refusal(), GOOD)) as proxy:
        with library.client(proxy=proxy.url) as client:
            assert client.post("http://far.test/v1/x", content=b"x").status_code == 200
        assert [each.target for each in proxy.received] == [b"http://far.test/v1/x"] * 2


def test_what_a_client_says_of_connections_counts(library: Any) -> None:
    """Authorities, HTTP/2 and limits were dropped without a word, as libraries do beside a transport of one's own."""
    module: Any = httpx if library is for_httpx else httpx2
    context = ssl.create_default_context()
    with library.client(verify=context, http1=False, limits=module.Limits(max_connections=7)) as client:
        pool = client._transport._inner._pool
        assert (pool._ssl_context, pool._http1, pool._max_connections) == (context, False, 7)
    own = module.MockTransport(lambda _request: module.Response(204))
    with library.client(transport=own) as client:
        assert client.get("http://far.test/").status_code == 204


def test_threads_share_the_line(library: Any) -> None:
    running = most = 0

    async def script(line: ScriptedConnection) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await line.wait(0.005)
        running -= 1
        await line.send(GOOD)

    with FakeUpstream(script) as engine, library.client(HostSettings(max_inflight=2)) as http_client:
        client = openai.OpenAI(base_url=engine.url + "/v1", api_key="k", http_client=http_client)

        def calls() -> None:
            for _ in range(5):
                client.chat.completions.create(model="m", messages=HELLO)

        threads = [threading.Thread(target=calls) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(engine.received) == 30
        assert most <= 2


def test_known_rates_are_kept_at_home(library: Any) -> None:
    """600 a minute is ten a second beyond the first minute's worth; twelve calls against a bucket of ten wait."""
    settings = HostSettings(limits=Limits(rpm=600, otpm=256 * 600))
    with FakeUpstream(script_of(GOOD)) as engine, library.client(settings) as http_client:
        session = http_client._transport.sessions.of(http_client._merge_url(engine.url))
        for bucket in session._pace._buckets.values():
            bucket._capacity /= 60
            bucket._level /= 60
        client = openai.OpenAI(base_url=engine.url + "/v1", api_key="k", http_client=http_client)
        began = time.monotonic()
        for _ in range(13):
            client.chat.completions.create(model="m", messages=HELLO)
        assert time.monotonic() - began >= 0.29
