"""The embedded engine's prefix cache, over the wire: what it finds, how it says so, and what makes prompts alike."""

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millgate.dialects.anthropic import ANTHROPIC
from millgate.dialects.contract import Usage
from millgate.dialects.openai import OPENAI
from millgate.dialects.responses import RESPONSES
from millgate.servers.emulator import RunningEngine
from millgate.servers.emulator.prefixes import PrefixNames
from millgate.servers.emulator.requests import RequestReader, Surface
from servers.emulator.test_app import FAST, Client, ask, engine, events, run, stats

CACHING = replace(FAST, enable_prefix_caching=True)
LONG = "The quick brown fox jumps over it. " * 20  # 700 bytes: 175 tokens, 10 full blocks


def names(body: Mapping[str, object], surface: Surface = Surface.CHAT) -> tuple[int, ...]:
    """Return the names of the blocks of a body's first prompt and answer."""
    reader = RequestReader(max_model_len=10_000, tokens_per_event=1, model_name="m", dice=Random(1))
    data = json.dumps({"max_tokens": 1, **body}).encode()
    return PrefixNames(16).named(data, reader.read(data, surface))[0].prefix_ids


def said(*messages: tuple[str, object], **fields: object) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content} for role, content in messages], **fields}


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Count the leading names in common; behind the first that differs none is equal."""
    same = [left == right for left, right in zip(one, other, strict=False)]
    count = same.index(False) if False in same else len(same)
    assert not any(same[count:])
    return count


def test_equal_beginnings_have_equal_names_up_to_the_block_that_differs() -> None:
    whole = names(said(("user", LONG)))
    changed = names(said(("user", LONG[:330] + "X" + LONG[331:])))

    # The answer's one token completes the eleventh block.
    assert len(whole) == 11
    assert alike(whole, names(said(("user", LONG)))) == 11
    assert alike(whole, changed) == 5


@pytest.mark.parametrize(
    "other",
    [
        said(("system", LONG)),
        said(("user", LONG), model="another"),
        said(("user", LONG), tools=[{"type": "function", "function": {"name": "f"}}]),
        said(("user", LONG), cache_salt="secret"),
    ],
)
def test_role_model_tools_and_salt_make_all_names_differ(other: dict[str, object]) -> None:
    assert alike(names(said(("user", LONG))), names(other)) == 0


def test_where_a_message_ends_is_part_of_the_prompt() -> None:
    assert alike(names(said(("user", LONG + LONG))), names(said(("user", LONG), ("user", LONG)))) == 10


def test_a_string_and_parts_are_the_same_and_cache_control_is_not_seen() -> None:
    """Claude Code marks its last messages for the cache, and other ones in every turn."""
    parts = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]

    assert names(said(("user", LONG)), Surface.MESSAGES) == names(said(("user", parts)), Surface.MESSAGES)


def test_the_first_session_of_claude_code_reads_the_tools_and_the_system_prompt_for_the_next_one() -> None:
    """Its tools are most of a prompt, and its billing line, which vLLM drops, differs from session to session."""
    tools = [{"name": "Agent", "description": LONG, "input_schema": {"type": "object"}}]
    one, other = (
        said(
            ("user", question),
            tools=tools,
            system=[{"type": "text", "text": line}, {"type": "text", "text": LONG}],
        )
        for line, question in (
            ("x-anthropic-billing-header: cch=1;", "Is it late?"),
            ("x-anthropic-billing-header: cch=2;", "Why?"),
        )
    )

    blocks = len(json.dumps(tools) + LONG) // 64
    assert alike(names(one, Surface.MESSAGES), names(other, Surface.MESSAGES)) == blocks


def test_what_is_no_text_counts_too() -> None:
    one, other = (
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [{"id": id_}]},
                {"role": "user", "content": LONG},
            ]
        }
        for id_ in ("a", "b")
    )

    assert alike(names(one), names(other)) == 0


def test_a_conversation_goes_on_from_its_answer() -> None:
    first = names(said(("user", LONG), max_tokens=100))
    following = names(said(("user", LONG), ("assistant", " tok" * 100), ("user", "and then?")))

    assert len(first) == (700 + 400) // 64
    assert alike(first, following) == len(first)


@pytest.mark.parametrize("prompt", [LONG, [LONG], list(range(175)), [list(range(175))]])
def test_completions_name_texts_and_token_ids(prompt: object) -> None:
    one = names({"prompt": prompt}, Surface.COMPLETION)

    assert len(one) == 11
    assert one == names({"prompt": prompt}, Surface.COMPLETION)


async def twice(running: RunningEngine, path: str, body: dict[str, object]) -> list[bytes]:
    answers = []
    for _ in range(2):
        client = await Client.to(running)
        assert await client.send("POST", path, body) == 200
        answers.append(await client.body())
        client.close()
    return answers


def test_usage_says_how_much_of_the_prompt_was_found() -> None:
    async def story() -> None:
        async with engine(CACHING) as running:
            first, second = await twice(running, "/v1/chat/completions", said(("user", LONG), max_tokens=2))
            assert "prompt_tokens_details" not in json.loads(first)["usage"]
            assert json.loads(second)["usage"]["prompt_tokens_details"] == {"cached_tokens": 160}
            assert OPENAI.read_usage(second) == Usage(175, 2, 160)

    run(story)


def test_every_surface_says_it_in_its_own_words() -> None:
    async def story() -> None:
        async with engine(CACHING) as running:
            _, message = await twice(running, "/v1/messages", said(("user", LONG), max_tokens=2))
            assert json.loads(message)["usage"] == {
                "input_tokens": 15,
                "cache_read_input_tokens": 160,
                "output_tokens": 2,
            }
            assert ANTHROPIC.read_usage(message) == Usage(175, 2, 160)
            body: dict[str, object] = {"input": "And so on. " + LONG, "max_output_tokens": 2}
            _, response = await twice(running, "/v1/responses", body)
            assert json.loads(response)["usage"]["input_tokens_details"] == {"cached_tokens": 176}
            assert RESPONSES.read_usage(response) == Usage(178, 2, 176)

    run(story)


def test_streams_say_it_too() -> None:
    async def story() -> None:
        async with engine(CACHING) as running:
            body = said(("user", LONG), max_tokens=3, stream=True, stream_options={"include_usage": True})
            _, second = await twice(running, "/v1/chat/completions", body)
            assert events(second)[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 160}
            _, message = await twice(running, "/v1/messages", said(("user", LONG), max_tokens=3, stream=True))
            usages = [line for line in message.decode().splitlines() if '"usage"' in line]
            assert len(usages) == 2
            assert all('"cache_read_input_tokens":160' in line for line in usages)

    run(story)


def test_every_prompt_of_a_list_is_counted_once() -> None:
    async def story() -> None:
        async with engine(CACHING) as running:
            body: dict[str, object] = {"prompt": [LONG, LONG[::-1]], "n": 3, "max_tokens": 2}
            first, second = await twice(running, "/v1/completions", body)
            assert "prompt_tokens_details" not in json.loads(first)["usage"]
            assert json.loads(second)["usage"]["prompt_tokens_details"] == {"cached_tokens": 320}

    run(story)


def test_metrics_and_stats_count_what_was_looked_up_and_found() -> None:
    async def story() -> None:
        async with engine(CACHING) as running:
            await twice(running, "/v1/chat/completions", said(("user", LONG), max_tokens=2))
            _, page = await ask(running, "GET", "/metrics")
            families: dict[str, Any] = {each.name: each for each in text_string_to_metric_families(page)}
            assert families["vllm:prefix_cache_queries"].samples[0].value == 350
            assert families["vllm:prefix_cache_hits"].samples[0].value == 160
            sources = families["vllm:prompt_tokens_by_source"].samples
            assert {each.labels["source"]: each.value for each in sources} == {
                "local_compute": 190,
                "local_cache_hit": 160,
                "external_kv_transfer": 0,
            }
            assert families["vllm:cache_config_info"].samples[0].labels["enable_prefix_caching"] == "True"
            seen = await stats(running)
            assert (seen["prefix_queried_tokens"], seen["prefix_hit_tokens"]) == (350, 160)

    run(story)


def test_less_memory_remembers_less() -> None:
    async def story() -> None:
        async with engine(replace(CACHING, num_gpu_blocks_override=16)) as running:
            ask_first, ask_other = (
                said(("user", LONG), max_tokens=2),
                said(("user", LONG[::-1]), max_tokens=2),
            )
            await twice(running, "/v1/chat/completions", ask_first)
            await ask(running, "POST", "/v1/chat/completions", ask_other)
            _, answer = await ask(running, "POST", "/v1/chat/completions", ask_first)
            # Of 16 blocks the other one took 11.
            assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 80}

    run(story)


def test_without_the_switch_nothing_is_remembered_or_said() -> None:
    async def story() -> None:
        async with engine() as running:
            _, second = await twice(running, "/v1/chat/completions", said(("user", LONG), max_tokens=2))
            assert "prompt_tokens_details" not in json.loads(second)["usage"]
            assert (await stats(running))["prefix_queried_tokens"] == 0

    run(story)


def test_a_body_with_numbers_beyond_reason_is_answered_without_names() -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 1e999}'
    reader = RequestReader(max_model_len=100, tokens_per_event=1, model_name="m", dice=Random(1))

    assert PrefixNames(16).named(body, reader.read(body, Surface.CHAT))[0].prefix_ids == ()
