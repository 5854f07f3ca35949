"""One picture for everybody who watches; whoever is slow misses frames, and nobody watching costs nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest

from millgate.observe.live.feed import FRAME_EVERY_S, MOST_WATCHERS, LiveFeed, TooManyWatchersError
from millgate.observe.live.page_model import PageModel
from millgate.observe.live.picture import Picture
from observe.live.rooms import Room


class CountingPainter(PageModel):
    """Counts what it paints."""

    painted = 0

    def paint(self) -> Picture:
        self.painted += 1
        return super().paint()


def playing(script: Callable[[LiveFeed[Any], CountingPainter], Awaitable[None]]) -> None:
    async def play() -> None:
        other = Room().page_model
        page_model = CountingPainter(**{each.name: getattr(other, each.name) for each in fields(other)})
        await script(LiveFeed(page_model), page_model)

    asyncio.run(play())


def read(frame: bytes) -> tuple[str, Any]:
    event, data, *rest = frame.decode().split("\n")
    assert rest == ["", ""]
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_a_watcher_gets_the_history_and_then_pictures() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        feed.join()
        frames = feed.frames()
        names = [read(await anext(frames))[0] for _ in range(3)]
        feed.leave()

        assert names == ["history", "picture", "picture"]

    playing(script)


def test_all_watchers_get_the_same_bytes_painted_once() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        streams = []
        for _ in range(20):
            feed.join()
            streams.append(feed.frames())
        for _ in range(2):
            await asyncio.gather(*(anext(stream) for stream in streams))
        third = await asyncio.gather(*(anext(stream) for stream in streams))

        assert all(frame is third[0] for frame in third)
        assert page_model.painted == 2

    playing(script)


def test_a_watcher_that_stalls_misses_frames_and_then_sees_the_present() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        feed.join()
        frames = feed.frames()
        await anext(frames)
        first = await anext(frames)
        for _ in range(5):
            feed._beat()
        waiting = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0)
        feed._beat()

        assert await waiting is feed._frame
        assert await waiting is not first
        feed.close()

    playing(script)


def test_nobody_watching_paints_nothing() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        feed.join()
        feed.join()
        feed.leave()
        feed.leave()

        assert feed._timer is None
        await asyncio.sleep(2 * FRAME_EVERY_S)
        assert page_model.painted == 1

    playing(script)


def test_no_more_watch_than_may() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        for _ in range(MOST_WATCHERS):
            feed.join()
        with pytest.raises(TooManyWatchersError):
            feed.join()
        feed.leave()
        feed.join()
        feed.close()

    playing(script)


def test_closing_ends_every_stream() -> None:
    async def script(feed: LiveFeed[Any], page_model: CountingPainter) -> None:
        feed.join()
        frames = feed.frames()
        await anext(frames)
        await anext(frames)
        last = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0)
        feed.close()

        with pytest.raises(StopAsyncIteration):
            await last
        assert feed._timer is None

    playing(script)
