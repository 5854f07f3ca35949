"""What passes through the gateway, and that it passes unchanged."""

import asyncio
import json

import pytest

from gateway.harness import (
    DONE,
    ROLE,
    Asked,
    answer,
    answer_whole,
    chat,
    event,
    run,
    standing,
    until,
    usage_event,
)
from millgate.core.decisions import Decision
from millgate.core.events import EngineProgress, Event, Growth
from millgate.http1.client import UpstreamPool
from millgate.servers.http import DoorSettings
from millgate.servers.requests import judgement


def test_a_json_answer_is_relayed_whole_and_counted_good() -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat())
            assert (got.status, got.body, got.whole) == (200, answer(), True)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}
            assert stand.snapshot.good_output_tokens == 2

    run(body())


def test_a_stream_reaches_the_client_byte_for_byte() -> None:
    """INV-10."""
    events = [
        ROLE,
        event("a"),
        event("b\\n\\nc"),
        event('"usage":{'),
        event(finish="stop"),
        usage_event(3, 4),
        DONE,
    ]

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*events)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True, stream_options={"include_usage": True}))
            assert (got.body, got.whole) == (b"".join(events), True)
            assert got.headers["cache-control"] == "no-store"
            assert got.headers["x-accel-buffering"] == "no"
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 4

    run(body())


@pytest.mark.parametrize("every_s", [None, 0.02])
def test_a_stream_is_one_in_whatever_letter_case_its_engine_says_so(every_s: float | None) -> None:
    """RFC 9110 section 8.3.1; also behind signs of life, which say the kind before the engine does."""
    events = [ROLE, event("a"), event(finish="stop"), DONE]

    async def script(asked: Asked) -> None:
        await asyncio.sleep(3 * (every_s or 0.0))
        asked.open_stream("Text/Event-Stream; Charset=UTF-8")
        asked.send(*events)
        asked.end_stream()

    async def body() -> None:
        door = DoorSettings(keep_alive_s=None if every_s is None else {"/v1/chat/completions": every_s})
        async with standing(script, door=door) as stand:
            got = await stand.ask(chat(stream=True))
            assert got.body.replace(b": waiting\n\n", b"") == b"".join(events)
            assert (got.status, got.whole) == (200, True)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def test_a_json_answer_is_one_in_whatever_letter_case_its_engine_says_so() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer(), kind="Application/JSON")

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat())
            assert (got.status, got.body, got.headers["content-type"]) == (200, answer(), "Application/JSON")
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 2

    run(body())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_cut_into_any_pieces_is_the_same_stream(size: int, line_end: bytes) -> None:
    whole = b"".join([b": hello\n\n", ROLE, event("a"), event("b"), event(finish="stop"), DONE])
    whole = whole.replace(b"\n", line_end)

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*[whole[at : at + size] for at in range(0, len(whole), size)])
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True, stream_options={"include_usage": False}))
            assert (got.body, got.whole) == (whole, True)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def test_the_usage_event_that_only_we_asked_for_is_taken_out_again() -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(stream=True))
            assert b'"usage":{' not in got.body
            assert got.body.endswith(DONE)
            asked = await stand.engine.next()
            assert json.loads(asked.body)["stream_options"] == {"include_usage": True}
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 2

    run(body())


def test_usage_is_not_asked_for_when_the_setting_says_so() -> None:
    async def body() -> None:
        async with standing(door=DoorSettings(ask_usage=False)) as stand:
            sent = chat(stream=True)
            got = await stand.ask(sent)
            assert got.whole
            assert (await stand.engine.next()).body == sent

    run(body())


def test_a_refusal_too_long_to_keep_is_passed_on_and_the_request_not_sent_again() -> None:
    """Its client has had the beginning when the end, which names `stream_options`, has come."""
    complaint = b'{"error":{"message":"' + b"x" * 200_000 + b' unknown field stream_options"}}'

    async def refuse(asked: Asked) -> None:
        asked.reply(complaint, 400)

    async def body() -> None:
        async with standing(refuse) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.status, got.body, got.whole) == (400, complaint, True)
            await stand.settle()
            assert len(stand.engine.asked) == 1

    run(body())


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, b'{"error":{"message":"unknown field stream_options"}}'),
        (422, b'{"message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}}'),
    ],
    ids=["usual", "Mistral"],
)
def test_an_engine_that_does_not_know_stream_options_is_asked_again_without_and_not_soon_again(
    status: int, said: bytes
) -> None:
    async def script(asked: Asked) -> None:
        if b"stream_options" in asked.body:
            asked.reply(said, status)
        else:
            await answer_whole(asked)

    async def body() -> None:
        async with standing(script) as stand:
            for _ in range(2):
                got = await stand.ask(chat(stream=True))
                assert (got.status, got.whole) == (200, True)
            assert [b"stream_options" in asked.body for asked in stand.engine.asked] == [True, False, False]
            await stand.settle()
            assert stand.outcomes() == {"good": 2}

    run(body())


