"""Runs a `Batch` in real time: one timer for the whole engine, absolute times, no work per token.

The batch lives on the loop's clock. When the timer fires late, the batch still computes every step end from the
one before, so a late step shortens the next and never moves the rest. Deliveries are kept in buckets by the
step at which they are due: only what is due is looked at.
"""

import asyncio
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

from millgate.engine.adapters import AdapterSlots, AdapterStart
from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchEvent, BatchStatistics, EngineSequence, EventKind

TIMER_S = 0.001
"""The loop's timer counts milliseconds; delays are rounded up to it, for an early wake would only wake again."""

SECOND_S = 1.0
"""Time between two rows of the engine's series."""


class TokenListener(Protocol):
    """The receiver of what an engine makes."""

    def on_tokens(self, feed: "Feed", tokens: int, now: float, *, last: bool) -> None:
        """`tokens` more tokens of this feed are there; `last` ends it."""

    def on_second(self, statistics: BatchStatistics, now: float) -> None:
        """A second of work has gone by."""


@dataclass(slots=True, eq=False)
class Feed:
    """One running answer: which tokens its reader has had, and when it gets the next.

    `tokens_per_event` None delivers everything at the end. A `silent` feed is generated and not delivered. `hit_tokens` of its
    prompt came from the prefix cache, known with the first token. `adapter` must be loaded before it begins; "" is the model.
    """

    owner: object
    index: int
    sequence: EngineSequence
    tokens_per_event: int | None
    asked_at: float
    adapter: str = ""
    delivered_at: float = field(init=False)
    delivered_tokens: int = field(default=0, init=False)
    joined_step: int = field(default=0, init=False)
    joined_tokens: int = field(default=0, init=False)
    due_step: int = field(default=-1, init=False)
    hit_tokens: int = field(default=0, init=False)
    silent: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.delivered_at = self.asked_at


