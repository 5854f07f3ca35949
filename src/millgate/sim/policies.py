"""What is compared: the governor as configured, and what people have instead of it. To add one, add its line.

Every policy gets the same settings and meets the same arrivals, lengths, tempers and troubles.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from millgate.core.decisions import Admit, Decision, Ended, Leg
from millgate.core.events import Arrived, ClientGone, EngineDown, EngineUp, Event, Failed, Released
from millgate.core.settings import Settings
from millgate.core.words import Outcome
from millgate.sim.driver import DecidingCore
from millgate.wiring.governor import build_governor


class OpenDoor:
    """No gate: a load balancer that sends everything to the engine with the fewest requests open.

    Where some engines only read prompts, each is read on that one of them for which the fewest requests are open.
    """

    def __init__(self, settings: Settings) -> None:
        self._open = {engine.name: 0 for engine in settings.engines}
        readers = [engine.name for engine in settings.engines if engine.only_reads]
        writers = [name for name in self._open if name not in readers]
        self._groups = [group for group in (writers, readers) if group]
        self._down: set[str] = set()
        self._where: dict[int, tuple[str, ...]] = {}

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Admit every arrival at once; count what runs where, and hand an engine's failure on to the client."""
        del now
        if isinstance(event, Arrived):
            self._where[event.attempt] = where = tuple([self._least_open(group) for group in self._groups])
            size = event.prompt_bytes + (event.max_tokens or 1_000_000)
            legs = tuple(Leg(name, 1, size, 0) for name in where)
            return (Admit(event.attempt, legs, 0.0, 0.0, float("inf")),)
        if isinstance(event, Failed):
            name = self._where[event.attempt][0]
            return (Ended(event.attempt, Outcome.ENGINE_FAILED, "", name, 0, 0, None, 0, 0, event.kind),)
        if isinstance(event, EngineDown):
            self._down.add(event.engine)
        elif isinstance(event, EngineUp):
            self._down.discard(event.engine)
        elif isinstance(event, Released | ClientGone):
            # A connection closes with its answer, its failure, or its client.
            for name in self._where.pop(event.attempt, ()):
                self._open[name] -= 1
        return ()

    def next_wake(self) -> float | None:
        """Return None: nothing ever falls due."""
        return None

    def _least_open(self, group: list[str]) -> str:
        """Take the engine of a group with the fewest requests open, one that is up where one is."""
        name = min([name for name in group if name not in self._down] or group, key=self._open.__getitem__)
        self._open[name] += 1
        return name


class WithoutPrefixes:
    """A core that is told of no prefix and no session: it places by load alone, and knows no live contexts."""

    def __init__(self, core: DecidingCore) -> None:
        self._core = core

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Hand an event on, an arrival without its marks and its session."""
        if isinstance(event, Arrived):
            event = event._replace(marks=None, session=None)
        return self._core.handle(event, now)

    def next_wake(self) -> float | None:
        """Return when something falls due."""
        return self._core.next_wake()


def _cap_and_yield(settings: Settings) -> DecidingCore:
    """The pure primitive: the same hard cap, and nothing queued."""
    lanes = tuple(replace(lane, max_queue=0, window_s=0.0) for lane in settings.lanes)
    return build_governor(replace(settings, lanes=lanes), 0.0)


def _endless_queue(settings: Settings) -> DecidingCore:
    """A hard cap with a queue that never refuses a request: the classical hidden overload."""
    lanes = tuple(replace(lane, deadline_s=1e9, max_queue=None) for lane in settings.lanes)
    return build_governor(replace(settings, lanes=lanes), 0.0)


POLICIES: Mapping[str, Callable[[Settings], DecidingCore]] = MappingProxyType(
    {
        "no gate": OpenDoor,
        # Of a router that knows neither prefixes nor sessions.
        "plain queue": lambda settings: WithoutPrefixes(_endless_queue(settings)),
        "endless queue": _endless_queue,
        "cap and yield": _cap_and_yield,
        "gate": lambda settings: build_governor(settings, 0.0),
    }
)
