"""What a client sees of a refusal, and what never gets as far as being refused by the core."""

import asyncio
import json

import pytest

from gateway.harness import CHAT, Asked, answer_whole, chat, run, standing, until
from millgate.core.settings import LaneSettings

NO_QUEUE = LaneSettings("interactive", max_queue=0)


async def wait_for_ever(asked: Asked) -> None:
    await asked.hung_up(60)


def test_a_refusal_carries_the_reason_the_hint_and_whether_to_retry() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1, lane=NO_QUEUE) as stand:
            busy = await stand.client()
            busy.ask(chat())
            await stand.engine.next()
            got = await stand.ask(chat("second"))
            assert got.status == 503
            assert got.error["type"] == "service_unavailable_error"
            assert got.error["code"] == "server_is_overloaded"
            assert got.headers["x-millgate-reason"] == "saturated"
            assert got.headers["x-should-retry"] in {"true", "false"}
            if got.headers["x-should-retry"] == "true":
                assert 1 <= int(got.headers["retry-after"]) <= 60
                assert 100 <= int(got.headers["retry-after-ms"]) <= 60_000
            assert got.headers["request-id"] == got.headers["x-request-id"]
            assert len(stand.engine.asked) == 1

    run(body())


def test_a_refused_connection_stays_open_for_the_next_try() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1, lane=NO_QUEUE) as stand:
            busy, other = await stand.client(), await stand.client()
            busy.ask(chat())
            await stand.engine.next()
            for _ in range(3):
                other.ask(chat("second"))
                assert (await other.answer()).status == 503

    run(body())


def test_a_queued_request_is_served_in_its_turn() -> None:
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        if b"first" in asked.body:
            await release.wait()
        await answer_whole(asked)

    async def body() -> None:
        async with standing(script, max_inflight=1) as stand:
            first, second = await stand.client(), await stand.client()
            first.ask(chat("first"))
            await stand.engine.next()
            second.ask(chat("second"))
            await until(lambda: stand.lane.queued == 1)
            release.set()
            assert (await first.answer()).status == 200
            assert (await second.answer()).status == 200
            await stand.settle()

    run(body())


def test_a_client_that_waits_less_than_the_queue_takes_is_refused_at_once() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1) as stand:
            busy = await stand.client()
            busy.ask(chat())
            await stand.engine.next()
            got = await stand.ask(chat("second"), x_millgate_deadline_ms="1")
            assert (got.status, got.headers["x-millgate-reason"]) == (503, "too_late")

    run(body())


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"model":"m"}', "messages"),
        (b'{"messages":[]}', "messages"),
        (chat(n=1000), "n"),
        (chat(max_tokens=-1), "max_tokens"),
        (chat(max_tokens="5"), "max_tokens"),
        (chat(stream="yes"), "stream"),
        (b'{"model":"a","messages":[1],"model":"b"}', "model"),
        (b'{"messages":[1],"x":"\xff"}', None),
        (b'{"messages":[1],"x":' + b"[" * 100_000, None),
    ],
)
def test_bad_input_is_named_and_never_dispatched(sent: bytes, field: str | None) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(sent)
            assert (got.status, got.error["type"]) == (400, "invalid_request_error")
            assert got.error["param"] == field
            assert got.headers["x-should-retry"] == "false"
            assert not stand.engine.asked
            assert stand.lane.arrived == 0
            assert stand.gateway.door.rejected == 1

    run(body())


def test_a_deadline_that_is_no_number_is_bad_input() -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(), x_millgate_deadline_ms="soon")
            assert (got.status, got.error["param"]) == (400, "x-millgate-deadline-ms")

    run(body())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"POST", b"/v1/nothing", 404),
        (b"POST", b"/invocations", 404),
        (b"GET", b"/metrics", 404),
        (b"POST", b"/v1/chat/../chat/completions", 404),
        (b"POST", b"//v1/chat/completions", 404),
        (b"POST", b"/v1/chat/completion%73", 404),
        (b"GET", b"/v1/models/..", 404),
        (b"GET", b"/v1/models/%2e%2e/secret", 404),
        (b"GET", CHAT, 405),
        (b"DELETE", b"/v1/models", 405),
    ],
)
def test_only_listed_paths_and_methods_pass(method: bytes, path: bytes, status: int) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(b"", path, method)
            assert got.status == status
            assert got.error["message"]
            assert not stand.engine.asked

    run(body())


