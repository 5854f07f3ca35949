"""The live page's parts put together around one core and what watches it."""

import time
from collections.abc import Callable

from headgate.core.decisions import Explanation
from headgate.core.events import Arrived
from headgate.core.snapshot import Snapshot
from headgate.observe.eyes import Eyes
from headgate.observe.live.feed import LiveFeed
from headgate.observe.live.painter import Painter, Sources
from headgate.observe.live.trail import Trail


def open_feed(
    snapshot: Callable[[], Snapshot], explain: Callable[[Arrived], Explanation], eyes: Eyes
) -> LiveFeed:
    """Return the feed; from now on the eyes' beats look after its history, so that it knows what came before."""
    trail = Trail(snapshot)
    eyes.witness.on_beat.append(trail.look)
    return LiveFeed(Painter(Sources(snapshot, explain, eyes, trail, time.time)))
