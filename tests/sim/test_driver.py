"""One governor, two drivers: the simulator's and the gateway's decide alike, event by event."""

from collections.abc import Callable
from typing import Any

from millgate.core.decisions import Decision
from millgate.core.events import Arrived, ClientGone, EngineSeen, Event, Finished, FirstToken, Released, Tick
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.runtime.driver import Driver
from millgate.sim.driver import DecidingCore, VirtualDriver
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.wiring.governor import build_governor

Script = list[tuple[float, Event]]
Log = list[tuple[float, Event, tuple[Decision, ...]]]

SETTINGS = Settings(
    (LaneSettings("interactive", ttft_slo_s=1.0, deadline_s=1.0, max_queue=3),),
    (EngineSettings("one", 2), EngineSettings("two", 1, kv_tokens=4000)),
)


class Logged:
    """A governor that writes down what it is asked and what it answers."""

    def __init__(self) -> None:
        self.log: Log = []
        self._inner = build_governor(SETTINGS, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        decisions = self._inner.handle(event, now)
        self.log.append((now, event, decisions))
        return decisions

    def next_wake(self) -> float | None:
        return self._inner.next_wake()


class Deaf:
    """A listener that carries nothing out: the script alone says what happens."""

    def __getattr__(self, name: str) -> Callable[[Decision], None]:
        return lambda _decision: None


class ManualLoop:
    """An event loop's timer and clock, in virtual time: all that the gateway's driver needs of one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Handle":
        handle = Handle(call)
        self._loop.at(self._loop.now + delay_s, handle.fire, None, priority=2)
        return handle


class Handle:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self, _nothing: None) -> None:
        if self._call is not None:
            self._call()


def random_script(seed: int, events: int = 400) -> Script:
    """Arrivals, first tokens, ends, hang-ups and gauges in an order that only overlaps by chance."""
    dice = Streams(seed).generator("script")
    script: Script = []
    now = 0.0
    for attempt in range(1, events):
        now += float(dice.exponential(0.05))
        script.append((now, Arrived(attempt, prompt_bytes=int(dice.integers(40, 8000)), max_tokens=200)))
        end = now + float(dice.exponential(0.5))
        if dice.random() < 0.2:
            script.append((end, ClientGone(attempt)))
            continue
        script.append(((now + end) / 2, FirstToken(attempt)))
        script.append((end, Finished(attempt, 100, 50)))
        script.append((end, Released(attempt)))
    script += [(float(second), EngineSeen("one", float(second), 1, 0, 0.1)) for second in range(int(now))]
    return sorted(script, key=lambda item: item[0])


def play(script: Script, drive: Callable[[DecidingCore, Loop], Callable[[Event], None]]) -> Log:
    core, loop = Logged(), Loop()
    post = drive(core, loop)
    for at, event in script:
        loop.at(at, post, event)
    loop.run()
    return core.log


def test_both_drivers_make_the_same_decisions_from_one_recorded_script() -> None:
    """Every event of the script gets the same decisions; ticks may come a millisecond apart (the gateway's timer)."""

    def gateway(core: DecidingCore, loop: Loop) -> Callable[[Event], None]:
        manual: Any = ManualLoop(loop)
        driver = Driver(core, manual, manual)  # type: ignore[arg-type]  # a logged governor has every verb
        return driver.post

    def simulator(core: DecidingCore, loop: Loop) -> Callable[[Event], None]:
        listener: Any = Deaf()
        return VirtualDriver(core, loop, listener).post

    script = random_script(1)
    by_gateway, by_simulator = play(script, gateway), play(script, simulator)
    ticked = [[entry for entry in log if isinstance(entry[1], Tick)] for log in (by_gateway, by_simulator)]
    plain = [[entry for entry in log if not isinstance(entry[1], Tick)] for log in (by_gateway, by_simulator)]

    assert len(plain[0]) == len(script)
    assert plain[0] == plain[1]
    assert len({type(decision).__name__ for _, _, decisions in plain[0] for decision in decisions}) >= 4
    told = [[(type(each).__name__, each.attempt) for entry in log for each in entry[2]] for log in ticked]
    assert told[0] == told[1]
