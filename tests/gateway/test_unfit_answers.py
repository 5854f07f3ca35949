"""Engines that say 200 to everything and answer nothing: behind a proxy that asks for a login, or with an empty body."""

import asyncio

import pytest

from gateway.harness import Asked, Script, answer_whole, chat, run
from gateway.test_fleet import plant
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


async def _no_end(asked: Asked) -> None:
    asked.open_stream()
    asked.end_stream()


@pytest.mark.parametrize(
    ("script", "status", "stream"),
    [
        pytest.param(_say(b""), 200, False, id="empty"),
        pytest.param(_say(b"\x00 garbage {"), 200, False, id="garbage"),
        pytest.param(_say(b"<html>", 200, "text/html"), 200, True, id="page-of-a-proxy"),
        pytest.param(_say(b"", 302), 302, False, id="redirect"),
        pytest.param(_no_end, 200, True, id="stream-of-nothing"),
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
