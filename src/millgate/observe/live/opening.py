"""The live page's parts put together around one core and what watches it."""

import socket
import time
from collections.abc import Callable

from millgate.core.decisions import Explanation
from millgate.core.events import Arrived
from millgate.core.snapshot import Snapshot
from millgate.observe.live.decision_history import DecisionHistory
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.page_model import PageModel, Sources
from millgate.observe.observers import Observers


def open_feed(
    snapshot: Callable[[], Snapshot],
    explain: Callable[[Arrived], Explanation],
    observers: Observers,
    cluster: Callable[[], str] = str,
    failing: Callable[[], str] = str,
) -> LiveFeed[PageModel]:
    """Return the feed; from now on the observers' beats look after its history, so that it knows what came before.

    `cluster` says what is wrong with the cluster, `failing` which engines fail requests; nothing where all is well.
    """
    history = DecisionHistory(snapshot)
    observers.accounting.on_beat.append(history.look)
    host = socket.gethostname()
    return LiveFeed(
        PageModel(Sources(snapshot, explain, observers, history, time.time, host, cluster, failing))
    )
