"""Where the admin door's answers come from: the views of this process, or the workers of a gate that has several."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from millgate.core.decisions import Explanation
from millgate.core.events import Arrived
from millgate.core.snapshot import Snapshot
from millgate.observe.door import ClusterSnapshot
from millgate.observe.explanation import ExplainedAttempt
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.page_model import PageModel
from millgate.observe.live.recent import DecisionRow
from millgate.observe.traffic_records import TrafficSnapshot
from millgate.runtime.health import EngineStanding
from millgate.servers.admin.answers import DecisionQuery, ExplainQuery, plain, plain_explanation

Find = Callable[[str], Sequence[ExplainedAttempt]]
"""Returns the attempts under a request id or an attempt's number, newest first."""


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


class SourceSilentError(Exception):
    """What could answer is not there just now; the text says what."""


class AdminSource(Protocol):
    """Everything that the admin door may be asked; nothing of it changes anything. Raises SourceSilentError.

    `feed` feeds the page, None shows no page; `keeps_decisions` says whether `why` may find something.
    """

    @property
    def feed(self) -> LiveFeed[Any] | None:
        """The feed of the page."""

    @property
    def keeps_decisions(self) -> bool:
        """Whether decisions are kept."""

    async def readiness(self) -> Readiness:
        """Return whether work should come here."""

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type, by an Accept header."""

    async def state(self) -> dict[str, Any]:
        """Return the state as mappings."""

    async def explanation(self, query: ExplainQuery) -> dict[str, Any]:
        """Return what such an arrival would be told now."""

    async def attempts(self, wanted: str) -> Sequence[ExplainedAttempt]:
        """Return the attempts under a request id or an attempt's number, newest first."""

    async def decisions(self, query: DecisionQuery) -> Sequence[DecisionRow]:
        """Return the kept decisions that a query wants, newest first."""

    async def open_feed(self) -> None:
        """Make ready what a new watcher of the page is shown first."""


class LocalSource:
    """Answers from the views of this process."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.feed = views.live
        self.keeps_decisions = views.why is not None

    async def readiness(self) -> Readiness:
        """Return whether work should come here."""
        return self._views.ready()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type, by an Accept header."""
        return await self._views.render_metrics(accept)

    async def state(self) -> dict[str, Any]:
        """Return the whole snapshot of the core as it is now, and the page's sentence about it."""
        views = self._views
        state: dict[str, Any] = plain(views.snapshot())
        if (live := views.live) is not None:
            state |= {"host": live.page_model.host, "verdict": plain(live.page_model.verdict())}
        if views.traffic is not None:
            add_traffic(state, views.traffic())
        if (cluster := views.cluster()) is not None:
            state["cluster"] = plain(cluster)
        add_standings(state, views.standings())
        return state

    async def explanation(self, query: ExplainQuery) -> dict[str, Any]:
        """Return what such an arrival would be told now."""
        return plain_explanation(self._views.explain(query.arrival()))

    async def attempts(self, wanted: str) -> Sequence[ExplainedAttempt]:
        """Return the attempts under a request id or an attempt's number, newest first."""
        return [] if self._views.why is None else self._views.why(wanted)

    async def decisions(self, query: DecisionQuery) -> Sequence[DecisionRow]:
        """Return the kept decisions that a query wants, newest first."""
        if self.feed is None:
            return ()
        page_model = self.feed.page_model
        for _ in page_model.recall():
            await asyncio.sleep(0)
        return page_model.decisions(query.most, query.filter())

    async def open_feed(self) -> None:
        """Nothing is to be made ready: pictures are painted here."""


def add_traffic(state: dict[str, Any], traffic: TrafficSnapshot) -> None:
    """Put what was seen lately beside the core's numbers, and what each tenant was served."""
    for rows, seen in ((state["lanes"], traffic.lanes), (state["engines"], traffic.engines)):
        lately = {each.name: plain(each.lately) for each in seen}
        for row in rows:
            row["lately"] = lately.get(row["name"])
    state["served"] = plain(traffic.tenants)
    state["models"] = plain(traffic.models)


def add_standings(state: dict[str, Any], standings: Sequence[EngineStanding]) -> None:
    """Put the health of engines beside the core's numbers."""
    health = {each.name: each for each in standings}
    for engine in state["engines"]:
        if (standing := health.get(engine["name"])) is not None:
            engine["health"] = {
                "stance": standing.stance,
                "since_s": round(state["now"] - standing.since, 3),
                "why": standing.why or standing.failing,
            }
