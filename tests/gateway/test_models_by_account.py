"""A house router: many model names at many engines. What names a model goes to an engine of it, and what the settings name is listed."""

import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest

from gateway.harness import Asked, FakeEngine, Script, Stand, run
from gateway.stand import core_settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

ANTHROPIC = {"anthropic-version": "2023-06-01"}


def engine_of(*listed: str, status: int = 200) -> Script:
    """Answer light requests under the first name, and list these models."""

    async def script(asked: Asked) -> None:
        if asked.line.startswith(b"GET /v1/models"):
            data = [{"id": name, "object": "model", "owned_by": "them"} for name in listed]
            asked.reply(json.dumps({"object": "list", "data": data}).encode(), status)
        else:
            asked.reply(json.dumps({"input_tokens": 1, "by": listed[0]}).encode())

    return script


@contextlib.asynccontextmanager
async def house(
    *engines: tuple[Script, tuple[str, ...]], only: frozenset[str] | None = None
) -> AsyncIterator[Stand]:
    """Serve a gate before engines that answer so and are named for these models."""
    fakes = [FakeEngine(script) for script, _models in engines]
    for fake in fakes:
        await fake.start()
    names = [f"e{number}" for number in range(len(engines))]
    addresses = tuple(
        EngineAddress(name, "127.0.0.1", fake.port, health=None, models=models)
        for name, fake, (_script, models) in zip(names, fakes, engines, strict=True)
    )
    gateway = Gateway(
        build_governor(core_settings(*names), time.monotonic()),
        GatewaySettings(addresses, port=0, door=DoorSettings(models=only)),
    )
    stand = Stand(gateway, fakes[0])
    await gateway.start()
    try:
        yield stand
    finally:
        await stand.close()
        for fake in fakes[1:]:
            await fake.stop()


LLAMA = engine_of("llama"), ("llama",)
CLAUDE = engine_of("claude-20260101"), ("claude",)
BOTH = frozenset({"llama", "claude"})


def counting(model: str, filling: str = "hi", *, model_last: bool = False) -> bytes:
    fields = [("model", model), ("messages", [{"role": "user", "content": filling}])]
    return json.dumps(dict(reversed(fields) if model_last else fields)).encode()


@pytest.mark.parametrize("path", [b"/v1/messages/count_tokens", b"/tokenize", b"/v1/responses/input_tokens"])
@pytest.mark.parametrize("model", ["llama", "claude"])
@pytest.mark.parametrize("filling", ["hi", "x" * 400_000])
@pytest.mark.parametrize("model_last", [True, False])
def test_tokens_are_counted_by_an_engine_of_the_model(
    path: bytes, model: str, filling: str, model_last: bool
) -> None:
    """All of them went to the first engine, whose tokenizer counts another number, or that knows no such model."""

    async def body() -> None:
        async with house(LLAMA, CLAUDE, only=BOTH) as stand:
            got = await stand.ask(counting(model, filling, model_last=model_last), path)
            assert got.status == 200
            assert got.json()["by"].startswith(model)

    run(body())


@pytest.mark.parametrize("path", [b"/v1/messages/count_tokens", b"/tokenize"])
def test_tokens_of_a_model_that_no_engine_has_are_counted_by_none(path: bytes) -> None:
    async def body() -> None:
        async with house(LLAMA, CLAUDE, only=BOTH) as stand:
            got = await stand.ask(counting("gpt"), path)
            assert (got.status, "no engine here answers for this model" in got.body.decode()) == (404, True)
            assert not stand.engine.asked
            assert (await stand.ask(b'{"prompt":"hi"}', path)).status == 200
            assert (await stand.ask(b"no JSON", path)).status == 200, "the engine complains"
            assert stand.gateway.door.ongoing == 0

    run(body())


def test_a_request_that_names_no_model_hears_that_it_must() -> None:
    async def body() -> None:
        async with house(LLAMA, CLAUDE, only=BOTH) as stand:
            got = await stand.ask(b'{"messages":[{"role":"user","content":"hi"}]}')
            assert (got.status, got.error["param"]) == (400, "model")
            assert got.error["message"] == "model: the field is required; /v1/models lists the names"

    run(body())


def test_tokens_of_a_model_that_is_named_nowhere_are_counted_where_any_name_is_taken() -> None:
    async def body() -> None:
        async with house(LLAMA, (engine_of("anything"), ())) as stand:
            got = await stand.ask(counting("gpt"), b"/tokenize")
            assert (got.status, got.json()["by"]) == (200, "anything")

    run(body())


def test_models_that_the_settings_name_are_listed_whatever_their_engines_list() -> None:
    """Providers leave aliases and deployments out; the gate said of a model that it served that no engine answers for it."""

    async def body() -> None:
        async with house(
            LLAMA, CLAUDE, (engine_of("dead", status=401), ("gpt",)), only=BOTH | {"gpt"}
        ) as stand:
            told = (await stand.ask(b"", b"/v1/models", b"GET")).json()
            assert {model["id"]: model["owned_by"] for model in told["data"]} == {
                "llama": "them",
                "claude": "millgate",
                "gpt": "millgate",
            }
            for name in ("llama", "claude", "gpt"):
                got = await stand.ask(b"", b"/v1/models/" + name.encode(), b"GET")
                assert (got.status, got.json()["id"]) == (200, name)
            assert (await stand.ask(b"", b"/v1/models/other", b"GET")).status == 404

    run(body())


def test_a_thousand_models_of_two_accounts_that_list_none_are_one_page() -> None:
    async def body() -> None:
        mute = engine_of("x", status=400)
        names = [tuple(f"m{number}" for number in range(first, first + 600)) for first in (0, 400)]
        async with house((mute, names[0]), (mute, names[1])) as stand:
            told = (await stand.ask(b"", b"/v1/models", b"GET")).json()
            assert [model["id"] for model in told["data"]] == [f"m{number}" for number in range(1000)]
            client = await stand.client()
            client.ask(b"", b"/v1/models/m7", b"GET", ANTHROPIC)
            shown = (await client.answer()).json()
            assert (shown["type"], shown["id"], shown["display_name"]) == ("model", "m7", "m7")

    run(body())
