"""Reads engines' gauges as the gateway does: once a second, and soon after clients have left.

The gateway stamps a reading with the time of asking. Delayed telemetry is the treacherous kind: the engine's page
is `delay_s` old when it is read, and its age cannot be told from outside. Lost telemetry is a delay without end.
"""

from collections.abc import Callable, Sequence

from millgate.core.events import EngineSeen, Event
from millgate.sim.engines.contract import GaugeReading, Station
from millgate.sim.loop import WATCHES, Loop

POLL_S = 1.0
# The gateway's own looks after a hang-up and its least gap between two (runtime/engines).
AFTER_HANGUP_S = (0.15, 0.4)
LEAST_GAP_S = 0.1


class GaugeWatch:
    """Posts EngineSeen for every station until `is_over` says that nothing is left to watch."""

    def __init__(
        self,
        loop: Loop,
        stations: Sequence[Station],
        post: Callable[[Event], None],
        is_over: Callable[[], bool],
        *,
        delay_s: float = 0.0,
        before_poll: Callable[[Station], None] | None = None,
    ) -> None:
        self._loop = loop
        self._post = post
        self._is_over = is_over
        self._delay_s = delay_s
        self._before_poll = before_poll
        self._last_looks = {station.name: -1.0 for station in stations}
        self._due: dict[str, list[float]] = {station.name: [] for station in stations}
        self._stations = stations
        loop.at(loop.now, self._poll, None, WATCHES)

    def hung_up(self, station: Station) -> None:
        """A client of this engine has left: look soon."""
        now = self._loop.now
        due = self._due[station.name]
        for delay_s in AFTER_HANGUP_S:
            at = now + delay_s
            if not any(abs(other - at) < LEAST_GAP_S for other in due):
                due.append(at)
                self._loop.at(at, self._look_once, station, WATCHES)

    def _poll(self, _nothing: None) -> None:
        if self._is_over():
            return
        for station in self._stations:
            if self._before_poll is not None:
                self._before_poll(station)
            self._look(station)
        self._loop.at(self._loop.now + POLL_S, self._poll, None, WATCHES)

    def _look_once(self, station: Station) -> None:
        due, now = self._due[station.name], self._loop.now
        due[:] = [at for at in due if at > now]
        self._look(station)

    def _look(self, station: Station) -> None:
        now = self._loop.now
        if now - self._last_looks[station.name] < LEAST_GAP_S:
            return
        self._last_looks[station.name] = now
        reading = station.read()
        if self._delay_s > 0.0:
            self._loop.at(now + self._delay_s, self._deliver, (station.name, reading), WATCHES)
        else:
            self._deliver((station.name, reading))

    def _deliver(self, what: tuple[str, GaugeReading]) -> None:
        name, reading = what
        self._post(EngineSeen(name, self._loop.now, reading.running, reading.waiting, reading.kv_share))
