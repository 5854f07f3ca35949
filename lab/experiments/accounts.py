"""What became of every attempt, by tenant and lane, read off the governor's own decisions.

Recorders judge requests and keep sums; where lanes or tenants are compared, what each of them got is the question.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lab.books import unread_books
from millgate.core.decisions import Decision, Ended, Yield
from millgate.core.events import Arrived, Event
from millgate.core.words import Outcome
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.driver import DecidingCore
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.world import World
from millgate.wiring.governor import build_governor


class SimulatedAccount(NamedTuple):
    """One attempt that is over; virtual seconds and tokens. `first_token_at` is None where there was none."""

    tenant: str
    lane: str
    outcome: Outcome
    arrived_at: float
    first_token_at: float | None
    ended_at: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, None where there was none."""
        return None if self.first_token_at is None else self.first_token_at - self.arrived_at


class Accounts:
    """A core that passes everything on and keeps an account of each attempt, in order of their ends."""

    def __init__(self, inner: DecidingCore) -> None:
        self._inner = inner
        self._open: dict[int, tuple[Arrived, float]] = {}
        self.closed: list[SimulatedAccount] = []

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Pass on, and note what begins and what ends."""
        if isinstance(event, Arrived):
            self._open[event.attempt] = (event, now)
        decisions = self._inner.handle(event, now)
        for decision in decisions:
            if isinstance(decision, Ended):
                self._end(decision, now)
            elif isinstance(decision, Yield):
                self._refuse(decision, now, event)
        return decisions

    def next_wake(self) -> float | None:
        """Pass on."""
        return self._inner.next_wake()

    def _refuse(self, decision: Yield, now: float, event: Event) -> None:
        # A queued attempt has an end of its own.
        if isinstance(event, Arrived) and event.attempt == decision.attempt:
            arrival, arrived_at = self._open.pop(decision.attempt)
            lane = arrival.lane or ("" if decision.classed is None else decision.classed.lane)
            self.closed.append(
                SimulatedAccount(arrival.tenant, lane, Outcome.YIELDED, arrived_at, None, now, 0, 0)
            )

    def _end(self, ended: Ended, now: float) -> None:
        arrival, arrived_at = self._open.pop(ended.attempt)
        first_at = None if ended.ttft_s is None else arrived_at + ended.ttft_s
        self.closed.append(
            SimulatedAccount(
                arrival.tenant,
                ended.lane,
                ended.outcome,
                arrived_at,
                first_at,
                now,
                ended.prompt_tokens,
                ended.output_tokens,
            )
        )


def let_come(
    fleet: SimulatedFleet, crowds: Sequence[tuple[Manners, Iterator[Job]]], streams: Streams, until_s: float
) -> list[SimulatedAccount]:
    """Let several crowds come to one gate, and return what became of all that was over by `until_s`."""
    loop, core = Loop(), Accounts(build_governor(fleet.settings, 0.0))
    world = World(core, loop, unread_books())
    fleet.populate(world, streams)
    world.start_watch()
    for number, (manners, coming) in enumerate(crowds):
        OpenLoop(world, Crowd(world, manners, streams, number), coming)
    loop.run(until_s)
    return core.closed