def test_headers_pass_but_for_those_that_frame_steer_or_belong_to_the_gate() -> None:
    async def body() -> None:
        async with standing() as stand:
            await stand.ask(
                chat(),
                authorization="Bearer secret",
                traceparent="00-1",
                connection="keep-alive, x-secret",
                x_secret="1",
                x_forwarded_host="evil",
                x_millgate_lane="vip",
                x_gateway_destination_endpoint="10.0.0.1",
                accept_encoding="gzip",
                x_stainless_retry_count="0",
            )
            headers = (await stand.engine.next()).headers
            assert headers["authorization"] == "Bearer secret"
            assert headers["traceparent"] == "00-1"
            assert headers["x-stainless-retry-count"] == "0"
            assert headers["host"] == f"127.0.0.1:{stand.engine.port}"
            unwanted = {
                "x-secret",
                "x-forwarded-host",
                "x-millgate-lane",
                "x-gateway-destination-endpoint",
                "connection",
            }
            assert not unwanted & set(headers)
            assert headers["accept-encoding"] == "identity"

    run(body())


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2:3", True), ("no spaces", False), ("x" * 129, False)])
def test_a_harmless_request_id_is_kept_and_any_other_replaced(given: str, kept: bool) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(), x_request_id=given)
            assert (got.headers["x-request-id"] == given) is kept
            assert got.headers["request-id"] == got.headers["x-request-id"]
            assert (await stand.engine.next()).headers["x-request-id"] == got.headers["x-request-id"]

    run(body())


def test_an_answers_own_retry_advice_and_ids_do_not_pass() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer(), x_should_retry="true", retry_after="99", x_request_id="theirs", x_other="1")

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat())
            assert "x-should-retry" not in got.headers
            assert "retry-after" not in got.headers
            assert got.headers["x-request-id"] != "theirs"
            assert got.headers["x-other"] == "1"

    run(body())


def test_a_long_json_answer_passes_without_being_kept_whole() -> None:
    whole = answer("x" * 3_000_000)

    async def script(asked: Asked) -> None:
        asked.reply(whole)

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat())
            assert (got.body, got.whole) == (whole, True)
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 2

    run(body())


@pytest.mark.parametrize(("size", "wide"), [(10_000, False), (300_000, True)])
def test_only_a_long_answer_gets_more_room_on_its_way(size: int, wide: bool) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(answer("x" * size))

    async def body() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(chat())).status == 200
            pool = stand.gateway.door.engines["engine"].upstream
            assert isinstance(pool, UpstreamPool)
            assert [connection._wide for connection in pool._kept] == [wide]

    run(body())


def test_completions_pass_and_a_batch_of_prompts_counts_as_many_answers() -> None:
    async def body() -> None:
        for streams, status in ((6, 200), (5, 413)):
            async with standing(max_inflight=streams) as stand:
                got = await stand.ask(b'{"model":"m","prompt":["a","b","c"],"n":2}', b"/v1/completions")
                assert got.status == status

    run(body())


def test_the_list_of_models_passes_without_a_permit() -> None:
    async def body() -> None:
        async with standing(max_inflight=1) as stand:
            for path in (b"/v1/models", b"/v1/models/meta-llama/Llama-3.1-8B"):
                got = await stand.ask(b"", path, b"GET")
                assert got.status == 200
            assert stand.lane.arrived == 0

    run(body())


def test_a_question_about_what_its_client_has_or_for_a_part_is_answered_whole() -> None:
    """An engine's 304, or its part of a list, is no answer that the gate could check."""
    asks = {
        "if_none_match": '"v1"',
        "if_modified_since": "Wed, 21 Oct 2026 07:28:00 GMT",
        "range": "bytes=0-3",
    }

    async def script(asked: Asked) -> None:
        if "if-none-match" in asked.headers or "if-modified-since" in asked.headers:
            asked.raw(b'HTTP/1.1 304 Not Modified\r\netag: "v1"\r\n\r\n')
        elif "range" in asked.headers:
            asked.reply(b'{"ob', 206)
        else:
            asked.reply(b'{"object":"list","data":[]}', etag='"v1"')

    async def body() -> None:
        async with standing(script) as stand:
            for name, value in asks.items():
                got = await stand.ask(b"", b"/v1/models", b"GET", **{name: value})
                assert (got.status, got.body) == (200, b'{"object":"list","data":[]}')
                assert got.headers["etag"] == '"v1"'

    run(body())