class Pacer:
    """The engine's heart beat; all calls on the loop's thread."""

    def __init__(
        self,
        batch: Batch,
        listener: TokenListener,
        loop: asyncio.AbstractEventLoop,
        adapters: AdapterSlots | None = None,
    ) -> None:
        self.batch = batch
        self.adapters = adapters
        self._loading: dict[int, Feed] = {}
        self._listener = listener
        self._loop = loop
        self._feeds: dict[int, Feed] = {}
        self._due: dict[int, list[Feed]] = {}
        self._due_steps: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._second_at = loop.time() + SECOND_S

    def submit(self, feed: Feed) -> None:
        """Queue one answer; the caller has asked `Batch.refusal`."""
        now = self._loop.time()
        if not self._feeds:
            self._second_at = max(self._second_at, now + SECOND_S)
        self._feeds[feed.sequence.sequence_id] = feed
        if self.adapters is None or not feed.adapter:
            self.batch.add(feed.sequence, now)
            self._arm()
        else:
            self._loading[feed.sequence.sequence_id] = feed
            self._begin_later(self.adapters.ask(feed.adapter, feed.sequence.sequence_id, now))

    def _begin_later(self, *starts: AdapterStart | None) -> None:
        for start in starts:
            if start is not None:
                self._loop.call_at(start.at_s, self._begin, start.key)

    def _begin(self, sequence_id: int) -> None:
        """Start an answer whose adapter is loaded, if its reader is still there."""
        feed = self._loading.pop(sequence_id, None)
        if feed is not None:
            self.batch.add(feed.sequence, self._loop.time())
            self._arm()

    def _leave(self, sequence_id: int) -> None:
        """Give back what an answer has of an adapter; others may have waited for its place."""
        self._loading.pop(sequence_id, None)
        if self.adapters is not None:
            self._begin_later(*self.adapters.leave(sequence_id, self._loop.time()))

    def abort(self, feed: Feed) -> None:
        """End an answer; its reader hears no more."""
        feed.due_step = -1
        if self._feeds.pop(feed.sequence.sequence_id, None) is not None:
            self._leave(feed.sequence.sequence_id)
            if not self.batch.abort(feed.sequence.sequence_id, self._loop.time()):
                # It has ended in this very moment, and what it keeps has no reader.
                self.batch.unpin(feed.sequence.sequence_id, self._loop.time())
            self._arm()

    def unpin(self, sequence_id: int) -> None:
        """Let go of the blocks that an ended answer has kept."""
        if self.batch.unpin(sequence_id, self._loop.time()):
            self._arm()

    def holds(self, feed: Feed) -> bool:
        """Whether this answer is still being generated."""
        return feed.sequence.sequence_id in self._feeds

    def silence(self, feed: Feed) -> None:
        """Generate on without a reader; what has not begun for want of an adapter never will."""
        if feed.sequence.sequence_id in self._loading:
            self.abort(feed)
            return
        feed.silent = True
        feed.due_step = -1
        self.batch.depart(feed.sequence.sequence_id, self._loop.time())
        self._arm()

    def statistics(self) -> BatchStatistics:
        """Return the engine's numbers as of now."""
        statistics = self.batch.statistics(self._loop.time())
        self._arm()
        return statistics

    def stop(self) -> None:
        """Stop the timer for good."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = -inf

    def _wake(self) -> None:
        self._timer_at = inf
        now = self._loop.time()
        self.deliver(now)
        if now >= self._second_at:
            self._second_at = now + SECOND_S
            self._listener.on_second(self.batch.statistics(now), now)
        self._arm()

    def deliver(self, now: float) -> None:
        """Hand out everything that is computed by now."""
        for event in self.batch.advance(now):
            feed = self._feeds.get(event.sequence_id)
            if feed is not None:
                self._hear(feed, event)
        self._deliver_due(self.batch.steps_at(now), now)

    def _hear(self, feed: Feed, event: BatchEvent) -> None:
        """Follow one sequence from event to event; between them it makes one token a step."""
        kind = event.kind
        feed.hit_tokens = event.hit_tokens
        if kind is EventKind.FINISHED:
            del self._feeds[event.sequence_id]
            self._leave(event.sequence_id)
            self._deliver(feed, event.produced_tokens, event.at_s, last=True)
            feed.due_step = -1
        elif kind is EventKind.PREEMPTED:
            feed.due_step = -1
        else:
            feed.joined_step = event.step
            feed.joined_tokens = event.produced_tokens
            if kind is EventKind.FIRST_TOKEN and feed.sequence.output_tokens > 1:
                self._deliver(feed, 1, event.at_s, last=False)
            self._schedule(feed, event.step, event.produced_tokens)

    def _schedule(self, feed: Feed, step: int, produced: int) -> None:
        """Put the feed into the bucket of the step at which its next event is full."""
        if feed.silent or feed.tokens_per_event is None or not self.holds(feed):
            return
        missing = feed.delivered_tokens + feed.tokens_per_event - produced
        feed.due_step = due = step + max(1, missing)
        bucket = self._due.get(due)
        if bucket is None:
            self._due[due] = [feed]
            heappush(self._due_steps, due)
        else:
            bucket.append(feed)

    def _deliver_due(self, step: int, now: float) -> None:
        """Deliver to all whose step is over; several steps at once make one larger event."""
        while self._due_steps and self._due_steps[0] <= step:
            due = heappop(self._due_steps)
            for feed in self._due.pop(due):
                if feed.due_step != due:
                    continue
                produced = feed.joined_tokens + step - feed.joined_step
                self._deliver(feed, produced, now, last=False)
                self._schedule(feed, step, produced)

    def _deliver(self, feed: Feed, produced: int, now: float, *, last: bool) -> None:
        tokens = produced - feed.delivered_tokens
        feed.delivered_tokens = produced
        self._listener.on_tokens(feed, tokens, now, last=last)
        feed.delivered_at = now

    def _arm(self) -> None:
        """Set the timer for the next event that a client could notice."""
        batch = self.batch
        wake_at = batch.next_event_at
        if wake_at == inf:
            return
        wake_at = min(wake_at, self._second_at)
        if self._due_steps:
            wake_at = min(wake_at, batch.time_of_step(self._due_steps[0]))
        if wake_at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(1, ceil((wake_at - self._loop.time()) / TIMER_S)) * TIMER_S
        self._timer = self._loop.call_later(delay_s, self._wake)
        self._timer_at = wake_at