def test_a_request_that_lost_its_body_is_told_so() -> None:
    """A redirect that was followed, and a `fetch` without `body`, send none."""

    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(b"")
            assert (got.status, got.error["message"]) == (400, "body is empty: a JSON object is expected")

    run(body())


def test_agents_that_ask_for_a_web_socket_first_are_sent_to_http_at_once() -> None:
    """Codex goes on over HTTP after 426; after any other status it tries again, and ends with the error."""
    asking = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}

    async def body() -> None:
        async with standing() as stand:
            client = await stand.client()
            client.ask(b"", b"/v1/responses", b"GET", asking)
            got = await client.answer()
            assert (got.status, got.error["code"]) == (426, "upgrade_refused")
            assert (got.headers["connection"], got.headers["x-should-retry"]) == ("close", "false")
            assert got.headers["upgrade"] == "HTTP/1.1"
            client.leave()

    run(body())


def test_a_coding_that_changes_nothing_is_none_in_any_letter_case() -> None:
    """RFC 9110 section 8.4.1."""

    async def body() -> None:
        async with standing() as stand:
            assert (await stand.ask(chat(), content_encoding="Identity")).status == 200

    run(body())


@pytest.mark.parametrize(("kind", "coding"), [("text/plain", "identity"), ("application/json", "gzip")])
def test_only_plain_json_is_taken(kind: str, coding: str) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(), content_type=kind, content_encoding=coding)
            assert got.status == 415
            assert not stand.engine.asked

    run(body())


def test_inv_2_answers_and_prompt_lists_never_run_more_sequences_than_the_cap() -> None:
    async def script(asked: Asked) -> None:
        asks = json.loads(asked.body)
        inside.append(asks.get("n", 1) * (len(asks["prompt"]) if "prompt" in asks else 1))
        most.append(sum(inside))
        await answer_whole(asked)
        inside.pop()

    inside: list[int] = []
    most: list[int] = []

    async def body() -> None:
        async with standing(script, max_inflight=4) as stand:
            four = json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 4, "max_tokens": 4}
            ).encode()
            two = json.dumps({"model": "m", "prompt": ["a", "b"], "max_tokens": 4}).encode()
            asking = [stand.ask(four), stand.ask(two, b"/v1/completions")]
            asking += [stand.ask(four) for _ in range(3)]
            got = await asyncio.gather(*asking)
            assert [each.status for each in got] == [200] * 5
            assert max(most) == 4

    run(body())


def test_more_sequences_than_the_cap_are_413_and_say_how_many_there_may_be() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=4) as stand:
            asks = json.dumps({"model": "m", "prompt": ["a"] * 6, "n": 2, "max_tokens": 8}).encode()
            got = await stand.ask(asks, b"/v1/completions")
            assert got.status == 413
            assert got.headers["x-should-retry"] == "false"
            assert "12 sequences" in got.error["message"]
            assert "more than 4" in got.error["message"]
            assert not stand.engine.asked

    run(body())


@pytest.mark.parametrize(
    ("behind", "status", "id_of"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nbroken\r\n\r\n", 400, None),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nx-request-id: second\r\ncontent-length: 99999999\r\n\r\n",
            413,
            "second",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_not_told_under_the_id_of_the_one_before(
    behind: bytes, status: int, id_of: str | None
) -> None:
    """A proxy sends the requests of many clients on one connection."""

    async def body() -> None:
        async with standing() as stand:
            client = await stand.client()
            client.ask(chat(), headers={"x-request-id": "first"})
            assert (await client.answer()).headers["x-request-id"] == "first"
            client.writer.write(behind)
            got = await client.answer()
            given = got.headers["x-request-id"]
            assert (got.status, given != "first", id_of in {None, given}) == (status, True, True)

    run(body())