def test_the_body_of_a_request_that_has_none_by_its_method_stays_here() -> None:
    """An engine that expects none would take it for the next request on its connection."""

    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(b"GET /secret HTTP/1.1\r\n\r\n", b"/v1/models", b"GET")
            assert got.status == 200
            asked = await stand.engine.next()
            assert asked.line.startswith(b"GET ")
            assert asked.body == b""
            assert "content-length" not in asked.headers

    run(body())


def test_light_requests_over_their_own_cap_are_refused() -> None:
    async def script(asked: Asked) -> None:
        await asked.hung_up()

    async def body() -> None:
        async with standing(script, door=DoorSettings(light_at_once=1)) as stand:
            first = await stand.client()
            first.ask(b"", b"/v1/models", b"GET")
            await stand.engine.next()
            got = await stand.ask(b"", b"/v1/models", b"GET")
            assert (got.status, got.headers["x-millgate-reason"]) == (503, "saturated")
            first.leave()
            await until(lambda: stand.gateway.door.ongoing == 0)

    run(body())


def test_many_requests_on_one_client_connection_use_one_engine_connection() -> None:
    async def body() -> None:
        async with standing() as stand:
            client = await stand.client()
            for _ in range(5):
                client.ask(chat())
                assert (await client.answer()).status == 200
            assert len({id(asked.writer) for asked in stand.engine.asked}) == 1

    run(body())


def test_the_core_is_told_how_far_each_stream_has_come() -> None:
    end = asyncio.Event()

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"), event("b"), event("c"))
        await end.wait()
        asked.send(event(finish="stop"), DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            told: list[EngineProgress] = []

            class Watching:
                def on_step(self, happened: Event, decisions: tuple[Decision, ...], now: float) -> None:
                    if isinstance(happened, EngineProgress):
                        told.append(happened)

            stand.gateway.driver.observers.append(Watching())
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            await until(lambda: told)
            assert told[0] == EngineProgress("engine", (Growth(1, 3),))
            end.set()
            rest = b""
            while data := await client.chunk():
                rest += data
            assert rest.endswith(DONE)

    run(body())


def test_streams_that_are_looked_at_in_several_turns_are_told_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millgate.servers.http.door._AT_ONCE", 1)
    end = asyncio.Event()

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await end.wait()
        asked.send(event(finish="stop"), DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            told: list[EngineProgress] = []

            class Watching:
                def on_step(self, happened: Event, decisions: tuple[Decision, ...], now: float) -> None:
                    if isinstance(happened, EngineProgress):
                        told.append(happened)

            stand.gateway.driver.observers.append(Watching())
            for _ in range(3):
                client = await stand.client()
                client.ask(chat(stream=True))
                await client.head()
            await until(lambda: told)
            assert sorted(told[0].streams) == [Growth(1, 1), Growth(2, 1), Growth(3, 1)]
            end.set()

    run(body())


@pytest.mark.parametrize("last", [event(finish="stop"), DONE], ids=["finish", "done"])
def test_events_that_come_with_one_of_two_choices_are_read_too(last: bytes) -> None:
    """Two choices say twice that they go on: by the count alone that stood for the event behind them as well."""
    both = event("a").replace(
        b"}]}", b'},{"index":1,"delta":{"content":"b"},"logprobs":null,"finish_reason":null}]}'
    )
    assert both.count(b'"finish_reason":null') == 2

    async def script(asked: Asked) -> None:
        asked.open_stream()
        for piece in (ROLE, event("a"), both + last):
            asked.send(piece)
            await asyncio.sleep(0.02)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True, n=2))
            assert (got.whole, got.body) == (True, ROLE + event("a") + both + last)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def test_an_engine_that_goes_on_with_comments_behind_the_end_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that closes on `[DONE]` has left nothing behind that would watch its engine."""
    monkeypatch.setattr(judgement, "ENDING_S", 0.2)

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"), event(finish="stop"), DONE)
        while not asked.gone:
            asked.send(b": still here\n\n")
            await asyncio.sleep(0.01)

    async def body() -> None:
        async with standing(script) as stand:
            stays = await stand.ask(chat("stays", stream=True))
            assert stays.whole
            assert stays.body.startswith(ROLE + event("a") + event(finish="stop") + DONE)
            leaves = await stand.client()
            leaves.ask(chat("leaves", stream=True))
            await leaves.head()
            leaves.leave()
            for number in (1, 2):
                await (await stand.engine.next(number)).hung_up()
            await stand.settle()

    run(body())
