"""Clients do not tell engines whose cache to use: refused with the field's name, over HTTP and at the line door."""

import json
from typing import Any

import pytest

from gateway.harness import Asked, Stand, answer, chat, run, standing
from millgate.runtime.callers import CallerSettings
from millgate.runtime.long_bodies import LONG_BYTES
from servers.line.stand import upload
from servers.line.talk import line_standing

LONG = "x" * (LONG_BYTES + 1)
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_host": "10.0.0.1",
    "remote_block_ids": [[1]],
}
CHOOSING = {
    "x-data-parallel-rank": "1",
    "x-prefiller-host-port": "10.0.0.1:8000",
    "X-Prefiller-Url": "http://10.0.0.1:8000",
    "x-encoder-hosts-ports": "10.0.0.1:8000",
    "x-data-parallel-host-port": "10.0.0.1:8000",
    "x-kv-cache-source-host-port": "10.0.0.1:8000",
    "x_kv_cache_source_host_port": "10.0.0.1:8000",
}


def trust(stand: Stand) -> None:
    """Make this machine's own address a trusted peer."""
    stand.gateway.door.entry.replace(CallerSettings(trusted_peers=("127.0.0.0/8",)))


@pytest.mark.parametrize("content", ["hi", LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "field", ["kv_transfer_params", "bootstrap_host", "bootstrap_room", "session_params"]
)
def test_a_client_is_refused_with_the_name_of_the_field_and_no_engine_hears_of_it(
    content: str, field: str
) -> None:
    async def test() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(content, **{field: PARAMS}))
            assert got.status == 400
            assert (got.error["param"], got.error["code"]) == (field, "reserved_field")
            assert field in got.error["message"]
            assert "listen.trusted_peers" in got.error["message"]
            assert got.headers["x-should-retry"] == "false"
            assert stand.engine.asked == []
            assert stand.snapshot.lanes[0].arrived == 0
            assert (await stand.ask(chat(content))).status == 200
            assert stand.gateway.server.budget.held_bytes == 0

    run(test())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/completions", {"prompt": "hi"}),
        (b"/v1/responses", {"input": "hi"}),
        (b"/v1/embeddings", {"input": "hi"}),
    ],
)
def test_so_it_is_on_other_paths(path: bytes, body: dict[str, Any]) -> None:
    async def test() -> None:
        async with standing() as stand:
            got = await stand.ask(
                json.dumps({"model": "m", **body, "kv_transfer_params": PARAMS}).encode(), path
            )
            assert (got.status, got.error["param"]) == (400, "kv_transfer_params")
            assert stand.engine.asked == []

    run(test())


def test_anthropics_clients_read_it_in_their_own_words() -> None:
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}],
        "session_params": {},
    }

    async def test() -> None:
        async with standing() as stand:
            got = await stand.ask(json.dumps(body).encode(), b"/v1/messages")
            assert (got.status, got.json()["type"]) == (400, "error")
            assert got.error["type"] == "invalid_request_error"
            assert "session_params" in got.error["message"]

    run(test())


@pytest.mark.parametrize("content", ["hi", LONG], ids=["short", "long"])
def test_a_trusted_peer_may_send_them_and_they_pass_unchanged(content: str) -> None:
    async def test() -> None:
        async with standing() as stand:
            trust(stand)
            body = chat(content, kv_transfer_params=PARAMS, bootstrap_room=7)
            assert (await stand.ask(body)).status == 200
            assert (await stand.engine.next()).body == body

    run(test())


def test_trust_ends_with_the_reload_that_takes_it_back() -> None:
    async def test() -> None:
        async with standing() as stand:
            trust(stand)
            client = await stand.client()
            for expected in (200, 200, 400):
                client.ask(chat(bootstrap_room=7))
                assert (await client.answer()).status == expected
                if len(stand.engine.asked) == 2:
                    stand.gateway.door.entry.replace(CallerSettings())

    run(test())


def test_headers_by_which_engines_choose_a_cache_or_a_rank_stay_here_and_are_counted() -> None:
    async def test() -> None:
        async with standing() as stand:
            client = await stand.client()
            client.ask(chat(), headers={**CHOOSING, "x-session-id": "s1"})
            assert (await client.answer()).status == 200
            headers = {name.lower(): value for name, value in (await stand.engine.next()).headers.items()}
            assert not headers.keys() & {name.lower() for name in CHOOSING}
            assert headers["x-session-id"] == "s1"
            assert stand.gateway.door.steered == len(CHOOSING) - 1

    run(test())


def test_a_trusted_peers_choice_passes() -> None:
    async def test() -> None:
        async with standing() as stand:
            trust(stand)
            client = await stand.client()
            client.ask(chat(), headers={"x-prefiller-host-port": "10.0.0.1:8000"})
            assert (await client.answer()).status == 200
            assert (await stand.engine.next()).headers["x-prefiller-host-port"] == "10.0.0.1:8000"
            assert stand.gateway.door.steered == 0

    run(test())


def test_an_address_in_a_request_id_does_not_reach_an_engine() -> None:
    given = "___prefill_addr_10.0.0.1:8000___decode_addr_10.0.0.2:8000_1"

    async def test() -> None:
        async with standing() as stand:
            got = await stand.ask(chat(), x_request_id=given)
            sent = (await stand.engine.next()).headers["x-request-id"]
            assert "addr" not in sent
            assert got.headers["x-request-id"] == sent

    run(test())


async def _line_answer(payload: bytes, script: Any = None) -> tuple[str, str, int]:
    """Return how a job ended: its error code and message, and how many requests the engine had."""

    async def answers(asked: Asked) -> None:
        asked.reply(answer())

    async with line_standing(script or answers) as stand:
        peer = await stand.peer()
        peer.send(upload(payload, "J", 65_536))
        reply = await peer.final()
        return reply.error, reply.message, len(stand.engine.asked)


@pytest.mark.parametrize("content", ["hi", LONG], ids=["short", "long"])
def test_a_line_job_is_refused_with_the_name_of_the_field(content: str) -> None:
    async def test() -> None:
        code, message, asked = await _line_answer(chat(content, kv_transfer_params=PARAMS))
        assert (code, asked) == ("backend_error", 0)
        assert "kv_transfer_params" in message

    run(test())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_line_job_cannot_hide_them_in_another_encoding_of_json(encoding: str) -> None:
    """Python's decoder, which most engines have, reads these too."""

    async def test() -> None:
        payload = chat(kv_transfer_params=PARAMS).decode().encode(encoding)
        assert json.loads(payload)["kv_transfer_params"] == PARAMS
        code, message, asked = await _line_answer(payload)
        assert (code, asked) == ("backend_error", 0)
        assert "JSON" in message

    run(test())


@pytest.mark.parametrize("payload", [bytes(range(256)), b"\0\0\0\xff" * 9, b"\xff\xfe\0\xd8 plain", b"plain"])
def test_a_payload_that_is_no_json_is_still_the_engines_to_judge(payload: bytes) -> None:
    async def test() -> None:
        _, _, asked = await _line_answer(payload)
        assert asked == 1

    run(test())
