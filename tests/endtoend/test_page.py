"""The live page in a real browser before a real gateway: it says what the gate says, to everybody, and to nobody else.

Pictures of what was seen are left in `$HEADGATE_ARTIFACTS`, or in the test's own folder.
"""

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from endtoend.browser import MISSING, Browser, browser
from endtoend.served import served
from headgate.observe.live.feed import LiveFeed
from headgate.observe.live.painter import Painter, Sources
from headgate.observe.live.recent import RecentDecisions
from headgate.observe.live.trail import Trail
from headgate.servers.admin.server import AdminServer
from headgate.servers.admin.views import Views

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TAB, ENTER = "\ue004", "\ue007"
WIDE, PHONE = (1440, 1100), (360, 780)


class Stage(NamedTuple):
    """A gate with its page, and what is asked of it."""

    url: str
    ask: Callable[[int, int], Awaitable[None]]


@asynccontextmanager
async def staged(token: str | None = None, **gate: Any) -> AsyncIterator[Stage]:
    """Serve a gateway before the embedded engine, with its page."""
    async with served(**gate) as serving:
        driver = serving.gateway.driver
        recent, trail = RecentDecisions(), Trail(driver.snapshot)
        driver.observers += [recent, trail]
        painter = Painter(Sources(driver.snapshot, driver.explain, recent, trail, time.time))
        views = Views(
            driver.snapshot, driver.explain, serving.gateway.ready, lambda _: (b"", ""), LiveFeed(painter)
        )
        door = AdminServer(views, "127.0.0.1", 0, token=token)
        await door.start()
        try:
            yield Stage(f"http://127.0.0.1:{door.port}/", partial(ask_many, serving.gateway.port))
        finally:
            await door.stop()


async def ask_many(port: int, requests: int, output_tokens: int) -> None:
    """Ask so many streamed questions at once and read every answer to its end."""
    await asyncio.gather(*(ask(port, output_tokens, number) for number in range(requests)))


