"""The page's door: a strict policy, a bounded number of watchers, and a cookie for those who have the token."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from millgate.observe.live.feed import MOST_WATCHERS, LiveFeed
from millgate.runtime.guesses import MOST_FAILURES
from millgate.servers.admin.guard import COOKIE, LASTS_S, Sessions
from millgate.servers.admin.page import read_assets
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.source import Readiness, Views
from observe.live.rooms import Room
from servers.admin.test_admin import Answer, Client


async def _no_metrics(_accept: str) -> tuple[bytes, str]:
    return b"", "text/plain"


def serving(
    script: Callable[[Client, LiveFeed[Any]], Awaitable[None]], room: Room | None = None, **options: Any
) -> None:
    """Start a door with a page over a room, run the script, and stop the door."""

    async def play() -> None:
        of = room or Room()
        feed = LiveFeed(of.page_model)
        views = Views(
            lambda: of.core.snapshot(of.now),
            lambda arrival: of.core.explain(arrival, of.now),
            lambda: Readiness(ready=True, detail={}),
            _no_metrics,
            feed,
        )
        door = AdminServer(views, "127.0.0.1", 0, **options)
        await door.start()
        try:
            await script(Client(door.port), feed)
        finally:
            await door.stop()

    uvloop.run(play())


async def watch(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open the feed and read until its first picture."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b"event: picture\ndata: ")
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - nothing tells when a peer has been noticed
            await asyncio.sleep(0.01)


def test_the_page_allows_itself_nothing_from_elsewhere() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        for path in ("/", "/page/main.js", "/page/style.css"):
            answer = await client.get(path)
            policy = answer.headers["content-security-policy"]

            assert answer.status == 200
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"

    serving(script)


def test_the_page_names_no_other_host_and_no_absolute_path() -> None:
    """Then it works behind any prefix, and nothing is ever asked of anybody else."""
    for name, content in read_assets().items():
        text = content.decode()
        leading = re.findall(
            r"""(?:src|href|action|url)\s*[=(]\s*["']?/\S*|(?:fetch|EventSource|assign)\(["'`]/\S*""", text
        )
        foreign = [each for each in re.findall(r"https?://[^\s'\"]+", text) if "www.w3.org" not in each]

        assert (name, leading, foreign) == (name, [], [])
        assert "style=" not in text
        assert "innerHTML" not in text


def test_every_file_that_the_page_names_is_served() -> None:
    assets = read_assets()
    named = {
        name
        for content in assets.values()
        for name in re.findall(r'(?:page|\.)/(\w+\.(?:js|css))"', content.decode())
    }

    assert named == {name for name in assets if not name.endswith(".html")}


@pytest.mark.parametrize("path", ["/page/../feed.py", "/page/%2e%2e%2ffeed.py", "/page/none.js", "/page/"])
def test_nothing_but_the_pages_files_is_served(path: str) -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        assert (await client.get(path)).status == 404

    serving(script)


def test_decisions_are_asked_for_with_a_filter() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, max_wait_s=0.0)

    async def script(client: Client, _: LiveFeed[Any]) -> None:
        assert [row["attempt"] for row in (await client.get("/api/decisions")).json] == [2, 1]
        assert [row["attempt"] for row in (await client.get("/api/decisions?word=saturated")).json] == [2]
        assert [row["engine"] for row in (await client.get("/api/decisions?attempt=1&most=1")).json] == [
            "gpu"
        ]

    serving(script, room)


@pytest.mark.parametrize(
    ("query", "field"),
    [("most=0", "most"), ("most=999", "most"), ("attempt=x", "attempt"), ("atempt=1", "atempt")],
)
def test_a_bad_filter_is_refused_naming_its_field(query: str, field: str) -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        answer = await client.get(f"/api/decisions?{query}")

        assert answer.status == 400
        assert field in answer.json["error"]["message"]

    serving(script)


def test_a_watcher_who_leaves_is_counted_out() -> None:
    async def script(client: Client, feed: LiveFeed[Any]) -> None:
        _, writer = await watch(client)
        assert feed.watchers == 1
        writer.close()
        await until(lambda: not feed.watchers)

    serving(script)


