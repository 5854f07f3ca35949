"""The live page's parts put together around one core."""

import time
from collections.abc import Callable

from headgate.core.decisions import Explanation
from headgate.core.events import Arrived
from headgate.core.snapshot import Snapshot
from headgate.observe.hooks import Observer
from headgate.observe.live.feed import LiveFeed
from headgate.observe.live.painter import Painter, Sources
from headgate.observe.live.recent import RecentDecisions
from headgate.observe.live.trail import Trail


def open_feed(
    snapshot: Callable[[], Snapshot], explain: Callable[[Arrived], Explanation]
) -> tuple[LiveFeed, tuple[Observer, ...]]:
    """Return the feed, and the observers that must see every step for it to know what came before."""
    recent, trail = RecentDecisions(), Trail(snapshot)
    return LiveFeed(Painter(Sources(snapshot, explain, recent, trail, time.time))), (recent, trail)
