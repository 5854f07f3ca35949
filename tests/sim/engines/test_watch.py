"""Gauges are read once a second, soon after hang-ups, and as old as telemetry makes them."""

from millgate.core.events import EngineSeen, Event
from millgate.sim.engines.contract import EngineTotals, GaugeReading
from millgate.sim.engines.watch import GaugeWatch
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop


class Gauge:
    """A station of which only the gauges matter: it runs as many as there are whole seconds."""

    name = "engine"

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def start(self, attempt: int, job: Job) -> None:
        raise NotImplementedError

    def hang_up(self, attempt: int) -> None:
        raise NotImplementedError

    def produced(self, attempt: int) -> int:
        raise NotImplementedError

    def totals(self) -> EngineTotals:
        raise NotImplementedError

    def read(self) -> GaugeReading:
        return GaugeReading(int(self._loop.now), 0, 0.5)


def readings(delay_s: float = 0.0, hangups: tuple[float, ...] = ()) -> list[tuple[float, int | None]]:
    loop, seen = Loop(), list[tuple[float, int | None]]()

    def post(event: Event) -> None:
        assert isinstance(event, EngineSeen)
        seen.append((round(event.seen_at, 6), event.running))

    station = Gauge(loop)
    watch = GaugeWatch(loop, [station], post, lambda: loop.now >= 3.0, delay_s=delay_s)
    for at in hangups:
        loop.at(at, watch.hung_up, station)
    loop.run()
    return seen


def test_gauges_are_read_every_second_until_all_is_over() -> None:
    assert readings() == [(0.0, 0), (1.0, 1), (2.0, 2)]


def test_delayed_telemetry_is_stamped_as_fresh_and_is_not() -> None:
    assert readings(delay_s=1.5) == [(1.5, 0), (2.5, 1), (3.5, 2)]


def test_a_hangup_brings_two_looks_and_a_crowd_of_them_no_more() -> None:
    assert readings(hangups=(1.3,)) == [(0.0, 0), (1.0, 1), (1.45, 1), (1.7, 1), (2.0, 2)]
    assert len(readings(hangups=tuple(1.3 + 0.001 * each for each in range(50)))) == 5
