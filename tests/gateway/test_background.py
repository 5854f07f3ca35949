"""Work that goes on after its answer would be outside the cap: it is refused at every door, and never counted as an answer."""

import json
from typing import Any

import pytest

from gateway.harness import Asked, run, standing
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.line import LineSettings
from servers.line.stand import upload
from servers.line.talk import line_standing

RESPONSES = b"/v1/responses"
USAGE = {"input_tokens": 5, "output_tokens": 7}


def ask(content: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": content, **fields}).encode()


def kept(status: str, usage: Any = None, **fields: Any) -> bytes:
    return json.dumps({"id": "resp_1", "status": status, "output": [], "usage": usage, **fields}).encode()


@pytest.mark.parametrize("content", ["hi", "x" * (LONG_BYTES + 1)], ids=["short", "long"])
@pytest.mark.parametrize("more", [{}, {"stream": True}, {"store": False}])
def test_inv_2_work_in_the_background_is_refused_by_name_and_no_engine_hears_of_it(
    content: str, more: dict[str, Any]
) -> None:
    async def test() -> None:
        async with standing() as stand:
            got = await stand.ask(ask(content, background=True, **more), RESPONSES)
            assert (got.status, got.error["param"]) == (400, "background")
            assert "cap" in got.error["message"]
            assert got.headers["x-should-retry"] == "false"
            assert stand.engine.asked == []
            assert stand.lane.arrived == 0

    run(test())


def test_inv_2_the_line_door_refuses_it_too() -> None:
    async def test() -> None:
        async with line_standing(door=LineSettings(path=RESPONSES.decode())) as stand:
            peer = await stand.peer()
            peer.send(upload(ask(background=True), "J", 64))
            reply = await peer.final()
            assert (reply.need, "background" in reply.message) == ("backend_error", True)
            assert stand.engine.asked == []

    run(test())


@pytest.mark.parametrize("said", [{}, {"background": False}, {"background": None}])
def test_what_is_done_when_its_answer_comes_passes_unchanged(said: dict[str, Any]) -> None:
    async def script(asked: Asked) -> None:
        asked.reply(kept("completed", USAGE))

    async def test() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(ask(**said), RESPONSES)).status == 200
            assert (await stand.engine.next()).body == ask(**said)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}
            assert stand.snapshot.good_output_tokens == 7

    run(test())


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_an_answer_that_says_that_the_work_goes_on_is_neither_good_nor_learned_from(status: str) -> None:
    """Its tokens were invented, and the engine's speed learned from them."""

    async def script(asked: Asked) -> None:
        asked.reply(kept(status))

    async def test() -> None:
        async with standing(script) as stand:
            got = await stand.ask(ask(), RESPONSES)
            assert (got.status, got.error["code"]) == (502, "upstream_aborted")
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}
            assert stand.snapshot.good_output_tokens == 0

    run(test())


def test_the_same_at_the_line_door() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(kept("queued"))

    async def test() -> None:
        async with line_standing(script, door=LineSettings(path=RESPONSES.decode())) as stand:
            peer = await stand.peer()
            peer.send(upload(ask(), "J", 64))
            assert (await peer.final()).need == "backend_error"
            await stand.settle()

    run(test())


@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled"])
def test_other_ends_are_the_clients_to_read(status: str) -> None:
    """Their words may stand in what a response echoes: only its own status counts."""
    whole = kept(status, USAGE, metadata={"status": "queued", "state": "in_progress"})

    async def script(asked: Asked) -> None:
        asked.reply(whole)

    async def test() -> None:
        async with standing(script) as stand:
            got = await stand.ask(ask(), RESPONSES)
            assert (got.status, got.body) == (200, whole)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(test())


def test_a_kept_answer_that_is_still_made_can_be_asked_for() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(kept("in_progress" if asked.line.startswith(b"GET") else "completed", USAGE))

    async def test() -> None:
        async with standing(script) as stand:
            assert (await stand.ask(ask(), RESPONSES)).status == 200
            for query in (b"", b"?stream=true"):
                got = await stand.ask(b"", RESPONSES + b"/resp_1" + query, b"GET")
                assert (got.status, got.body) == (200, kept("in_progress", USAGE))

    run(test())
