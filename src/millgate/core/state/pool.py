"""Engines that share work, the routes through them, and what waits for each: pools, routes and queues."""

from collections.abc import Sequence
from math import inf

from millgate.core.lanes import LaneShares
from millgate.core.littles_law.early_warning import EarlyWarning
from millgate.core.measure.drift import SAMPLE_S
from millgate.core.queues.base import Order, Queued
from millgate.core.queues.window import BatchWindow
from millgate.core.settings import LaneSettings
from millgate.core.state.capacity_forecast import CapacityForecast
from millgate.core.state.engine import Engine
from millgate.core.state.offered import OfferedWork
from millgate.core.state.overtaking import Overtaking
from millgate.core.tickets import Appointments


class Pool:
    """Engines that share work; `queued_count` attempts of `queued_work_s` and `queued_prompt_tokens` wait for them in `queues`, and clients with `appointments` are expected back.

    `shares` divides their streams among lanes; None while there is one lane. `arrived`, `arrived_work_s` and
    `done_work_s` are what `warning` is fed with, next at `look_at`.
    """

    def __init__(self, engines: Sequence[Engine], appointments: Appointments, now: float) -> None:
        self.warning = EarlyWarning(now)
        self.look_at = now
        self.arrived = 0
        self.arrived_work_s = self.done_work_s = 0.0
        self.engines = engines
        self.capacity_forecast = CapacityForecast(engines)
        self.appointments = appointments
        self.queues: list[LaneQueue] = []
        self.shares: LaneShares | None = None
        self.queued_count = self.queued_prompt_tokens = 0
        self.queued_work_s = 0.0
        self.overtaking = Overtaking()

    def left_to(self, engine: Engine, now: float) -> "Pool":
        """Return a pool of this engine alone, whose permits count among the same shares."""
        alone = Pool((engine,), self.appointments, now)
        alone.shares = self.shares
        return alone

    def shared_out(self, shares: LaneShares | None) -> None:
        """Divide the streams among the lanes by these shares from now on."""
        self.shares = shares

    def opened(self, queue: "LaneQueue") -> None:
        """Take in a queue of work that waits for these engines."""
        self.queues.append(queue)

    def work_arrived(self, work_s: float) -> None:
        """Count the work of a request that comes for the first time."""
        self.arrived += 1
        self.arrived_work_s += work_s

    def work_done(self, work_s: float) -> None:
        """Count the work of an attempt that is over."""
        self.done_work_s += work_s

    def is_due(self, now: float) -> bool:
        """Return whether it is time to look at the early warning."""
        return now >= self.look_at

    def looked(self, now: float) -> None:
        """The early warning has been looked at; the next time is a sample later."""
        self.look_at = now + SAMPLE_S

    def waits(self, prompt_tokens: int, work_s: float) -> None:
        """Count an attempt that begins to wait."""
        self.queued_count += 1
        self.queued_prompt_tokens += prompt_tokens
        self.queued_work_s += work_s

    def waits_no_more(self, prompt_tokens: int, work_s: float) -> None:
        """Count an attempt that no longer waits."""
        self.queued_count -= 1
        self.queued_prompt_tokens -= prompt_tokens
        # An empty queue has no work, however the sums were rounded.
        self.queued_work_s = self.queued_work_s - work_s if self.queued_count else 0.0


class Route:
    """The engines that serve a model, in configured order; `up` are those of them that take work now."""

    __slots__ = ("engines", "pool", "up")

    def __init__(self, engines: tuple[Engine, ...], pool: Pool) -> None:
        self.engines = engines
        self.pool = pool
        self.up = engines

    def turned(self) -> None:
        """Read anew which of its engines are up."""
        self.up = tuple([engine for engine in self.engines if engine.up])

    def free(self) -> int:
        """Return how many streams are free."""
        return sum([engine.limit - engine.gate.streams for engine in self.up])


class LaneQueue:
    """What waits in one lane for one route, in the lane's order; `window` where the lane forms batches.

    `offered` is the work that arrives by size, where the shortest goes first. One that is not `is_open` belongs to a
    draft alone.
    """

    __slots__ = ("is_open", "offered", "order", "route", "settings", "window")

    def __init__(self, settings: LaneSettings, route: Route, order: Order) -> None:
        self.offered = OfferedWork() if settings.order == "short_first" else None
        self.settings = settings
        self.route = route
        self.order = order
        self.is_open = False
        self.window: BatchWindow | None = None
        if settings.window_s > 0.0:
            self.window = BatchWindow(settings.window_s)

    def opened(self) -> None:
        """From now on the pool and the lane know it."""
        self.is_open = True
        self.route.pool.opened(self)

    def paced_until(self, *, contended: bool = False) -> float:
        """Return from when on an engine may be given its next prompt; -inf where none is paced.

        `contended` asks for the time from when on its lane has read no more than its part, which counts while others wait.
        """
        name = self.settings.name
        return min(
            [engine.prompts.opens_at(name, contended=contended) for engine in self.route.up], default=-inf
        )

    def is_contended(self) -> bool:
        """Return whether work of another lane waits beside it."""
        for queue in self.route.pool.queues:
            if queue.settings.name != self.settings.name and len(queue.order):
                return True
        return False

    def opens_at(self) -> float | None:
        """Return when its batch goes, if it waits for one."""
        return None if self.window is None else self.window.look_again_at(self.route.free())

    def add(self, queued: Queued, give_up_at: float, now: float) -> None:
        """Put an attempt in its place."""
        self.order.add(queued)
        if self.window is not None:
            self.window.entered(queued.attempt, now, give_up_at)

    def remove(self, queued: Queued, *, admitted: bool) -> None:
        """Take an attempt out, wherever it stands."""
        self.order.remove(queued)
        if self.window is not None:
            self.window.left(queued.attempt, admitted=admitted)
