"""An engine that refuses the gate's own key: no client's key is at fault, and none sees a part of it."""

import asyncio
from hashlib import sha256

import pytest

from gateway.harness import CHAT, ROLE, Asked, chat, event as delta, run
from gateway.stand import gating
from millgate.core.words import FailureKind
from millgate.gateway.settings import LineAddress
from millgate.runtime.callers import CallerSettings, TenantRule
from servers.line.stand import upload
from servers.line.talk import Peer

KEY, UPSTREAM = "mgk_planted-client-key", "sk-planted-engine-key"
GUARDED = CallerSettings(tenants=(TenantRule("a", (sha256(KEY.encode()).digest(),)),))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, b"/tokenize"])
def test_a_client_with_a_good_key_is_not_told_that_the_gates_own_key_is_refused(
    path: bytes, stream: bool
) -> None:
    """OpenAI shows a part of the key that it refuses, and agents ask their user to log in again after a 401."""

    async def refuse(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"Incorrect API key: %b","code":"x"}}' % UPSTREAM[-5:].encode(), 401)

    async def body() -> None:
        async with gating(refuse, callers=GUARDED, address={"api_key": UPSTREAM}) as stand:
            told: list[tuple[str, FailureKind]] = []
            stand.gateway.door.on_refused = lambda *refused: told.append(refused)
            got = await stand.ask(chat(stream=stream), path, authorization=f"Bearer {KEY}")
            assert (got.status, got.error["code"]) == (502, "upstream_error")
            assert UPSTREAM[-5:] not in str(got)
            assert told == ([("engine", FailureKind.STATUS)] if path == CHAT else [])
        async with gating(refuse, callers=CallerSettings()) as stand:
            theirs: list[str] = []
            stand.gateway.door.on_client_refused = theirs.append
            assert (await stand.ask(chat(), authorization="Bearer theirs")).status == 401
            assert theirs == ["engine"], "its operator sees it all the same"

    run(body())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, b"/tokenize"])
def test_a_provider_that_gets_no_key_refuses_none_of_a_client(path: bytes, stream: bool) -> None:
    """`tenants` and no `api_key_env`: each client was told that its own good key is wrong, and no line of the log said why."""

    async def refuse(asked: Asked) -> None:
        assert "authorization" not in asked.headers
        asked.reply(b'{"error":{"message":"You didn\'t provide an API key","code":null}}', 401)

    async def body() -> None:
        async with gating(refuse, callers=GUARDED) as stand:
            told: list[tuple[str, FailureKind]] = []
            stand.gateway.door.on_refused = lambda *refused: told.append(refused)
            got = await stand.ask(chat(stream=stream), path, authorization=f"Bearer {KEY}")
            assert (got.status, got.error["code"]) == (502, "upstream_error")
            assert told == ([("engine", FailureKind.STATUS)] if path == CHAT else [])

    run(body())


