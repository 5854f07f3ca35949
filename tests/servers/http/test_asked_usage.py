"""Which engines are asked for the usage of streams: what is believed of them, for how long, and what clients see of it."""

import json

import pytest

from gateway.harness import DONE, ROLE, Asked, answer_whole, chat, event, run, standing, usage_event
from millgate.servers.http.asked_usage import FORGOTTEN_S, AskedUsage

COMPLAINT = b'{"error":{"message":"unknown field stream_options"}}'


def test_an_engine_that_has_refused_is_asked_again_after_some_minutes() -> None:
    now = 1000.0
    asked = AskedUsage(lambda: now)
    assert asked.may_ask("a")
    asked.note("a", takes=False)
    assert not asked.may_ask("a")
    assert asked.may_ask("b")
    now += FORGOTTEN_S
    assert asked.may_ask("a")
    asked.note("a", takes=True)
    assert asked.may_ask("a")


def test_a_complaint_is_ours_unless_an_engine_that_takes_them_may_repeat_its_client() -> None:
    asked = AskedUsage(lambda: 0.0)
    quoted = b'{"messages":[{"role":"user","content":"what are stream_options?"}]}'
    assert asked.may_be_meant("a", COMPLAINT, quoted)
    asked.note("a", takes=True)
    assert not asked.may_be_meant("a", COMPLAINT, quoted)
    assert asked.may_be_meant("a", COMPLAINT, b"{}")
    assert not asked.may_be_meant("a", b'{"error":{}}', b"{}")


def test_engines_that_come_and_go_take_no_memory() -> None:
    asked = AskedUsage(lambda: 0.0)
    for number in range(10_000):
        asked.note(f"10.0.0.{number}", takes=True)
    assert len(asked._refused_until) <= 4096


def quoting(asked: Asked) -> bytes | None:
    """Return what vLLM says of a `top_k` that is no number: an error with its input."""
    given = json.loads(asked.body).get("top_k", 1)
    said = f"[{{'loc': ('body', 'top_k'), 'input': {given!r}}}]"
    return None if isinstance(given, int) else json.dumps({"error": {"message": said}}).encode()


async def judge(asked: Asked) -> None:
    """Answer as an engine that knows `stream_options` and repeats what it cannot read."""
    said = quoting(asked)
    if said is None:
        await answer_whole(asked)
    else:
        asked.reply(said, 400)


ODD = chat(stream=True, top_k="no stream_options here")


def test_a_client_that_has_an_error_name_stream_options_ends_no_ones_usage() -> None:
    """One such request took the usage from every stream of the engine until a restart."""

    async def body() -> None:
        async with standing(judge) as stand:
            assert (await stand.ask(chat(stream=True))).status == 200
            got = await stand.ask(ODD)
            assert got.status == 400
            assert len(stand.engine.asked) == 2, (
                "an engine that takes stream_options complains of the client's words"
            )
            assert (await stand.ask(chat(stream=True))).status == 200
            assert [b'"include_usage"' in asked.body for asked in stand.engine.asked] == [True] * 3
            await stand.settle()
            assert stand.outcomes() == {"good": 2, "bad_request": 1}
            assert stand.snapshot.good_output_tokens == 4

    run(body())


def test_nor_where_the_engine_has_not_answered_anything_yet() -> None:
    """The second sending shows what was meant: refused as before, it was not the usage."""

    async def body() -> None:
        async with standing(judge) as stand:
            got = await stand.ask(ODD)
            assert (got.status, "top_k" in got.error["message"]) == (400, True)
            assert [b'"include_usage"' in asked.body for asked in stand.engine.asked] == [True, False]
            assert (await stand.ask(chat(stream=True))).status == 200
            assert b'"include_usage"' in stand.engine.asked[2].body

    run(body())


def test_an_engine_that_is_replaced_by_one_without_stream_options_is_found_out() -> None:
    is_old = False

    async def script(asked: Asked) -> None:
        if is_old and b'"include_usage"' in asked.body:
            asked.reply(b'{"error":{"message":"unknown field stream_options"}}', 400)
        else:
            await answer_whole(asked)

    async def body() -> None:
        nonlocal is_old
        async with standing(script) as stand:
            assert (await stand.ask(chat(stream=True))).status == 200
            is_old = True
            for _ in range(2):
                assert (await stand.ask(chat(stream=True))).status == 200
            assert [b'"include_usage"' in asked.body for asked in stand.engine.asked] == [
                True,
                True,
                False,
                False,
            ]

    run(body())


@pytest.mark.parametrize("null", [b',"usage":null', b', "usage": null'])
@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_the_nulls_that_come_with_a_usage_that_only_we_asked_for_are_taken_out_too(
    null: bytes, at_once: int
) -> None:
    """Mistral's SDK for JavaScript refuses a whole stream for one: to it no usage and a usage that is null are not the same."""
    said = event('a,"usage":null')
    events = [ROLE, event("a"), event("b"), said, event("c"), event("d"), event(finish="stop")]
    nulls = [piece[:-3] + null + piece[-3:] for piece in events]

    async def script(asked: Asked) -> None:
        asked.open_stream()
        pieces = [*nulls, usage_event(3, 4), DONE]
        asked.send(*[b"".join(pieces[at : at + at_once]) for at in range(0, len(pieces), at_once)])
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.body, got.whole) == (b"".join([*events, DONE]), True)
            got = await stand.ask(chat(stream=True, stream_options={"include_usage": True}))
            assert got.body == b"".join([*nulls, usage_event(3, 4), DONE])

    run(body())
