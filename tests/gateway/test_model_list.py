"""The models of several engines are one list, and a model is told of by an engine that has it."""

import json
from typing import Any

import pytest

from gateway.harness import Asked, FakeEngine, Script, Stand, answer_whole, run
from gateway.stand import core_settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

MODELS = b"/v1/models"


def listing(*names: str, status: int = 200, raw: bytes | None = None, **more: Any) -> Script:
    async def script(asked: Asked) -> None:
        data = [{"id": name, "object": "model", "root": names[0]} for name in names]
        asked.reply(raw or json.dumps({"object": "list", "data": data, **more}).encode(), status)

    return script


async def answer(
    path: bytes,
    *scripts: Script,
    api_key: str | None = None,
    named: tuple[str, ...] = (),
    named_apart: tuple[tuple[str, ...], ...] = (),
    **door: Any,
) -> tuple[int, Any]:
    """Ask a gate before engines that answer so, with an `api_key` of its own and with the models that are `named` for all, or for each."""
    engines = [FakeEngine(script) for script in scripts]
    for engine in engines:
        await engine.start()
    names = [f"e{number}" for number in range(len(engines))]
    addresses = tuple(
        EngineAddress(name, "127.0.0.1", engine.port, health=None, api_key=api_key, models=models)
        for name, engine, models in zip(names, engines, named_apart or (named,) * len(names), strict=True)
    )
    settings = GatewaySettings(addresses, port=0, door=DoorSettings(**door))
    stand = Stand(Gateway(build_governor(core_settings(*names), 0.0), settings), engines[0])
    await stand.gateway.start()
    try:
        got = await stand.ask(b"", path, b"GET")
        assert stand.gateway.door.ongoing == 0
        return got.status, json.loads(got.body)
    finally:
        await stand.close()
        for engine in engines[1:]:
            await engine.stop()


def ids(told: Any) -> list[str]:
    return [model["id"] for model in told["data"]]


def test_models_of_all_engines_are_told_once_each() -> None:
    async def test() -> None:
        status, told = await answer(MODELS, listing("a", "b"), listing("b", "c"))
        assert (status, ids(told), told["object"]) == (200, ["a", "b", "c"], "list")
        assert told["data"][1]["root"] == "a"

    run(test())


@pytest.mark.parametrize(
    "broken",
    [
        listing("x", status=500),
        listing(raw=b"[" * 5000),
        listing(raw=b'{"data":7}'),
        listing(raw=b'{"data":[7,{"id":1}]}'),
        listing(raw=b" " * 1_100_000),
    ],
)
def test_an_engine_that_tells_nonsense_is_left_out(broken: Script) -> None:
    async def test() -> None:
        status, told = await answer(MODELS, broken, listing("a"))
        assert (status, ids(told)) == (200, ["a"])

    run(test())


def test_a_list_that_no_engine_gives_is_a_failure() -> None:
    async def test() -> None:
        status, told = await answer(MODELS, listing("a", status=500), listing("b", status=404))
        assert status == 502
        assert "error" in told

    run(test())


def test_a_wrong_key_of_the_client_is_told_by_the_engines_that_refuse_it() -> None:
    """A frontend that checks a connection has to show which of key and address is wrong."""

    async def test() -> None:
        refusal = b'{"error":{"message":"Incorrect API key provided"}}'
        refusing = listing(status=401, raw=refusal)
        for path in (MODELS, MODELS + b"/a"):
            status, told = await answer(path, refusing, listing("a", status=500))
            assert (status, told) == (401, json.loads(refusal))
        status, told = await answer(MODELS, refusing, listing("a"))
        assert (status, ids(told)) == (200, ["a"])
        status, _ = await answer(MODELS, refusing, listing("a", status=500), api_key="ours")
        assert status == 502

    run(test())


def test_one_engine_need_not_know_a_page_for_one_model() -> None:
    """vLLM lists its models and has no page for each of them, which SDKs ask for."""

    async def only_the_list(asked: Asked) -> None:
        await listing("a", "b", status=200 if MODELS + b" " in asked.line else 404)(asked)

    async def test() -> None:
        status, told = await answer(MODELS + b"/b", only_the_list)
        assert (status, told["id"]) == (200, "b")
        status, _ = await answer(MODELS + b"/c", only_the_list)
        assert status == 404

    run(test())


