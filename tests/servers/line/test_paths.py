"""A payload is read as a request to the path that it is posted to, and refused for what the HTTP door refuses there."""

import json
from typing import Any

import pytest

from gateway.harness import Asked, run, until
from millgate.cli.compose import gateway_settings
from millgate.config.load import load_config
from millgate.config.overrides import from_assignment
from millgate.config.problems import ConfigError
from millgate.dialects import READERS
from millgate.dialects.line import LineReply, Status
from servers.line.stand import upload
from servers.line.talk import LineStand, line_standing

TURNS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": TURNS},
    "/v1/chat/completions?api-version=1": {"model": "m", "messages": TURNS},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": TURNS},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}


async def send(stand: LineStand, body: dict[str, Any]) -> LineReply:
    peer = await stand.peer()
    peer.send(upload(json.dumps(body).encode(), "J", 4096))
    return await peer.final()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_host", "bootstrap_room"])
def test_a_reserved_field_reaches_no_engine_on_any_path(path: str, field: str) -> None:
    async def body() -> None:
        async with line_standing(path=path) as stand:
            reply = await send(stand, BODIES[path] | {field: {"remote_host": "192.0.2.1"}})
            assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
            assert reply.message.startswith(f"{field}: the gate alone")
            assert not stand.engine.asked
            assert (await send(stand, BODIES[path])).status is Status.DONE

    run(body())


@pytest.mark.parametrize(
    "more", [{"previous_response_id": "resp_theirs"}, {"conversation": {"id": "conv_theirs"}}]
)
def test_no_job_goes_on_from_an_answer_that_an_engine_keeps(more: dict[str, Any]) -> None:
    """The engine would give it whatever tenant's answer has this id."""

    async def body() -> None:
        async with line_standing(path="/v1/responses") as stand:
            reply = await send(stand, BODIES["/v1/responses"] | more)
            assert (reply.status, reply.need) == (Status.ABORT, "backend_error")
            assert reply.message.startswith("previous_response_id or conversation: the line door keeps no")
            assert not stand.engine.asked

    run(body())


def test_the_usage_of_an_answer_is_read_in_the_language_of_the_path() -> None:
    """Unread, a stored response of two tokens counted as the 256 that are expected of any answer."""

    async def script(asked: Asked) -> None:
        usage = {"input_tokens": 5, "output_tokens": 2}
        asked.reply(json.dumps({"id": "resp_1", "status": "completed", "usage": usage}).encode())

    async def body() -> None:
        async with line_standing(script, path="/v1/responses") as stand:
            assert (await send(stand, BODIES["/v1/responses"])).status is Status.DONE
            assert stand.snapshot.good_output_tokens == 2

    run(body())


def test_inv_2_a_job_of_several_inputs_takes_as_many_streams() -> None:
    running = []

    async def body() -> None:
        async def script(asked: Asked) -> None:
            running.append(stand.snapshot.engines[0].running)
            asked.reply(b'{"object": "list", "data": []}')

        async with line_standing(script, max_inflight=4, path="/v1/embeddings") as stand:
            assert (await send(stand, {"model": "m", "input": ["a", "b", "c"]})).status is Status.DONE
            await until(lambda: running == [3])

    run(body())


def test_a_job_for_a_model_of_no_engine_is_refused_for_good() -> None:
    """It was yielded, to come back again and again."""

    async def body() -> None:
        async with line_standing(models=frozenset({"m"})) as stand:
            chat = BODIES["/v1/chat/completions"]
            reply = await send(stand, chat | {"model": "nope"})
            assert (reply.status, reply.message) == (Status.ABORT, "no engine here answers for this model")
            assert not stand.engine.asked
            assert (await send(stand, chat)).status is Status.DONE

    run(body())


def settings_with(path: str) -> Any:
    flags = ["engines.0.url=http://127.0.0.1:1", f"line.path={path}"]
    return gateway_settings(load_config(None, {}, [from_assignment(flag) for flag in flags]))


@pytest.mark.parametrize("path", ["/v1/nope", "/", "/tokenize", "/v1/models", "/v1/audio/transcriptions"])
def test_a_path_whose_payloads_cannot_be_read_is_no_setting(path: str) -> None:
    with pytest.raises(
        ConfigError, match=r"line\.path: allowed: /classify, .*/v1/chat/completions, "
    ) as raised:
        settings_with(path)
    assert all(known.decode() in str(raised.value) for known in READERS)


@pytest.mark.parametrize("path", [*sorted(BODIES), "/v1/audio/speech"])
def test_a_path_with_a_reader_is(path: str) -> None:
    assert settings_with(path).line.door.path == path