@pytest.mark.parametrize("code", [b"401", b"invalid_api_key"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_says_so_in_an_event_tells_its_client_as_little(begun: bool, code: bytes) -> None:
    """Routers answer 200 and ask their own provider then: LiteLLM's proxy has the status in the event, or passes OpenAI's code on."""
    error = b'{"message":"Incorrect API key: %b","type":"invalid_request_error","code":"%b"}'
    event = b'data: {"error":%b}\n\n' % (error % (UPSTREAM[-5:].encode(), code))

    async def refuse(asked: Asked) -> None:
        asked.open_stream()
        if begun:
            asked.send(ROLE, delta("a"))
            await asked.writer.drain()
            await asyncio.sleep(0.02)
        asked.send(event)
        asked.end_stream()

    async def body() -> None:
        async with gating(refuse, callers=GUARDED, address={"api_key": UPSTREAM}) as stand:
            got = await stand.ask(chat(stream=True), CHAT, b"POST", authorization=f"Bearer {KEY}")
            assert (got.status, got.whole) == ((200, False) if begun else (502, True))
            assert b'"upstream_error"' in got.body
            assert UPSTREAM[-5:] not in str(got)
        async with gating(refuse) as stand:
            theirs = await stand.ask(chat(stream=True), CHAT, b"POST", authorization="Bearer theirs")
            assert (theirs.status, UPSTREAM[-5:] in str(theirs)) == (200 if begun else 401, True)

    run(body())


@pytest.mark.parametrize("kind", ["error", "response.failed"])
def test_an_account_without_credit_that_says_so_in_a_stream_is_told_as_by_its_status(kind: str) -> None:
    """OpenAI begins a response with 200 before it looks at the account: that counted as a failure of its servers."""
    error = b'{"type":"insufficient_quota","code":"insufficient_quota","message":"You exceeded your quota"}'
    beside = b'"error":%b' if kind == "error" else b'"response":{"id":"resp_1","error":%b}'
    event = b'event: %b\ndata: {"type":"%b",%b}\n\n' % (kind.encode(), kind.encode(), beside % error)

    async def refuse(asked: Asked) -> None:
        asked.open_stream()
        asked.send(event)
        asked.end_stream()

    async def body() -> None:
        async with gating(refuse, callers=GUARDED, address={"api_key": UPSTREAM}) as stand:
            told: list[tuple[str, FailureKind]] = []
            stand.gateway.door.on_refused = lambda *refused: told.append(refused)
            ask = b'{"model":"m","input":"hi","stream":true}'
            got = await stand.ask(ask, b"/v1/responses", b"POST", authorization=f"Bearer {KEY}")
            assert (got.status, got.error["code"]) == (502, "upstream_no_credit")
            assert told == [("engine", FailureKind.NO_CREDIT)]

    run(body())


def test_neither_is_the_client_of_a_job_told() -> None:
    async def refuse(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"Incorrect API key: %b"}}' % UPSTREAM[-5:].encode(), 401)

    async def body() -> None:
        for own_key, words in ((UPSTREAM, "the engine failed"), (None, "the engine answered 401")):
            async with gating(refuse, address={"api_key": own_key}, line=LineAddress(port=0)) as stand:
                port = stand.gateway.line_port
                peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
                peer.send(upload(chat()))
                reply = await peer.final()
                assert reply.message.startswith(words)
                assert (UPSTREAM[-5:] in reply.message) is (own_key is None)
                peer.leave()

    run(body())


def test_the_gates_key_stands_where_anthropic_looks_whatever_the_client_names() -> None:
    """A request without `anthropic-version` had it as a bearer alone: 401, and five in a row shut the account for all."""

    async def body() -> None:
        async with gating(callers=GUARDED, address={"api_key": UPSTREAM}) as stand:
            ask = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
            await stand.ask(ask, b"/v1/messages", b"POST", x_api_key=KEY)
            assert stand.engine.asked[0].headers["x-api-key"] == UPSTREAM

    run(body())


@pytest.mark.parametrize("stream", [True, False])
def test_neither_a_clients_cookie_nor_the_accounts_name_passes_where_the_gate_sends_its_key(
    stream: bool,
) -> None:
    """A browser sends a gate the session of its company's other sites: it went on to the provider, whose answer named the account."""
    whole = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    events = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def answer(asked: Asked) -> None:
        kind = "text/event-stream" if stream else "application/json"
        theirs = {"openai_organization": "acme", "set_cookie": "account=1"}
        asked.reply(events if stream else whole, 200, kind, **theirs)

    async def body() -> None:
        sent = {"authorization": f"Bearer {KEY}", "cookie": "session=hush"}
        async with gating(answer, callers=GUARDED, address={"api_key": UPSTREAM}) as stand:
            got = await stand.ask(chat(stream=stream), CHAT, b"POST", **sent)
            assert got.status == 200
            assert "hush" not in str(stand.engine.asked[0].headers)
            assert not {"openai-organization", "set-cookie"} & set(got.headers)
        async with gating(answer) as stand:
            got = await stand.ask(chat(stream=stream), CHAT, b"POST", **sent)
            assert stand.engine.asked[0].headers["cookie"] == "session=hush"
            assert got.headers["openai-organization"] == "acme"

    run(body())


def test_what_belongs_to_a_clients_own_account_stops_where_the_gate_sends_its_key() -> None:
    """OpenAI answers 401 to a key with another one's organization: one client with OPENAI_ORG_ID set shut the account for all."""

    async def body() -> None:
        theirs = {"openai_organization": "org-theirs", "openai_project": "theirs", "api_key": "theirs"}
        async with gating(address={"api_key": UPSTREAM}) as stand:
            assert (
                await stand.ask(chat(), CHAT, b"POST", authorization="Bearer theirs", **theirs)
            ).status == 200
            assert "theirs" not in str(stand.engine.asked[0].headers)
        async with gating() as stand:
            assert (
                await stand.ask(chat(), CHAT, b"POST", authorization="Bearer theirs", **theirs)
            ).status == 200
            assert stand.engine.asked[0].headers["openai-organization"] == "org-theirs"

    run(body())
