"""Pages of other sites: only those of configured origins may ask and read, whatever the answer is."""

import asyncio
import json
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from gateway.harness import Answer, Asked, chat, run
from gateway.stand import core_settings, gating
from millgate.core.events import Draining
from millgate.core.settings import LaneSettings, QuotaLimit, QuotaRule
from millgate.core.words import QuotaKind
from millgate.http1.server import ServerLimits
from millgate.servers.http import CrossOrigin, DoorSettings

PAGE = "https://app.example"
PREFLIGHT = {"origin": PAGE, "access_control_request_method": "POST"}


def door(*origins: str) -> DoorSettings:
    return DoorSettings(cross_origin=CrossOrigin(origins or (PAGE,), 600.0))


def allowed(answer: Answer) -> str | None:
    return answer.headers.get("access-control-allow-origin")


def preflight(settings: DoorSettings, **fields: Any) -> Answer:
    """Return what a browser is told before a page's request."""
    told: list[Answer] = []

    async def test() -> None:
        async with gating(door=settings) as stand:
            told.append(await stand.ask(b"", method=b"OPTIONS", **{**PREFLIGHT, **fields}))

    run(test())
    return told[0]


def test_a_browser_that_asks_first_is_told_what_it_may_send() -> None:
    answer = preflight(door(), access_control_request_headers="authorization,x-stainless-lang")
    assert (answer.status, allowed(answer)) == (200, PAGE)
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-lang"
    assert answer.headers["access-control-max-age"] == "600"
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("names", ["a b", "<script>", "x" * 2000])
def test_names_that_are_none_are_not_repeated(names: str) -> None:
    answer = preflight(door(), access_control_request_headers=names)
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-api-key"


@pytest.mark.parametrize(
    ("settings", "origin", "told"),
    [
        (door(), "https://other.example", None),
        (door(), "https://app.example.other.example", None),
        (door(), "null", None),
        (door("*"), "https://other.example", "*"),
        (DoorSettings(), PAGE, None),
    ],
)
def test_only_configured_origins_are_allowed(settings: DoorSettings, origin: str, told: str | None) -> None:
    assert allowed(preflight(settings, origin=origin)) == told


def test_every_answer_to_an_allowed_page_may_be_read_and_the_engine_s_word_does_not_count() -> None:
    async def own_opinion(asked: Asked) -> None:
        asked.reply(
            b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
            access_control_allow_origin="*",
            access_control_allow_credentials="true",
        )

    async def test() -> None:
        core = core_settings(lanes=(LaneSettings("interactive"),))
        async with gating(own_opinion, core=core, door=door()) as stand:
            answers = [
                await stand.ask(chat(), origin=PAGE),
                await stand.ask(b"{", origin=PAGE),
                await stand.ask(b"", b"/nowhere", origin=PAGE),
                await stand.ask(b"", method=b"GET", origin=PAGE),
            ]
            assert [answer.status for answer in answers] == [200, 400, 404, 405]
            assert [allowed(answer) for answer in answers] == [PAGE] * 4
            assert all("retry-after" in answer.headers["access-control-expose-headers"] for answer in answers)
            assert "access-control-allow-credentials" not in answers[0].headers
            assert allowed(await stand.ask(chat(), origin="https://other.example")) is None
            assert allowed(await stand.ask(chat())) is None

    run(test())


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages"])
def test_a_page_may_read_its_quotas_and_why_it_was_refused(path: bytes) -> None:
    rules = (
        QuotaRule("a", QuotaLimit(QuotaKind.RPM, 1.0)),
        QuotaRule("b", QuotaLimit(QuotaKind.ITPM, 1e6)),
        QuotaRule("c", QuotaLimit(QuotaKind.OTPM, 1e6)),
    )

    async def test() -> None:
        async with gating(core=replace(core_settings(), quotas=rules), door=door()) as stand:
            answers = [await stand.ask(chat(), path, origin=PAGE) for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 429]
            told = {name for each in answers for name in each.headers if "ratelimit" in name}
            assert len(told) >= 6
            exposed = set(answers[0].headers["access-control-expose-headers"].split(", "))
            assert told | {"x-millgate-reason"} <= exposed

    run(test())


def test_streams_and_refusals_may_be_read_too() -> None:
    async def test() -> None:
        async with gating(core=core_settings(), door=door()) as stand:
            streamed = await stand.ask(chat(stream=True), origin=PAGE)
            assert (allowed(streamed), streamed.whole) == (PAGE, True)
        async with gating(core=core_settings(), door=door()) as stand:
            stand.gateway.driver.post(Draining(0.0))
            refused = await stand.ask(chat(), origin=PAGE)
            assert (refused.status, allowed(refused)) == (503, PAGE)
            assert json.loads(refused.body)["error"]["code"] == "server_is_overloaded"

    run(test())


def test_a_page_with_a_wrong_base_address_reads_which_path_is_meant() -> None:
    """A browser asks before the request; refused there, a page hears of a fetch that failed and its owner looks for a fault in CORS."""

    async def test() -> None:
        async with gating(door=door()) as stand:
            wrong = b"/chat/completions"
            asked = await stand.ask(b"", wrong, b"OPTIONS", **PREFLIGHT)
            assert (asked.status, allowed(asked)) == (200, PAGE)
            refused = await stand.ask(chat(), wrong, origin=PAGE)
            assert (refused.status, allowed(refused)) == (404, PAGE)
            assert "/v1/chat/completions" in refused.error["message"]
            other = await stand.ask(
                b"", wrong, b"OPTIONS", **{**PREFLIGHT, "origin": "https://other.example"}
            )
            assert (other.status, allowed(other)) == (404, None)

    run(test())


def test_a_page_may_read_why_the_server_did_not_take_its_request_and_is_allowed_once() -> None:
    def fault_of_ours(*_asked: object) -> NoReturn:
        raise RuntimeError("a fault of our own")

    async def test() -> None:
        async with gating(door=door(), server=ServerLimits(body_bytes=1000)) as stand:
            refused = await stand.ask(chat(user="x" * 2000), origin=PAGE)
            assert (refused.status, allowed(refused)) == (413, PAGE)
            stand.gateway.door.make_attempt = fault_of_ours
            faults: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
            client = await stand.client()
            client.ask(chat(), headers={"origin": PAGE})
            head = await client.reader.readuntil(b"\r\n\r\n")
            client.leave()
            assert head.startswith(b"HTTP/1.1 500 ")
            assert head.count(b"access-control-allow-origin: ") == 1
            assert len(faults) == 1

    run(test())
