"""What the core tells instruments that report and move nothing; wiring hands them in, and no decision reads them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millgate.core.decisions import Decision
from millgate.core.events import Event
from millgate.core.settings import LaneSettings
from millgate.core.snapshot import Alarm, LittleReading, LittleSnapshot, SloReading, WarningReading


class Flow(NamedTuple):
    """What the governor counts: running totals since start, and the state now.

    Work is expected service seconds at a full batch, priced once: `limit` streams serve `limit` seconds of it a second. All
    arrivals count but recognised retries. `occupancy` is permits out (in observe mode it may pass `limit`), `bound_s` the
    longest deadline of a lane.
    """

    arrived: int
    arrived_work_s: float
    done_work_s: float
    occupancy: int
    queued: int
    limit: int
    bound_s: float


class PoolInstrument(Protocol):
    """Sees overload of one pool coming; it is fed from `next_at` on, core seconds."""

    next_at: float

    def feed(self, now: float, flow: Flow) -> None:
        """Take the totals."""

    def read(self) -> WarningReading:
        """Return all signals as numbers; changes nothing."""

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms that are on, the oldest first."""


class LaneInstrument(Protocol):
    """Holds the answers of one lane against its objectives."""

    def add(
        self, now: float, ttft_s: float | None, tpot_s: float | None, *, good: bool, first: bool = True
    ) -> None:
        """Take an admitted attempt that is over; times in seconds, from the origin of its deadline."""

    def refuse(self, now: float) -> None:
        """Take a request whose first attempt was refused."""

    def read(self, now: float) -> SloReading:
        """Return quantiles, attainment and burn; changes nothing."""


class StayInstrument(Protocol):
    """Follows the attempts that are `inside` one system: a lane, its queue or its engines."""

    inside: int

    def enter(self, now: float) -> None:
        """One attempt came in."""

    def leave(self, now: float) -> None:
        """One place is free again: the gate's side of the account."""

    def stayed(self, now: float, entered_at: float) -> None:
        """One attempt that came in at `entered_at` is through: the attempt's side of the account."""

    def read(self, now: float) -> LittleReading:
        """Return how many were inside, how many came in and how long they stayed; changes nothing."""


class StepObserver(Protocol):
    """An observer of every step; must be quick and must not post."""

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """One event has been handled at core time `now`."""


class Instruments(NamedTuple):
    """Makes the instrument of a pool, which begins at this time, of a lane and of a system; `total` reads several lanes as one."""

    of_pool: Callable[[float], PoolInstrument]
    of_lane: Callable[[LaneSettings, float], LaneInstrument]
    of_stays: Callable[[float], StayInstrument]
    total: Callable[[Sequence[LittleSnapshot]], LittleSnapshot]
