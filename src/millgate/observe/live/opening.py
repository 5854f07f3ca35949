"""The live page's parts put together around one core and what watches it."""

import time
from collections.abc import Callable

from millgate.core.decisions import Explanation
from millgate.core.events import Arrived
from millgate.core.snapshot import Snapshot
from millgate.observe.eyes import Eyes
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.painter import Painter, Sources
from millgate.observe.live.trail import Trail


def open_feed(
    snapshot: Callable[[], Snapshot], explain: Callable[[Arrived], Explanation], eyes: Eyes
) -> LiveFeed:
    """Return the feed; from now on the eyes' beats look after its history, so that it knows what came before."""
    trail = Trail(snapshot)
    eyes.witness.on_beat.append(trail.look)
    return LiveFeed(Painter(Sources(snapshot, explain, eyes, trail, time.time)))
