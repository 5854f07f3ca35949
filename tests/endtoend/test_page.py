"""The live page in a real browser before a real gateway: it says what the gate says, to everybody, and to nobody else.

Pictures of what was seen are left in `$MILLGATE_ARTIFACTS`, or in the test's own folder.
"""

import asyncio
import json
import os
import re
import threading
import time
import urllib.request
from asyncio import run_coroutine_threadsafe
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import uvloop

from endtoend.browser import MISSING, Browser, browser
from endtoend.served import served
from millgate.observe.live.page_model import open_feed
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.source import Views
from millgate.testing.fault_proxy import FaultProxy, Faults

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

STILL_WITHIN_S = 10.0
TAB, ENTER = "\ue004", "\ue007"
WIDE, PHONE = (1440, 1100), (360, 780)
NARROWER = (PHONE, (768, 1024), (1280, 800))

CUT_OFF = """
    return [...document.querySelectorAll(".card, .scroll, #decisions td")].filter(each => each.scrollWidth > each.clientWidth).map(each => each.className);
"""
LONGEST_WORDS = """
    document.querySelector("[name=pause]").checked = true;
    for (const row of document.querySelectorAll("#decisions tbody tr")) {
        row.children[1].textContent = "12000000203";  // of the twelfth worker
        row.children[4].textContent = "vllm-0.vllm-headless.inference.svc.cluster.local:8000";
    }
"""


# The field has the keyboard only some time after the page has come: what is typed before is lost.
TOKEN_IS_ASKED_FOR = "return document.hasFocus() && document.activeElement instanceof HTMLInputElement"

REMEMBER_FIRST_OVERLOAD = """
    const banner = document.getElementById("banner-text");
    new MutationObserver(() => {
        if (banner.textContent.startsWith("Overloaded")) window.firstOverload ??= banner.textContent;
    }).observe(banner, {childList: true, characterData: true, subtree: true});
"""


class Stage(NamedTuple):
    """A gate with its page, and what is asked of it: so many questions at once, with answers so long."""

    url: str
    ask: Callable[[int, int], Future[None]]


@contextmanager
def staged(token: str | None = None, **gate: Any) -> Iterator[Stage]:
    """Serve a gateway before the embedded engine, with its page, on a loop and a thread of their own."""
    ready: Future[Stage] = Future()
    done = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with paged(token, **gate) as (url, port):
            ready.set_result(Stage(url, lambda *size: run_coroutine_threadsafe(ask_many(port, *size), loop)))
            await loop.run_in_executor(None, done.wait)

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(lambda: uvloop.run(serve()))
        serving.add_done_callback(partial(_pass_on, ready))
        try:
            yield ready.result()
        finally:
            done.set()
        serving.result()


def _pass_on(ready: Future[Stage], served_until_now: Future[None]) -> None:
    """Tell who waits for the stage what kept it from being there."""
    if not ready.done():
        ready.set_exception(served_until_now.exception())


async def _no_metrics(_accept: str) -> tuple[bytes, str]:
    return b"", ""


@asynccontextmanager
async def paged(token: str | None, **gate: Any) -> AsyncIterator[tuple[str, int]]:
    """Serve both doors and give the page's address and the gateway's port."""
    async with served(**gate) as serving:
        driver = serving.gateway.driver
        observers = serving.gateway.observers
        feed = open_feed(driver.snapshot, driver.explain, observers)
        views = Views(
            driver.snapshot, driver.explain, serving.gateway.ready, _no_metrics, feed, observers.traffic
        )
        door = AdminServer(views, "127.0.0.1", 0, token=token)
        await door.start()
        try:
            yield f"http://127.0.0.1:{door.port}/", serving.gateway.port
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