def test_who_asks_for_the_head_of_the_feed_takes_no_place_of_a_watcher() -> None:
    async def script(client: Client, feed: LiveFeed[Any]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"HEAD /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        await until(lambda: not feed.watchers)
        writer.close()

    serving(script)


def test_beyond_the_bound_a_watcher_gets_503_and_the_door_still_answers_others() -> None:
    async def script(client: Client, feed: LiveFeed[Any]) -> None:
        watchers = await asyncio.gather(*(watch(client) for _ in range(MOST_WATCHERS)))
        refused = await client.get("/api/live")

        assert (refused.status, refused.json["error"]["code"]) == (503, "too_many_watchers")
        assert refused.headers["retry-after"] == "5"
        assert (await client.get("/api/state")).status == 200
        for _, writer in watchers:
            writer.close()

    serving(script)


def test_a_watcher_who_reads_nothing_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(client: Client, feed: LiveFeed[Any]) -> None:
        monkeypatch.setattr(feed.page_model, "history", lambda: "x" * 8_000_000)  # more than sockets hold
        _, stalled = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
        stalled.write(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: feed.watchers == 1)
        monkeypatch.undo()
        reader, writer = await watch(client)
        for _ in range(3):
            await reader.readuntil(b"event: picture\ndata: ")

        assert feed.watchers == 2
        stalled.transport.abort()
        writer.close()

    serving(script)


def test_stopping_ends_the_streams_at_once_and_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    ended: list[bytes] = []

    async def script(client: Client, _: LiveFeed[Any]) -> None:
        reader, writer = await watch(client)

        async def read_on() -> None:
            ended.append((await reader.read())[-5:])
            writer.close()

        asyncio.ensure_future(read_on())  # noqa: RUF006 - ends with the door

    start = time.monotonic()
    serving(script)

    assert time.monotonic() - start < 10.0
    assert capfd.readouterr() == ("", "")


# ---- with a token


async def sign_in(client: Client, token: str, **headers: str) -> Answer:
    form = {"content-type": "application/x-www-form-urlencoded", **headers}
    return await client.ask("POST", "/login", body=f"token={token}".encode(), headers=form)


def test_without_a_token_the_page_leads_to_the_form_and_nothing_is_told() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        page = await client.get("/")
        form = await client.get("/login")

        assert (page.status, page.headers["location"]) == (303, "login")
        assert form.status == 200
        assert b'type="password"' in form.body
        for path in ("/api/live", "/api/decisions", "/api/state", "/page/main.js", "/nowhere"):
            assert (await client.get(path)).status == 401

    serving(script, token="hush")


def test_the_right_token_becomes_a_cookie_that_no_script_and_no_other_site_can_use() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        answer = await sign_in(client, "hush")
        cookie = answer.headers["set-cookie"]

        assert (answer.status, answer.headers["location"]) == (303, "./")
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert "hush" not in cookie
        assert "path=" not in cookie.lower()
        assert "secure" not in cookie.lower()
        session = cookie.split(";")[0]
        for path in ("/", "/api/state", "/api/decisions"):
            assert (await client.get(path, cookie=session)).status == 200

    serving(script, token="hush")


def test_over_tls_the_cookie_stays_there() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        answer = await sign_in(client, "hush", origin="https://localhost")

        assert "; Secure" in answer.headers["set-cookie"]

    serving(script, token="hush")


@pytest.mark.parametrize("token", ["", "hus", "hush2", "x" * 9000, "%00", "hush%26a=b"])
def test_a_wrong_token_is_told_so_and_gets_nothing(token: str) -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        answer = await sign_in(client, token)

        assert answer.status == 401
        assert b"not the token" in answer.body
        assert "set-cookie" not in answer.headers

    serving(script, token="hush")


def test_another_site_cannot_sign_a_browser_in() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        assert (await sign_in(client, "hush", origin="https://evil.example")).status == 403

    serving(script, token="hush")


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        "x",
        f"{COOKIE}=",
        f"{COOKIE}=1.2",
        f"{COOKIE}=9999999999.",
        f"{COOKIE}=\x80.\x81",
        f'{COOKIE}="a',
        "a=b; " * 200,
    ],
)
def test_a_made_up_cookie_opens_nothing(cookie: str) -> None:
    assert not Sessions("hush", lambda: 1000.0).is_open(cookie)


def test_a_session_lasts_a_shift_and_no_longer_than_its_process() -> None:
    now = [1000.5]
    sessions, other = Sessions("hush", lambda: now[0]), Sessions("hush", lambda: now[0])
    cookie = f"{COOKIE}={sessions.open()}"

    assert sessions.is_open(cookie)
    assert sessions.is_open(f"a=b; {cookie}; c=d")
    assert not other.is_open(cookie)
    now[0] += LASTS_S + 1.0
    assert not sessions.is_open(cookie)


def test_a_clock_that_is_set_back_signs_no_operator_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it had been set back the page asked for the token again, and looked at none of a peer with failures."""
    real, ahead_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)

    async def script(client: Client, _: LiveFeed[Any]) -> None:
        nonlocal ahead_s
        session = (await sign_in(client, "hush")).headers["set-cookie"].split(";")[0]
        ahead_s = -3600.0
        assert (await client.get("/api/state", cookie=session)).status == 200

    serving(script, token="hush")


def test_a_wrong_authorization_is_not_saved_by_a_good_cookie() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        session = (await sign_in(client, "hush")).headers["set-cookie"].split(";")[0]

        assert (await client.get("/api/state", cookie=session, authorization="Bearer no")).status == 401

    serving(script, token="hush")


def test_a_door_without_a_token_needs_no_form() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        answer = await client.get("/login")

        assert (answer.status, answer.headers["location"]) == (303, "./")

    serving(script)


def test_whoever_guesses_the_token_is_stopped_while_a_session_goes_on() -> None:
    async def script(client: Client, _: LiveFeed[Any]) -> None:
        session = (await sign_in(client, "hush")).headers["set-cookie"].split(";")[0]
        for guess in range(MOST_FAILURES // 2):
            assert (await sign_in(client, f"guess-{guess}")).status == 401
            assert (await client.get("/api/state", authorization=f"Bearer {guess}")).status == 401
        stopped = await sign_in(client, "hush")  # the right one says nothing either
        assert (stopped.status, "set-cookie" in stopped.headers) == (429, False)
        assert 0 < int(stopped.headers["retry-after"]) <= 60
        assert (await client.get("/api/state", authorization="Bearer hush")).status == 429
        assert (await client.get("/api/state", cookie=session)).status == 200

    serving(script, token="hush")