def test_a_provider_is_asked_for_a_model_that_it_does_not_list() -> None:
    """Anthropic knows aliases, and lists twenty models at a time."""

    async def knows_an_alias(asked: Asked) -> None:
        if MODELS + b"/latest" in asked.line:
            asked.reply(b'{"id":"model-20261101"}')
        else:
            await listing("model-20261101", status=404 if MODELS + b"/" in asked.line else 200)(asked)

    async def test() -> None:
        assert await answer(MODELS + b"/latest", knows_an_alias) == (200, {"id": "model-20261101"})
        assert (await answer(MODELS + b"/none", knows_an_alias))[0] == 404
        status, told = await answer(MODELS + b"/latest", knows_an_alias, named=("other",))
        assert (status, told["error"]["code"]) == (404, "model_not_found")

    run(test())


def test_one_engine_is_listed_with_the_models_that_the_settings_name() -> None:
    async def test() -> None:
        status, told = await answer(MODELS, listing("a"), named=("a", "alias"))
        assert (status, ids(told)) == (200, ["a", "alias"])

    run(test())


def test_one_model_is_told_by_the_engine_that_has_it_and_an_unknown_one_is_404() -> None:
    async def test() -> None:
        engines = listing("a"), listing("meta-llama/Llama-3.1-8B", "c")
        status, told = await answer(MODELS + b"/meta-llama%2FLlama-3.1-8B", *engines)
        assert (status, told["id"]) == (200, "meta-llama/Llama-3.1-8B")
        status, told = await answer(MODELS + b"/d", *engines)
        assert (status, told["error"]["code"]) == (404, "model_not_found")

    run(test())


def test_where_the_gate_answers_for_some_models_only_those_are_listed() -> None:
    async def test() -> None:
        _, told = await answer(MODELS, listing("a", "b"), listing("c"), models=frozenset({"b", "c"}))
        assert ids(told) == ["b", "c"]

    run(test())


def test_an_engine_lists_no_model_that_it_is_not_asked_for() -> None:
    """A provider lists all that it has: those that the settings name for another engine, or for none, were 404 when they were asked for."""

    async def test() -> None:
        scripts = listing("gpt-4o", "o9", "llama"), listing("llama", "own")
        status, told = await answer(MODELS, *scripts, named_apart=(("gpt-4o", "alias"), ()))
        assert (status, ids(told)) == (200, ["gpt-4o", "llama", "own", "alias"])
        assert told["data"][1]["root"] == "llama", "as the engine tells of it that has it"
        status, _told = await answer(MODELS + b"/o9", *scripts, named_apart=(("gpt-4o",), ()))
        assert status == 404
        status, told = await answer(MODELS, *scripts, named=("gpt-4o",))
        assert ids(told) == ["gpt-4o", "o9", "llama", "own"], (
            "where all have the same names others are asked for, too"
        )

    run(test())


def test_a_list_that_does_not_come_shuts_no_engine() -> None:
    """A page of models that is slow, or broken: frontends ask for it again and again, and the engine answers requests."""

    async def test() -> None:
        engines = [FakeEngine(only_requests), FakeEngine(listing("b"))]
        for engine in engines:
            await engine.start()
        addresses = tuple(
            EngineAddress(f"e{number}", "127.0.0.1", engine.port, health=None)
            for number, engine in enumerate(engines)
        )
        settings = GatewaySettings(addresses, port=0)
        stand = Stand(Gateway(build_governor(core_settings("e0", "e1"), 0.0), settings), engines[0])
        await stand.gateway.start()
        try:
            for _ in range(5):
                assert ids((await stand.ask(b"", MODELS, b"GET")).json()) == ["b"]
            assert len(engines[0].asked) == 5
            assert all(engine.up for engine in stand.snapshot.engines)
        finally:
            await stand.close()
            await engines[1].stop()

    async def only_requests(asked: Asked) -> None:
        if b"/v1/models" in asked.line:
            asked.reply(b'{"error":{"message":"no list","code":null}}', 500)
        else:
            await answer_whole(asked)

    run(test())


def test_a_page_in_anthropic_s_form_names_its_first_and_last() -> None:
    async def test() -> None:
        first = listing("a", first_id="a", last_id="a", has_more=False)
        second = listing("b", first_id="b", last_id="b", has_more=True)
        _, told = await answer(MODELS, first, second)
        assert (told["first_id"], told["last_id"], told["has_more"]) == ("a", "b", True)

    run(test())
