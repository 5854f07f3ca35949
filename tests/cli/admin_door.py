"""A real admin door over a real core, in a thread of its own: what `why` and `top` ask."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millgate.core.events import Event
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.observe.live.page_model import open_feed
from millgate.observe.observers import Observers, ObserverSettings
from millgate.observe.prometheus import Exposition
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.source import Readiness, Views
from millgate.wiring.governor import build_governor

LANE: Final = "interactive"


class Door:
    """A core with one stream, what watches it, and the address of its admin door."""

    def __init__(self) -> None:
        settings = Settings((LaneSettings(LANE, max_queue=0),), (EngineSettings("gpu-0", 1),))
        self.core = build_governor(settings, 0.0)
        self.observers = Observers(ObserverSettings(), boot="b007", first_lane=LANE)
        self.now = 0.0
        self.url = ""
        self.live = open_feed(
            lambda: self.core.snapshot(self.now),
            lambda arrival: self.core.explain(arrival, self.now),
            self.observers,
        )

    def post(self, now: float, *events: Event) -> None:
        """Let this happen; nobody asks at the same time."""
        self.now = now
        for event in events:
            self.observers.accounting.on_step(event, self.core.handle(event, now), now)

    @property
    def views(self) -> Views:
        """What the door shows."""
        return Views(
            snapshot=lambda: self.core.snapshot(self.now),
            explain=lambda arrival: self.core.explain(arrival, self.now),
            ready=lambda: Readiness(ready=True, detail={}),
            render_metrics=Exposition(lambda: self.core.snapshot(self.now)).render_in_pieces,
            traffic=self.observers.traffic,
            why=self.observers.why,
            live=self.live,
        )


@contextmanager
def admin_door(token: str | None = None) -> Iterator[Door]:
    """Serve an admin door until the block ends."""
    door, ready = Door(), threading.Event()
    ending: asyncio.Event
    loop: asyncio.AbstractEventLoop

    async def serve() -> None:
        nonlocal ending, loop
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        server = AdminServer(door.views, "127.0.0.1", 0, token=token)
        await server.start()
        door.url = f"http://127.0.0.1:{server.port}"
        ready.set()
        await ending.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10.0)
    try:
        yield door
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10.0)
