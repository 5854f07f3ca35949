"""Every tenant gets the same service: the virtual token counter of Sheng et al. (VTC, OSDI'24) over any order.

Each tenant has a line of its own, kept in the inner order, and a counter of the tokens that it was given:
(prompt + 2 x output) / weight. Among tenants with waiting work the smallest counter goes first. The *predicted* answer is
charged at the start (their variant with predicted length) and settled at the end. Charged only as tokens come out, a tenant
would get all the streams before its counter moved.

A tenant whose line was empty is lifted to the least counter among tenants that wait, or, where none waits, to the
counter of the tenant that started last. Idle time earns no credit. So between any two tenants that both have work waiting
throughout, the services differ by at most 2 x max(Lin, 2 x M). Lin is the longest prompt, and M the tokens
that fit into all running streams together.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from math import ceil
from typing import Final

from millgate.core.measure import LOOKED_AT
from millgate.core.queues.base import Order, Queued
from millgate.core.settings import MOST_TENANTS

# What an output token costs, in prompt tokens: decoding one takes about twice the engine of reading one (VTC, section 4).
OUTPUT_PRICE: Final = 2.0

_Rank = tuple[float, float, int, str]


def charge(queued: Queued) -> float:
    """Return what this attempt costs its tenant if it is answered as predicted, in weighted tokens."""
    return (queued.prompt_tokens + OUTPUT_PRICE * queued.output_tokens) / queued.weight


class _Line:
    """One tenant: its counter, its waiting work, what that will cost, and its rank while it has any."""

    def __init__(self, tenant: str, order: Order) -> None:
        self.tenant = tenant
        self.order = order
        self.counter = 0.0
        self.waiting_charge = 0.0
        self.rank: _Rank | None = None

    def last_rank(self) -> _Rank:
        """Return the rank that it will have when the last of its work is next."""
        last = self.order.last()
        counter = self.counter + self.waiting_charge - charge(last)
        return counter, last.first_seen, last.arrival_number, self.tenant


class FairOrder(Order):
    """The least served tenant's head goes first, the older head among equals; `inner` makes each tenant's order.

    Memory: one line for each tenant with waiting work, which the queue's own bound limits, and `MOST_TENANTS` without. Beyond
    those the one that was longest without any is forgotten, and comes back at the least counter as a new one does.
    """

    def __init__(self, inner: Callable[[], Order]) -> None:
        self._inner = inner
        self._lines: dict[str, _Line] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._ranks: list[_Rank] = []
        self._last: _Line | None = None
        self._just_left: int | None = None
        self._count = 0

    def add(self, queued: Queued) -> None:
        """Put an attempt in its place."""
        line = self._line_of(queued.tenant)
        if line.rank is None:
            self._lift(line)
            del self._idle[queued.tenant]
        line.order.add(queued)
        line.waiting_charge += charge(queued)
        self._count += 1
        self._rank(line)

    def remove(self, queued: Queued) -> None:
        """Take this attempt out, wherever it stands; it must be in."""
        line = self._lines[queued.tenant]
        line.order.remove(queued)
        line.waiting_charge -= charge(queued)
        self._count -= 1
        self._just_left = queued.attempt
        self._rank(line)
        if line.rank is None:
            line.waiting_charge = 0.0
            self._idle[queued.tenant] = None

    def started(self, queued: Queued, now: float) -> None:
        """Charge the tenant with the predicted tokens; an attempt that did not wait enters and leaves in one."""
        line = self._line_of(queued.tenant)
        if line.rank is None:
            if queued.attempt != self._just_left:
                self._lift(line)
            self._last = line
            self._idle.move_to_end(line.tenant)
        line.counter += charge(queued)
        line.order.started(queued, now)
        if line.rank is not None:
            self._rank(line)

    def settle(self, queued: Queued, prompt_tokens: int, output_tokens: int) -> None:
        """Correct the tenant's counter by what the prediction was wrong; a forgotten tenant's is gone."""
        line = self._lines.get(queued.tenant)
        if line is None:
            return
        prompt_error = prompt_tokens - queued.prompt_tokens
        output_error = output_tokens - queued.output_tokens
        line.counter += (prompt_error + OUTPUT_PRICE * output_error) / queued.weight
        line.order.settle(queued, prompt_tokens, output_tokens)
        if line.rank is not None:
            self._rank(line)

    def head(self) -> Queued | None:
        """Return the next attempt, without taking it out."""
        return self._lines[self._ranks[0][3]].order.head() if self._ranks else None

    def last(self) -> Queued:
        """Return the last of the line whose counter will have come furthest when its last one starts."""
        return max([self._lines[rank[3]] for rank in self._ranks], key=_Line.last_rank).order.last()

    def ahead_of(self, queued: Queued) -> int:
        """Return how many would be admitted before this one, whether or not it is in.

        Its place in its own line, and, of each other line, as many as it takes that line's counter to pass where
        the own counter will be by then, at the mean charge of what waits in either: exact with one tenant.
        """
        ranks = self._ranks
        if not ranks:
            return 0
        line = self._lines.get(queued.tenant)
        own = line.order.ahead_of(queued) if line is not None and line.rank is not None else 0
        if len(ranks) == 1 and ranks[0][3] == queued.tenant:
            return own
        return min(self._count, own + self._others_before(line, queued, own))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Queued]:
        """Yield everything that waits, next first, each start charged as `started` will."""
        walks = [(rank, iter(self._lines[rank[3]].order)) for rank in self._ranks]
        nexts = [(rank, queued, walk) for rank, walk in walks if (queued := next(walk, None)) is not None]
        heapify(nexts)
        while nexts:
            (counter, _, _, tenant), queued, walk = nexts[0]
            following = next(walk, None)
            if following is None:
                heappop(nexts)
            else:
                rank = (counter + charge(queued), following.first_seen, following.arrival_number, tenant)
                heapreplace(nexts, (rank, following, walk))
            yield queued

    def _others_before(self, line: _Line | None, queued: Queued, own: int) -> int:
        """Return how many of other lines go before the one that has `own` ahead in its own line."""
        counter, tenant = self._least(), queued.tenant
        if line is not None:
            counter = line.counter if line.rank is not None else max(line.counter, counter)
        if own and line is not None:
            level: _Rank = (counter + own * line.waiting_charge / len(line.order), 0.0, 0, "")
        else:
            level = (counter, queued.first_seen, queued.arrival_number, tenant)
        reached = bisect_left(self._ranks, level)
        step = ceil(reached / LOOKED_AT)
        looked_at = self._ranks[0:reached:step] if reached else []
        before = sum([self._gone_by(level[0], rank) for rank in looked_at if rank[3] != tenant])
        return ceil(before * reached / len(looked_at)) if step > 1 else before

    def _gone_by(self, level: float, rank: _Rank) -> int:
        """Return how many of this line start until its counter has passed the level."""
        line = self._lines[rank[3]]
        waiting = len(line.order)
        if line.waiting_charge <= 0.0:
            return waiting
        return min(waiting, 1 + int((level - line.counter) * waiting / line.waiting_charge))

    def _least(self) -> float:
        """Return the least counter among tenants with waiting work, or that of the one that started last."""
        if self._ranks:
            return self._ranks[0][0]
        return self._last.counter if self._last is not None else 0.0

    def _lift(self, line: _Line) -> None:
        line.counter = max(line.counter, self._least())

    def _line_of(self, tenant: str) -> _Line:
        line = self._lines.get(tenant)
        if line is None:
            if len(self._idle) >= MOST_TENANTS:
                forgotten, _ = self._idle.popitem(last=False)
                del self._lines[forgotten]
            line = self._lines[tenant] = _Line(tenant, self._inner())
            self._idle[tenant] = None
        return line

    def _rank(self, line: _Line) -> None:
        """Put the line where its counter and its head belong; out where nothing of it waits."""
        head = line.order.head()
        rank = None if head is None else (line.counter, head.first_seen, head.arrival_number, line.tenant)
        if rank == line.rank:
            return
        if line.rank is not None:
            del self._ranks[bisect_left(self._ranks, line.rank)]
        if rank is not None:
            insort(self._ranks, rank)
        line.rank = rank
