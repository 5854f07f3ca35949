"""What the admin door shows, handed in as small callables: it knows no gateway, no driver and no governor."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millgate.core.decisions import Explanation
from millgate.core.events import Arrived
from millgate.core.snapshot import Snapshot
from millgate.observe.door import ClusterSnapshot
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.page_model import PageModel
from millgate.observe.traffic_records import TrafficSnapshot
from millgate.runtime.health import EngineStanding
from millgate.servers.admin.why import Find


class Readiness(NamedTuple):
    """Whether a load balancer should send work here, and why: `detail` names each part and its state."""

    ready: bool
    detail: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Views:
    """Everything that may be asked; each callable is quick, changes nothing and, but for metrics, is synchronous.

    `explain` answers what the arrival would be told now; `render_metrics` takes an Accept header and returns the
    text and its content type. `live` feeds the page; None shows no page. `traffic` are the distributions; None has none.
    `standings` are the engines' health, by name, as `/api/state` shows it beside the core's numbers.
    `why` tells what was decided about the attempts under an id; None keeps no decisions. `cluster` is this replica's lease, None
    where no limits are shared.
    """

    snapshot: Callable[[], Snapshot]
    explain: Callable[[Arrived], Explanation]
    ready: Callable[[], Readiness]
    render_metrics: Callable[[str], Awaitable[tuple[bytes, str]]]
    live: LiveFeed[PageModel] | None = None
    traffic: Callable[[], TrafficSnapshot] | None = None
    standings: Callable[[], Sequence[EngineStanding]] = tuple
    why: Find | None = None
    cluster: Callable[[], ClusterSnapshot | None] = lambda: None
