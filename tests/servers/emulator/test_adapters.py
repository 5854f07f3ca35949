"""Adapters of the embedded engine, over the wire: listed, loaded, waited for."""

import asyncio
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from millgate.core.events import AdaptersSeen
from millgate.runtime.gauges import read_gauges
from servers.emulator.test_app import FAST, Client, ask, engine, run, until

LORA = replace(FAST, model_name="base", lora_modules=("sql", "chat"), max_loras=1, lora_load_s=0.1)
CHAT = "/v1/chat/completions"


def body(model: str, tokens: int = 2) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}


def test_adapters_are_listed_under_their_model() -> None:
    async def story() -> None:
        async with engine(LORA) as running:
            _, listed = await ask(running, "GET", "/v1/models")
            assert [(each["id"], each["root"], each["parent"]) for each in listed["data"]] == [
                ("base", "base", None),
                ("sql", "sql", "base"),
                ("chat", "chat", "base"),
            ]

    run(story)


def test_the_first_request_waits_for_the_adapter_and_the_next_does_not() -> None:
    async def story() -> None:
        async with engine(LORA) as running:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            _, answer = await ask(running, "POST", CHAT, body("sql"))
            first_s, begun = loop.time() - begun, loop.time()
            await ask(running, "POST", CHAT, body("sql"))
            assert answer["model"] == "sql"
            assert first_s > 0.1
            pacer = running.application._pacer
            assert pacer.adapters is not None
            assert pacer.adapters.loads == 1

    run(story)


def test_one_adapter_too_many_waits_and_the_gauge_says_so() -> None:
    async def story() -> None:
        async with engine(replace(LORA, time_scale=0.5)) as running:
            client = await Client.to(running)
            held = asyncio.ensure_future(client.send("POST", CHAT, body("sql", 2000)))
            await until(running, lambda now: now["running"] == 1)
            waits = asyncio.ensure_future(ask(running, "POST", CHAT, body("chat")))
            await asyncio.sleep(0.05)
            _, page = await ask(running, "GET", "/metrics")
            families = {each.name: each for each in text_string_to_metric_families(page)}
            assert read_gauges(page if isinstance(page, bytes) else page.encode()).adapters == AdaptersSeen(
                1, ("sql",)
            )
            assert families["vllm:lora_requests_info"].samples[0].labels == {
                "max_lora": "1",
                "running_lora_adapters": "sql",
                "waiting_lora_adapters": "chat",
            }
            status, _ = await ask(running, "POST", CHAT, body("base"))
            assert (status, waits.done()) == (200, False)
            held.cancel()
            client.close()
            status, answer = await waits
            assert (status, answer["model"]) == (200, "chat")

    run(story)


def test_a_client_that_leaves_while_its_adapter_loads_gives_its_place_back() -> None:
    async def story() -> None:
        async with engine(replace(LORA, lora_load_s=0.3)) as running:
            client = await Client.to(running)
            asked = asyncio.ensure_future(client.send("POST", CHAT, body("sql")))
            await until(running, lambda now: now["received"] == 1)
            asked.cancel()
            client.close()
            await until(running, lambda now: now["client_gone"] == 1)
            assert (await ask(running, "POST", CHAT, body("chat")))[0] == 200
            seen = await until(running, lambda now: now["finished"] == 1)
            assert seen["executed"] == 1

    run(story)
