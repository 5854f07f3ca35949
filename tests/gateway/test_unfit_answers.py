"""Engines that say 200 to everything and answer nothing: behind a proxy that asks for a login, or with an empty body."""

import asyncio

import pytest

from gateway import paired_engines, two_engines
from gateway.harness import DONE, Asked, Script, answer_whole, chat, run, until
from gateway.test_coalescing import ask as ask_embedding, scene as coalescing
from gateway.test_fleet import plant
from gateway.test_two_engines import asking, reads, writes
from millgate.gateway import fleet
from millgate.runtime.health import EngineStanding, HealthSettings, Stance


@pytest.fixture(autouse=True)
def by_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no page: only requests tell."""
    monkeypatch.setattr(
        fleet, "HEALTH", HealthSettings(None, poll_s=0.05, failures_within_s=60.0, shortest_probation_s=0.2)
    )


def _say(body: bytes, status: int = 200, kind: str = "application/json") -> Script:
    async def script(asked: Asked) -> None:
        asked.reply(body, status, kind=kind)

    return script


def _stream(*pieces: bytes) -> Script:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*pieces)
        asked.end_stream()

    return script


@pytest.mark.parametrize(
    ("script", "status", "stream"),
    [
        pytest.param(_say(b""), 200, False, id="empty"),
        pytest.param(_say(b"\x00 garbage {"), 200, False, id="garbage"),
        pytest.param(_say(b"<html>", 200, "text/html"), 200, True, id="page-of-a-proxy"),
        pytest.param(_say(b"", 302), 302, False, id="redirect"),
        pytest.param(_stream(), 200, True, id="stream-of-nothing"),
        pytest.param(_stream(DONE), 200, True, id="stream-of-its-end"),
    ],
)
def test_an_engine_whose_good_answers_are_none_is_left_alone_and_says_why(
    script: Script, status: int, stream: bool
) -> None:
    """It fails at once, has room at once, and would get most of what comes: behind a proxy that asks for a login all of it."""

    async def body() -> None:
        async with plant(2) as stand:
            told: list[EngineStanding] = []
            stand.gateway.fleet.on_turn = told.append
            stand.engines[0].script = script
            while stand.up[0]:
                assert (await stand.ask(chat(stream=stream))).status in {200, 502}
            assert len(stand.engines[0].asked) == 3
            assert [(await stand.ask(chat(stream=stream))).status for _ in range(5)] == [200] * 5
            assert [each.why for each in told] == [
                f"3 requests in a row failed: status {status}, and not what was asked for"
            ]
            stand.engines[0].script = answer_whole
            while stand.stances[0] is not Stance.UP:
                await stand.ask()
                await asyncio.sleep(0.01)
            await stand.settled()

    run(body())


_PAGE = _say(b"<html>", 200, "text/html")


def _words(requests: int) -> str:
    return f"{requests} requests in a row failed: status 200, and not what was asked for"


@pytest.mark.parametrize(
    ("scripts", "status", "failing"),
    [
        pytest.param((_PAGE, writes), 200, "reads", id="reads"),
        pytest.param((reads, _PAGE), 502, "writes", id="writes"),
    ],
)
def test_of_two_engines_the_one_that_answers_nothing_is_named(
    scripts: tuple[Script, Script], status: int, failing: str
) -> None:
    async def body() -> None:
        async with two_engines.scripted(*scripts) as (two, _first, _second):
            for _ in range(3):
                assert (await asking(two, two_engines.ask())).status == status
            said = {each.name: each.failing or each.why for each in two.gateway.fleet.standings}
            assert said == {"reads": "", "writes": "", failing: _words(3)}

    run(body())


def test_of_two_engines_that_meet_in_a_room_the_one_that_answers_nothing_is_named() -> None:
    async def body() -> None:
        async with paired_engines.scripted(reads=paired_engines.waits, writes=_PAGE) as (two, _engines):
            for _ in range(3):
                assert (await asking(two, two_engines.ask())).status == 502
            said = {each.name: each.failing or each.why for each in two.gateway.fleet.standings}
            assert said["writes"] == _words(3)
            await two.idle()

    run(body())


def test_a_call_that_several_requests_share_counts_once() -> None:
    go = asyncio.Event()

    async def page(asked: Asked) -> None:
        await go.wait()
        await _PAGE(asked)

    async def body() -> None:
        async with coalescing(page) as stand:
            tasks = [ask_embedding(stand, text) for text in ("one", "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks += [ask_embedding(stand, text) for text in ("three", "four", "five")]
            await until(lambda: stand.gateway.door.ongoing == 5)
            go.set()
            assert {(await task).status for task in tasks} == {502}
            (standing,) = stand.gateway.fleet.standings
            assert len(stand.engine.asked) == 6, "three had one call together, and then one each"
            assert standing.failing == _words(6)

    run(body())