async def ask(port: int, output_tokens: int, number: int) -> None:
    message = {"role": "user", "content": f"question {number}"}
    body = json.dumps({"model": "m", "stream": True, "max_tokens": output_tokens, "messages": [message]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}\r\n\r\n{body}".encode())
    await reader.read()
    writer.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests: to start one takes a second."""
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def fresh(window: Browser) -> Browser:
    """The browser as if it were new."""
    window.open("about:blank")
    window.resize(*WIDE)
    window.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    window.console()
    window.requests()
    return window


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Where pictures go."""
    folder = Path(os.environ.get("HEADGATE_ARTIFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def playing(script: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(script())  # type: ignore[arg-type] - an async function's awaitable is a coroutine


async def seen(window: Browser, script: str, within_s: float = 5.0) -> float:
    """Wait beside the loop until the page says that this is true; return the seconds."""
    return await asyncio.to_thread(window.until, f"return {script}", within_s)


async def shown(window: Browser, url: str) -> None:
    await asyncio.to_thread(window.open, url)
    await seen(window, "document.getElementById('banner').dataset.level !== 'unknown'")


def text(window: Browser, selector: str) -> str:
    return str(window.run("return document.querySelector(arguments[0]).textContent", selector))


def state(url: str) -> Any:
    with urllib.request.urlopen(url + "api/state", timeout=5) as answer:
        return json.loads(answer.read())


def test_the_page_shows_the_numbers_of_the_state_and_asks_nobody_else(
    fresh: Browser, artifacts: Path
) -> None:
    async def script() -> None:
        async with staged(engines=2, max_inflight=4) as stage:
            await stage.ask(12, 10)
            await shown(fresh, stage.url)
            await seen(fresh, "document.querySelectorAll('#engines tbody tr').length === 2")
            now = await asyncio.to_thread(state, stage.url)
            lane = now["lanes"][0]

            assert text(fresh, "#banner-text") == "Calm"
            assert text(fresh, "#lanes tbody tr td:nth-child(2)") == str(lane["held"])
            assert text(fresh, "#lanes tbody tr td:nth-child(5)") == f"{lane['running']} of 8"
            for index, engine in enumerate(now["engines"], 1):
                load = text(fresh, f"#engines tbody tr:nth-child({index}) td:nth-child(2)")
                assert load == f"{engine['running']} of {engine['limit']}"
            shown_good = fresh.run("return [...document.querySelectorAll('#decisions .good')].length")
            assert shown_good == lane["outcomes"]["good"] == 12
            assert fresh.console() == []
            assert all(asked.startswith(stage.url) for asked in fresh.requests())
            await asyncio.to_thread(fresh.picture, artifacts / "page-calm-light.png")

    playing(script)


def test_a_burst_is_on_the_page_within_two_seconds_in_every_dress(fresh: Browser, artifacts: Path) -> None:
    async def script() -> None:
        async with staged(max_inflight=2, deadline_s=2.0) as stage:
            await shown(fresh, stage.url)
            burst = asyncio.ensure_future(stage.ask(80, 300))
            took_s = await seen(fresh, "document.getElementById('banner').dataset.level === 'overloaded'")

            assert took_s < 2.0
            assert "refused as too_late; engines full" in text(fresh, "#banner-text")
            assert "since" in text(fresh, "#banner-text")
            assert "too_late" in text(fresh, "#flow")
            await seen(fresh, "document.getElementById('said').textContent.startsWith('Overloaded')")
            for scheme in ("light", "dark"):
                fresh.prefer(prefers_color_scheme=scheme)
                await asyncio.to_thread(fresh.picture, artifacts / f"page-overloaded-{scheme}.png")
            fresh.resize(*PHONE)
            await seen(fresh, "document.querySelector('#flow svg').viewBox.baseVal.width < 400")
            await asyncio.to_thread(fresh.picture, artifacts / "page-overloaded-phone.png")
            assert fresh.run("return document.documentElement.scrollWidth") <= PHONE[0]
            assert fresh.console() == []
            await burst

    playing(script)


def test_everything_can_be_reached_and_filtered_by_keyboard(fresh: Browser) -> None:
    async def script() -> None:
        async with staged(max_inflight=2) as stage:
            await stage.ask(6, 5)
            await shown(fresh, stage.url)
            reached = []
            for _ in range(9):
                await asyncio.to_thread(fresh.type, TAB)
                reached.append(
                    fresh.run(
                        "return document.activeElement.name || document.activeElement.id || document.activeElement.className || document.activeElement.textContent.trim()"
                    )
                )

            assert reached == [
                "skip",
                "theme",
                "word",
                "lane",
                "engine",
                "attempt",
                "Clear",
                "pause",
                "scroll",
            ]
            fresh.run("document.querySelector('[name=attempt]').focus()")
            await asyncio.to_thread(fresh.type, "3")
            only = "[...document.querySelectorAll('#decisions tbody tr')].every(row => row.children[1].textContent === '3')"
            await seen(fresh, f"document.querySelector('#decisions tbody tr') && {only}")
            fresh.run("document.querySelector('.skip').focus()")
            await asyncio.to_thread(fresh.type, ENTER)
            await seen(fresh, "document.activeElement.id === 'main'")

    playing(script)


def test_every_table_region_and_field_has_a_name_for_those_who_hear_the_page(fresh: Browser) -> None:
    async def script() -> None:
        async with staged() as stage:
            await shown(fresh, stage.url)
            tree = await asyncio.to_thread(fresh.command, "Accessibility.getFullAXTree")
            named = [
                (node["role"]["value"], node.get("name", {}).get("value", ""))
                for node in tree["nodes"]
                if not node.get("ignored")
            ]

            for role in ("region", "combobox", "textbox", "checkbox", "button", "columnheader", "rowheader"):
                names = [name for each, name in named if each == role]
                assert names, f"no {role}"
                assert all(names), f"a {role} has no name"
            assert ("status", "") in named or any(role == "status" for role, _ in named)
            assert sum(role == "heading" for role, _ in named) >= 7

    playing(script)


def test_the_theme_is_chosen_by_hand_and_remembered(fresh: Browser) -> None:
    async def script() -> None:
        async with staged() as stage:
            await shown(fresh, stage.url)
            paper = "return getComputedStyle(document.body).backgroundColor"
            light = fresh.run(paper)
            for _ in range(2):
                fresh.run("document.getElementById('theme').click()")
            dark = fresh.run(paper)
            await shown(fresh, stage.url)

            assert (fresh.run(paper), text(fresh, "#theme")) == (dark, "Theme: dark")
            assert dark != light

    playing(script)


def test_whoever_wants_no_motion_sees_none(fresh: Browser) -> None:
    async def script() -> None:
        async with staged() as stage:
            await stage.ask(10, 5)
            offsets = "return [...document.querySelectorAll('.drops')].map(path => path.getAttribute('stroke-dashoffset')).join()"
            await shown(fresh, stage.url)
            moving = fresh.run(offsets)
            await seen(fresh, f"(() => {{ {offsets} }})() !== {json.dumps(moving)}")
            fresh.prefer(prefers_reduced_motion="reduce")
            await asyncio.sleep(0.1)
            still = fresh.run(offsets)
            await asyncio.sleep(0.3)

            assert fresh.run(offsets) == still

    playing(script)


def test_a_token_is_asked_for_once_and_the_feed_runs_on_its_cookie(fresh: Browser) -> None:
    async def script() -> None:
        async with staged(token="hush") as stage:
            await asyncio.to_thread(fresh.open, stage.url)
            assert fresh.address == f"{stage.url}login"
            await asyncio.to_thread(fresh.type, "wrong" + ENTER)
            await seen(fresh, "document.querySelector('.complaint') !== null")
            await asyncio.to_thread(fresh.type, "hush" + ENTER)
            await seen(fresh, "document.getElementById('banner')?.dataset.level === 'calm'")

            assert fresh.address == stage.url
            assert fresh.run("return document.cookie") == ""

    playing(script)
