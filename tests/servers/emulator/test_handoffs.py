"""Prefill on one embedded engine, decode on another, as vLLM's and SGLang's protocols have it; and every way it fails."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from millgate.servers.emulator import EmulatorSettings, RunningEngine
from servers.emulator.test_app import FAST, Client, ask, engine, run, stats, until

NIXL = replace(FAST, kv_transfer="nixl")
PROMPT = [{"role": "user", "content": "The quick brown fox jumps over it. " * 20}]  # 175 tokens
LEG_1: dict[str, object] = {
    "messages": PROMPT,
    "max_tokens": 1,
    "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
}
CHAT = "/v1/chat/completions"


async def prefilled(engine_p: RunningEngine) -> dict[str, Any]:
    status, answer = await ask(engine_p, "POST", CHAT, LEG_1)
    assert status == 200
    params = answer["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


def leg_2(params: dict[str, Any], **fields: object) -> dict[str, object]:
    return {"messages": PROMPT, "max_tokens": 20, "kv_transfer_params": params, **fields}


def test_a_prompt_is_computed_once_and_read_by_the_other_engine() -> None:
    async def story() -> None:
        async with engine(NIXL) as p, engine(NIXL) as d:
            params = await prefilled(p)
            assert params["do_remote_prefill"] is True
            assert (params["remote_host"], params["remote_port"], params["remote_num_tokens"]) == (
                p.host,
                p.port,
                175,
            )
            assert (await stats(p))["kv_kept"] == 1
            status, answer = await ask(d, "POST", CHAT, leg_2(params))
            assert (status, answer["usage"]["completion_tokens"]) == (200, 20)
            assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 174}
            assert "kv_transfer_params" not in answer
            at_p, at_d = await stats(p), await stats(d)
            assert (at_p["kv_kept"], at_p["kv_given"], at_p["kv_share"]) == (0, 1, 0.0)
            assert (at_d["prompt_tokens"], at_d["kv_taken"]) == (1, 1)

    run(story)


def test_what_is_kept_takes_memory_until_its_lease_ends() -> None:
    async def story() -> None:
        async with engine(replace(NIXL, kv_lease_s=0.2)) as p:
            await prefilled(p)
            assert (await stats(p))["kv_share"] > 0.0
            seen = await until(p, lambda now: now["kv_expired"] == 1)
            assert (seen["kv_kept"], seen["kv_share"]) == (0, 0.0)
            _, page = await ask(p, "GET", "/metrics")
            assert "vllm:nixl_num_kv_expired_reqs_total{" in page

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_after_the_lease_the_decoding_engine_fails(stream: bool) -> None:
    async def story() -> None:
        async with engine(replace(NIXL, kv_lease_s=0.05)) as p, engine(NIXL) as d:
            params = await prefilled(p)
            await until(p, lambda now: now["kv_expired"] == 1)
            await fails(d, params, stream=stream)

    run(story)


def test_it_is_read_once() -> None:
    async def story() -> None:
        async with engine(NIXL) as p, engine(NIXL) as d:
            params = await prefilled(p)
            assert (await ask(d, "POST", CHAT, leg_2(params)))[0] == 200
            await fails(d, params, stream=False)

    run(story)


def test_a_prefilling_engine_that_is_gone_fails_the_other_leg() -> None:
    async def story() -> None:
        async with engine(NIXL) as d:
            async with engine(NIXL) as p:
                params = await prefilled(p)
            await fails(d, params, stream=False)

    run(story)


async def fails(d: RunningEngine, params: dict[str, Any], *, stream: bool) -> None:
    """The second leg ends with an error: a 500, or an event where the stream has begun."""
    client = await Client.to(d)
    status = await client.send("POST", CHAT, leg_2(params, stream=stream))
    body = (await client.body()).decode()
    client.close()
    assert status == (200 if stream else 500)
    assert "The prompt's KV cannot be loaded" in body
    if stream:
        assert body.endswith("data: [DONE]\n\n")
    seen = await stats(d)
    assert (seen["kv_failed"], seen["output_tokens"] < 30, seen["kv_share"]) == (1, True, 0.0)


def test_or_it_computes_the_prompt_itself_when_told_so() -> None:
    async def story() -> None:
        patient = replace(NIXL, kv_load_failure_policy="recompute")
        async with engine(replace(NIXL, kv_lease_s=0.05)) as p, engine(patient) as d:
            params = await prefilled(p)
            await until(p, lambda now: now["kv_expired"] == 1)
            status, answer = await ask(d, "POST", CHAT, leg_2(params))
            assert (status, answer["usage"]["completion_tokens"]) == (200, 20)
            assert (await stats(d))["prompt_tokens"] == 175

    run(story)


def test_another_prompt_is_not_what_is_kept() -> None:
    async def story() -> None:
        async with engine(NIXL) as p, engine(NIXL) as d:
            params = await prefilled(p)
            other = leg_2(params) | {"messages": [{"role": "user", "content": "short"}]}
            assert (await ask(d, "POST", CHAT, other))[0] == 500

    run(story)


def test_a_client_that_leaves_while_the_prompt_comes_costs_nothing_here() -> None:
    async def story() -> None:
        slow = replace(NIXL, kv_tokens_per_s=1000.0)
        async with engine(NIXL) as p, engine(slow) as d:
            client = await Client.to(d)
            params = await prefilled(p)
            asked = asyncio.ensure_future(client.send("POST", CHAT, leg_2(params)))
            await until(p, lambda now: now["kv_given"] == 1)
            asked.cancel()
            client.close()
            await until(d, lambda now: now["client_gone"] == 1)
            await asyncio.sleep(0.25)
            seen = await stats(d)
            assert (seen["executed"], seen["kv_share"]) == (0, 0.0)

    run(story)


def test_a_client_that_leaves_while_the_prompt_is_computed_leaves_nothing_kept() -> None:
    async def story() -> None:
        async with engine(replace(NIXL, time_scale=0.1)) as p:
            client = await Client.to(p)
            asked = asyncio.ensure_future(client.send("POST", CHAT, LEG_1))
            await until(p, lambda now: now["running"] == 1)
            asked.cancel()
            client.close()
            seen = await until(p, lambda now: now["running"] == 0)
            assert (seen["kv_kept"], seen["kv_share"]) == (0, 0.0)

    run(story)


@pytest.mark.parametrize("fields", [{"n": 2}, {"messages": PROMPT}])
def test_several_answers_and_plain_requests_are_not_handed_over(fields: dict[str, object]) -> None:
    async def story() -> None:
        async with engine(NIXL) as p:
            body = {"max_tokens": 2, **LEG_1, **fields} if "n" in fields else {"max_tokens": 2, **fields}
            _, answer = await ask(p, "POST", CHAT, body)
            assert "kv_transfer_params" not in answer
            assert (await stats(p))["kv_kept"] == 0

    run(story)


def test_without_a_connector_the_object_means_nothing() -> None:
    async def story() -> None:
        async with engine() as p:
            _, answer = await ask(p, "POST", CHAT, LEG_1)
            assert "kv_transfer_params" not in answer

    run(story)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"do_remote_prefill": True}, "remote_host, remote_port and remote_request_id must name"),
        ({"do_remote_decode": "yes"}, "Expected `bool`"),
    ],
)
def test_a_wrong_object_is_refused_by_name(params: dict[str, object], complaint: str) -> None:
    async def story() -> None:
        async with engine(NIXL) as d:
            status, answer = await ask(d, "POST", CHAT, leg_2(params))
            assert status == 400
            assert complaint in answer["error"]["message"]

    run(story)


PREFILL, DECODE = replace(FAST, kv_transfer="sglang-prefill"), replace(FAST, kv_transfer="sglang-decode")


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_sglangs_two_engines_meet_in_a_room_whichever_is_asked_first(first: str) -> None:
    async def story() -> None:
        async with engine(PREFILL) as p, engine(DECODE) as d:
            body: dict[str, object] = {
                "messages": PROMPT,
                "max_tokens": 20,
                "bootstrap_host": p.host,
                "bootstrap_port": p.port,
                "bootstrap_room": 2**63 - 1,
            }
            order = (p, d) if first == "prefill" else (d, p)
            legs = []
            for each in order:
                legs.append(asyncio.ensure_future(ask(each, "POST", CHAT, body)))
                await asyncio.sleep(0.1)
            answers = dict(zip(order, await asyncio.gather(*legs), strict=True))
            assert answers[p][1]["usage"]["completion_tokens"] == 1
            assert answers[d][1]["usage"]["completion_tokens"] == 20
            assert answers[d][1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 174}
            assert (await stats(p))["kv_kept"] == 0

    run(story)


def room(p: RunningEngine, **fields: object) -> dict[str, object]:
    met: dict[str, object] = {"bootstrap_host": p.host, "bootstrap_port": p.port, "bootstrap_room": 7}
    return {"messages": PROMPT, "max_tokens": 20, **met, **fields}


@pytest.mark.parametrize("stream", [False, True])
def test_sglangs_prefilling_engine_answers_when_the_other_one_has_the_prompt(stream: bool) -> None:
    async def story() -> None:
        async with engine(PREFILL) as p, engine(DECODE) as d:
            client = await Client.to(p)
            asked = asyncio.ensure_future(client.send("POST", CHAT, room(p, stream=stream)))
            seen = await until(p, lambda now: now["kv_kept"] == 1)
            assert (seen["kv_share"] > 0.0, asked.done()) == (True, stream)
            assert (await ask(d, "POST", CHAT, room(p)))[0] == 200
            assert await asked == 200
            assert b"tok" in await client.body()
            client.close()

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_sglangs_engines_give_up_when_the_other_one_does_not_come(stream: bool) -> None:
    async def story() -> None:
        async with (
            engine(replace(PREFILL, kv_lease_s=0.1)) as p,
            engine(replace(DECODE, kv_lease_s=0.1)) as d,
        ):
            for each, complaint in ((p, "KVPoll.Bootstrapping"), (d, "The prompt's KV cannot be loaded")):
                client = await Client.to(each)
                assert await client.send("POST", CHAT, room(p, stream=stream)) == (200 if stream else 500)
                assert complaint in (await client.body()).decode()
                client.close()
                assert (await stats(each))["kv_share"] == 0.0

    run(story)


def has_happened(what: str, now: dict[str, Any]) -> bool:
    return bool(now[what] == 1)


def test_a_client_that_leaves_sglangs_engines_leaves_nothing_kept() -> None:
    async def story() -> None:
        async with engine(PREFILL) as p, engine(DECODE) as d:
            for each, has_come in ((p, "kv_kept"), (d, "received")):
                client = await Client.to(each)
                asked = asyncio.ensure_future(client.send("POST", CHAT, room(p)))
                await until(each, partial(has_happened, has_come))
                asked.cancel()
                client.close()
                seen = await until(each, lambda now: now["client_gone"] == 1)
                assert (seen["kv_kept"], seen["kv_share"]) == (0, 0.0)
            await asyncio.sleep(0.1)
            assert (await stats(d))["kv_failed"] == 0

    run(story)


def test_several_sequences_meet_in_as_many_rooms() -> None:
    async def story() -> None:
        async with engine(PREFILL) as p, engine(DECODE) as d:
            rooms = {
                "bootstrap_host": [p.host] * 3,
                "bootstrap_port": [p.port] * 3,
                "bootstrap_room": [7, 8, 9],
            }
            body = room(p, n=3, **rooms)
            first, second = await asyncio.gather(ask(p, "POST", CHAT, body), ask(d, "POST", CHAT, body))
            assert (first[0], len(second[1]["choices"])) == (200, 3)
            assert second[1]["usage"]["completion_tokens"] == 60
            assert ((await stats(p))["kv_share"], (await stats(d))["kv_share"]) == (0.0, 0.0)

    run(story)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"bootstrap_room": None}, "without bootstrap room id"),
        ({"bootstrap_host": None}, "must come with bootstrap_port"),
        ({"n": 2}, "2 sequences need as many rooms"),
        ({"n": 2, "bootstrap_room": [7, 7]}, "2 sequences need as many rooms"),
    ],
)
@pytest.mark.parametrize("settings", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_sglangs_engines_refuse_what_names_no_room(
    settings: EmulatorSettings, fields: dict[str, object], complaint: str
) -> None:
    async def story() -> None:
        async with engine(settings) as each:
            status, answer = await ask(each, "POST", CHAT, room(each, **fields))
            assert status == 400
            assert complaint in answer["error"]["message"]

    run(story)


@pytest.mark.parametrize(
    ("field", "value"), [("kv_transfer", "p2p"), ("kv_load_failure_policy", "ignore"), ("kv_lease_s", 0.0)]
)
def test_settings_that_make_no_sense_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be"):
        EmulatorSettings(**{field: value})  # type: ignore[arg-type]


def test_a_key_must_be_named() -> None:
    async def story() -> None:
        async with engine(NIXL) as p:
            assert (await ask(p, "POST", "/kv/read", {"no": 1}))[0] == 400
            status, answer = await ask(p, "POST", "/kv/read", {"id": "nobody"})
            assert (status, json.loads(json.dumps(answer))["error"]) == (
                404,
                "nothing is kept under this key",
            )

    run(story)