def in_words(gap_s: float) -> str:
    """Return a gap as the page writes it, whatever the embedded engine made of it on this machine."""
    if gap_s < 0.0005:
        return "0 s"
    return f"{max(1, round(1000 * gap_s))} ms" if gap_s < 0.0995 else f"{gap_s:.1f} s"


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
    folder = Path(os.environ.get("MILLGATE_ARTIFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def shown(window: Browser, url: str) -> None:
    """Open the page and wait for its first picture."""
    window.open(url)
    window.until("return document.getElementById('banner').dataset.level !== 'unknown'")


def text(window: Browser, selector: str) -> str:
    return str(window.run("return document.querySelector(arguments[0]).textContent", selector))


def stays(window: Browser, column: int) -> dict[str, str]:
    """Return a column of Little's law: of the first lane's whole stay, and of its parts."""
    return {
        text(window, f"#little tbody tr:nth-child({line}) th"): text(
            window, f"#little tbody tr:nth-child({line}) td:nth-child({column})"
        )
        for line in (1, 2, 3)
    }


def state(url: str) -> Any:
    with urllib.request.urlopen(url + "api/state", timeout=5) as answer:
        return json.loads(answer.read())


def test_the_page_shows_the_numbers_of_the_state_and_asks_nobody_else(
    fresh: Browser, artifacts: Path
) -> None:
    with staged(engines=2, max_inflight=4) as stage:
        stage.ask(12, 10).result()
        shown(fresh, stage.url)
        fresh.until("return document.querySelectorAll('#engines tbody tr').length === 2")
        now = state(stage.url)
        lane = now["lanes"][0]

        assert text(fresh, "#banner-text") == "Calm"
        assert text(fresh, "#lanes tbody tr td:nth-child(2)") == str(lane["queued"])
        assert text(fresh, "#lanes tbody tr td:nth-child(5)") == f"{lane['running']} of 8"
        for index, engine in enumerate(now["engines"], 1):
            load = text(fresh, f"#engines tbody tr:nth-child({index}) td:nth-child(2)")
            assert load == f"{engine['running']} of {engine['limit']}"
            pace = text(fresh, f"#engines tbody tr:nth-child({index}) td:nth-child(4)")
            assert pace.startswith(f"{in_words(engine['lately']['gap_mean_s'])} ± "), pace
            cached = text(fresh, f"#engines tbody tr:nth-child({index}) td:nth-child(6)")
            assert (cached, engine["lately"]["prefix_hit_share"]) == ("unknown", None)
        assert stays(fresh, 4) == {
            "interactive": in_words(lane["little"]["whole"]["mean_stay_s"]),
            "in the queue": in_words(lane["little"]["queue"]["mean_stay_s"]),
            "on engines": in_words(lane["little"]["engine"]["mean_stay_s"]),
        }
        shown_good = fresh.run("return [...document.querySelectorAll('#decisions .good')].length")
        assert shown_good == lane["outcomes"]["good"] == 12
        assert fresh.console() == []
        assert all(asked.startswith(stage.url) for asked in fresh.requests())
        fresh.picture(artifacts / "page-calm-light.png")


def test_a_burst_is_on_the_page_within_two_seconds_in_every_dress(fresh: Browser, artifacts: Path) -> None:
    with staged(max_inflight=2, deadline_s=2.0) as stage:
        shown(fresh, stage.url)
        fresh.run(REMEMBER_FIRST_OVERLOAD)
        burst = stage.ask(80, 300)
        fresh.until("return window.firstOverload !== undefined")
        first = str(fresh.run("return window.firstOverload"))
        age = re.match(r"Overloaded since \d\d:\d\d:\d\d UTC \(([\d.]+) (m?s)\): ", first)

        # The gate's own clock: what the page says is so old when it says it for the first time.
        assert age is not None, first
        assert float(age[1]) < (2000 if age[2] == "ms" else 2), first
        assert re.search(r"[1-9]\d* % refused because it would have been late; ", first), first
        assert "it would have been late" in text(fresh, "#flow")
        fresh.until("return document.getElementById('said').textContent.startsWith('Overloaded')")
        for scheme in ("light", "dark"):
            fresh.prefer(prefers_color_scheme=scheme)
            fresh.picture(artifacts / f"page-overloaded-{scheme}.png")
        fresh.resize(*PHONE)
        fresh.until("return document.querySelector('#flow svg').viewBox.baseVal.width < 400")
        fresh.picture(artifacts / "page-overloaded-phone.png")
        assert fresh.run("return document.documentElement.scrollWidth") <= PHONE[0]
        assert fresh.console() == []
        burst.result()


def test_no_table_is_cut_off_on_a_phone_a_tablet_or_a_laptop(fresh: Browser, artifacts: Path) -> None:
    with staged(engines=3, max_inflight=4, deadline_s=2.0) as stage:
        shown(fresh, stage.url)
        fresh.run(REMEMBER_FIRST_OVERLOAD)
        burst = stage.ask(80, 300)
        fresh.until("return window.firstOverload !== undefined")
        fresh.until("return document.querySelector('#engines td:nth-child(4)').textContent.includes('±')")
        fresh.run(LONGEST_WORDS)
        cut = {}
        for width, height in NARROWER:
            fresh.resize(width, height)
            fresh.picture(artifacts / f"page-{width}.png", whole=True)
            cut[width] = fresh.run(CUT_OFF)

        assert cut == {width: [] for width, _ in NARROWER}
        burst.result()


def test_everything_can_be_reached_and_filtered_by_keyboard(fresh: Browser) -> None:
    with staged(max_inflight=2) as stage:
        stage.ask(6, 5).result()
        shown(fresh, stage.url)
        reached = []
        for _ in range(9):
            fresh.type(TAB)
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
        fresh.type("3")
        only = "[...document.querySelectorAll('#decisions tbody tr')].every(row => row.children[1].textContent === '3')"
        fresh.until(f"return document.querySelector('#decisions tbody tr') && {only}")
        fresh.run("document.querySelector('.skip').focus()")
        fresh.type(ENTER)
        fresh.until("return document.activeElement.id === 'main'")


def test_every_table_region_and_field_has_a_name_for_those_who_hear_the_page(fresh: Browser) -> None:
    with staged() as stage:
        shown(fresh, stage.url)
        tree = fresh.command("Accessibility.getFullAXTree")
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


def test_the_theme_is_chosen_by_hand_and_remembered(fresh: Browser) -> None:
    with staged() as stage:
        shown(fresh, stage.url)
        paper = "return getComputedStyle(document.body).backgroundColor"
        light = fresh.run(paper)
        for _ in range(2):
            fresh.run("document.getElementById('theme').click()")
        dark = fresh.run(paper)
        shown(fresh, stage.url)

        assert (fresh.run(paper), text(fresh, "#theme")) == (dark, "Theme: dark")
        assert dark != light


def test_whoever_wants_no_motion_sees_none(fresh: Browser) -> None:
    with staged() as stage:
        stage.ask(10, 5).result()
        offsets = "return [...document.querySelectorAll('.drops')].map(path => path.getAttribute('stroke-dashoffset')).join()"
        shown(fresh, stage.url)
        moving = fresh.run(offsets)
        fresh.until(f"return (() => {{ {offsets} }})() !== {json.dumps(moving)}")
        fresh.prefer(prefers_reduced_motion="reduce")
        by = time.monotonic() + STILL_WITHIN_S
        before, now = None, fresh.run(offsets)
        while now != before:  # what moves is never the same after so long
            assert time.monotonic() < by, "it still moves"
            time.sleep(0.3)
            before, now = now, fresh.run(offsets)


def test_colours_of_the_system_s_own_leave_bars_states_and_keys(fresh: Browser) -> None:
    """In high contrast the browser paints every background in one colour, and these say what they say by theirs alone."""
    with staged(max_inflight=2) as stage:
        stage.ask(2, 5).result()
        fresh.prefer(forced_colors="active")
        shown(fresh, stage.url)
        kept = fresh.run("""
            const adjusted = (mark, part) => getComputedStyle(document.querySelector(mark), part).forcedColorAdjust;
            return [adjusted(".bar .fill"), adjusted(".state"), adjusted(".plot .key", "::before"), adjusted("td")];
        """)
        assert kept == ["none", "none", "none", "auto"]


def proxy_before(stage: Stage, port: int = 0) -> FaultProxy:
    """Return a proxy, not started, that shows the page at this port; 0 takes any."""
    proxy = FaultProxy(urlsplit(stage.url).port or 0)
    proxy.port = port
    return proxy


def test_after_a_restart_of_the_gate_no_decision_stands_with_the_time_of_an_old_one(fresh: Browser) -> None:
    """A row stands under the number of its decision, which a new process counts from 1 again: an old row hid a new one."""
    with staged() as stage, proxy_before(stage) as proxy:
        shown(fresh, proxy.url + "/")
        stage.ask(3, 4).result()
        fresh.until("return document.querySelectorAll('#decisions time').length >= 6")
    fresh.until("return document.getElementById('fresh').dataset.state === 'lost'")
    began_at = time.time()
    with staged() as stage, proxy_before(stage, proxy.port):
        stage.ask(3, 4).result()
        fresh.until("return document.getElementById('fresh').dataset.state === 'live'")
        times = (
            "[...document.querySelectorAll('#decisions time')].map(each => Date.parse(each.dateTime) / 1000)"
        )
        fresh.until(f"return {times}.length >= 6")
        assert min(fresh.run(f"return {times}")) > began_at - 0.1


def test_a_connection_that_says_nothing_any_more_is_replaced(fresh: Browser) -> None:
    """A machine that slept, or a proxy, loses it without a word: the page waited on it for good."""
    with staged() as stage, proxy_before(stage) as proxy:
        shown(fresh, proxy.url + "/")
        proxy.to_client = Faults(blackhole=True)
        before = proxy.to_server_bytes
        fresh.run("const now = performance.now.bind(performance); performance.now = () => now() + 60000;")
        start = time.monotonic()
        while proxy.to_server_bytes == before:
            assert time.monotonic() - start < STILL_WITHIN_S
            time.sleep(0.05)


def test_a_token_is_asked_for_once_and_the_feed_runs_on_its_cookie(fresh: Browser) -> None:
    with staged(token="hush") as stage:
        fresh.open(stage.url)
        assert fresh.address == f"{stage.url}login"
        fresh.until(TOKEN_IS_ASKED_FOR)
        fresh.type("wrong" + ENTER)
        fresh.until(
            f"return document.querySelector('.complaint') !== null && (() => {{ {TOKEN_IS_ASKED_FOR} }})()"
        )
        fresh.type("hush" + ENTER)
        fresh.until("return document.getElementById('banner')?.dataset.level === 'calm'")

        assert fresh.address == stage.url
        assert fresh.run("return document.cookie") == ""
