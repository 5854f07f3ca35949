"""A gate without configured lanes, over HTTP: which lane a long prompt, embeddings and whole answers come to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

from gateway.harness import DONE, Asked, Stand, answer, chat, event, run, standing, usage_event
from millgate.config.load import load_config
from millgate.config.overrides import override
from millgate.core.snapshot import LaneSnapshot
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.wiring.settings import build_settings

LONG = "word " * 4_000
"""Read in 0.4 s by what is believed of an engine, where interactive's half is 0.2 s."""


@asynccontextmanager
async def by_default(callers: CallerSettings | None = None) -> AsyncIterator[Stand]:
    """Serve as `millgate serve --upstream URL --ttft-slo 400ms` would."""
    given = [
        override("engines.0.url", "http://a:1", "--upstream"),
        override("lanes.0.ttft_slo", "400ms", "flag"),
    ]
    config = load_config(None, {}, given).config
    paths = {path.encode(): lane.name for lane in config.lanes for path in lane.paths}
    callers = callers or CallerSettings(lanes=tuple(lane.name for lane in config.lanes), path_lanes=paths)
    async with standing(both, lanes=build_settings(config).settings.lanes, callers=callers) as stand:
        yield stand


async def both(asked: Asked) -> None:
    """Answer whole or as a stream, as asked."""
    if b'"stream": true' in asked.body:
        asked.open_stream()
        asked.send(event("hi"), event(finish="stop"), usage_event(len(asked.body) // 5, 2), DONE)
        asked.end_stream()
    else:
        asked.reply(answer())


def arrived(stand: Stand) -> dict[str, int]:
    lanes: tuple[LaneSnapshot, ...] = stand.snapshot.lanes
    return {lane.name: lane.arrived for lane in lanes if lane.arrived}


def test_requests_come_to_the_three_lanes_by_their_size_and_route() -> None:
    async def body() -> None:
        async with by_default() as stand:
            embedding = json.dumps({"model": "m", "input": "some text"}).encode()
            assert (await stand.ask(chat("short", stream=True))).status == 200
            assert arrived(stand) == {"interactive": 1}
            assert (await stand.ask(chat(LONG, stream=True))).status == 200
            assert arrived(stand) == {"interactive": 1, "long_context": 1}
            assert (await stand.ask(chat("short", max_tokens=4))).status == 200
            assert arrived(stand) == {"interactive": 2, "long_context": 1}
            assert (await stand.ask(chat("short", max_tokens=900))).status == 200
            assert (await stand.ask(embedding, b"/v1/embeddings")).status == 200
            assert arrived(stand) == {"interactive": 2, "long_context": 1, "throughput": 2}

    run(body())


def test_a_batch_of_conversations_comes_to_throughput_by_its_path() -> None:
    async def body() -> None:
        async with by_default() as stand:
            conversation = [{"role": "user", "content": "hi"}]
            batch = json.dumps({"model": "m", "messages": [conversation], "max_tokens": 4}).encode()
            assert (await stand.ask(batch, b"/v1/chat/completions/batch")).status == 200
            assert arrived(stand) == {"throughput": 1}

    run(body())


def test_coding_agents_come_to_their_own_lane_unless_their_prompt_is_long() -> None:
    async def body() -> None:
        async with by_default() as stand:
            await stand.ask(chat("short", stream=True), user_agent="python-httpx/0.28")
            assert arrived(stand) == {"interactive": 1}
            await stand.ask(chat("short", stream=True), x_claude_code_session_id="s-1")
            await stand.ask(chat("short", stream=True), user_agent="codex_exec/0.171.0 (Debian 12.0.0)")
            await stand.ask(chat("short", stream=True), user_agent="opencode/1.18.33 ai-sdk/4.0")
            await stand.ask(chat("short", stream=True), user_agent="RooCode/3.2")
            await stand.ask(chat("short", stream=True), user_agent="python opencode/1", session_id="s-2")
            await stand.ask(chat("short", max_tokens=900), x_claude_code_session_id="s-1")
            assert arrived(stand) == {"interactive": 2, "agents": 5}
            await stand.ask(chat(LONG, stream=True), x_claude_code_session_id="s-1")
            assert arrived(stand) == {"interactive": 2, "agents": 5, "long_context": 1}

    run(body())


def test_an_agent_whose_key_names_lanes_stays_in_them() -> None:
    async def body() -> None:
        digest = sha256(b"tied").digest()
        callers = CallerSettings(
            tenants=(TenantRule("tied", (digest,), ("interactive",)),), lanes=("interactive", "agents")
        )
        async with by_default(callers) as stand:
            asked = chat("short", stream=True)
            await stand.ask(asked, authorization="Bearer tied", x_claude_code_session_id="s-1")
            assert arrived(stand) == {"interactive": 1}

    run(body())


def test_a_trusted_header_comes_before_the_size() -> None:
    async def body() -> None:
        names = ("interactive", "long_context", "throughput")
        callers = CallerSettings(lanes=names, trusted_peers=("127.0.0.0/8",))
        async with by_default(callers) as stand:
            await stand.ask(chat(LONG, stream=True), x_millgate_lane="interactive")
            await stand.ask(chat("short", stream=True), x_millgate_lane="throughput")
            assert arrived(stand) == {"interactive": 1, "throughput": 1}

    run(body())


def test_a_key_with_lanes_stays_in_them_and_one_without_is_classed() -> None:
    async def body() -> None:
        digests = [sha256(key.encode()).digest() for key in ("tied", "free")]
        rules = (TenantRule("tied", (digests[0],), ("interactive",)), TenantRule("free", (digests[1],)))
        callers = CallerSettings(tenants=rules, lanes=("interactive", "long_context", "throughput"))
        for key, lane in (("tied", "interactive"), ("free", "long_context")):
            async with by_default(callers) as stand:
                await stand.ask(chat(LONG, stream=True), authorization=f"Bearer {key}")
                assert arrived(stand) == {lane: 1}

    run(body())
