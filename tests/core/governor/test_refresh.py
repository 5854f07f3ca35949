"""A user presses refresh in mid-answer on a full gate: the second try runs as soon as the engine has let go of the first."""

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, ClientGone, EngineSeen, Event, FirstToken, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings

_PRESSED_AT = 2.5
_ABORT_LAG_S = 0.3


class _Stage:
    """A full gate before an engine that lets go within 0.2 s of a hang-up; its gauges are read each second and after hang-ups."""

    def __init__(self, cap: int, *, gauges: bool, stream: bool) -> None:
        lane = LaneSettings("interactive", ttft_slo_s=5.0, deadline_s=5.0)
        engine = EngineSettings("engine", cap, prior=steady_prior(10.0))
        self.gate: Governor = governor(lane, engines=(engine,))
        self._events: list[tuple[float, Event]] = []
        for attempt in range(cap):
            self._events.append((0.0, self.arrival(attempt, stream=stream)))
            if stream:
                self._events.append((0.1, FirstToken(attempt)))
        self._events.append((_PRESSED_AT, ClientGone(0)))
        looks = (1.0, 2.0, _PRESSED_AT + 0.15, 3.0, _PRESSED_AT + 0.7)
        for at in looks if gauges else ():
            left = at > _PRESSED_AT + 0.2
            self._events.append((at, EngineSeen("engine", at, cap - left, 0)))
        self._events.sort(key=lambda each: each[0])

    @staticmethod
    def arrival(attempt: int, *, stream: bool) -> Arrived:
        return Arrived(attempt, prompt_bytes=400, max_tokens=100, stream=stream, fingerprint=lambda: attempt)

    def play(self, until: float) -> list[tuple[float, Decision]]:
        """Let everything happen up to this time, ticks at the gate's own wish included; return what is decided."""
        decided: list[tuple[float, Decision]] = []
        while True:
            wake = self.gate.next_wake()
            next_at = self._events[0][0] if self._events else until + 1.0
            at = next_at if wake is None else min(wake, next_at)
            if at > until:
                return decided
            event = self._events.pop(0)[1] if at == next_at else Tick()
            decided += [(at, each) for each in self.gate.handle(event, at)]


@pytest.mark.parametrize("cap", [1, 4, 16])
@pytest.mark.parametrize("gauges", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refresh_in_mid_answer_is_served_when_the_engine_has_let_go(
    cap: int, *, gauges: bool, stream: bool
) -> None:
    stage = _Stage(cap, gauges=gauges, stream=stream)
    stage.play(_PRESSED_AT)
    pressed_at = _PRESSED_AT + 0.01
    second_try = stage.gate.handle(stage.arrival(99, stream=stream), pressed_at)[0]
    decided = stage.play(pressed_at + 5.0)

    assert isinstance(second_try, Queue)
    assert second_try.expected_wait_s <= _ABORT_LAG_S
    admitted_at = [at for at, each in decided if isinstance(each, Admit) and each.attempt == 99]
    assert admitted_at
    assert admitted_at[0] <= _PRESSED_AT + _ABORT_LAG_S + 0.5


def test_a_refresh_before_an_engine_that_lets_go_late_is_not_refused_for_good() -> None:
    """SGLang lets go of a stream 2 s after its client has left. The gate has seen that once before."""
    lane = LaneSettings("interactive", ttft_slo_s=5.0, deadline_s=5.0)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(10.0)),))
    for attempt, begun_at in ((1, 0.0), (2, 20.0)):
        gate.handle(_Stage.arrival(attempt, stream=True), begun_at)
        gate.handle(FirstToken(attempt), begun_at + 0.1)
        gate.handle(EngineSeen("engine", begun_at + 2.0, 1, 0), begun_at + 2.0)
        gate.handle(ClientGone(attempt), begun_at + 2.5)
        if attempt == 1:
            gate.handle(EngineSeen("engine", 4.0, 1, 0), 4.0)
            gate.handle(EngineSeen("engine", 5.0, 0, 0), 5.0)
    second_try = gate.handle(_Stage.arrival(99, stream=True), 22.51)[0]

    assert isinstance(second_try, Queue)
    assert second_try.expected_wait_s <= 2.5


def test_where_nothing_is_queued_a_refresh_is_told_to_come_back_when_the_engine_has_let_go() -> None:
    """`max_queue: 0`: it is refused, but never for good, and its hint is the abort lag and not the rest of the answer."""
    lane = LaneSettings("primitive", ttft_slo_s=5.0, deadline_s=5.0, max_queue=0)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(10.0)),))
    gate.handle(_Stage.arrival(1, stream=True), 0.0)
    gate.handle(FirstToken(1), 0.1)
    gate.handle(EngineSeen("engine", 2.0, 1, 0), 2.0)
    gate.handle(ClientGone(1), _PRESSED_AT)
    told = gate.handle(_Stage.arrival(2, stream=True), _PRESSED_AT + 0.01)[0]

    assert isinstance(told, Yield)
    assert told.retry
    assert told.retry_after_s <= 1.0


def test_an_engine_known_to_ignore_hangups_is_expected_to_go_on() -> None:
    """The rest of the answer counts where the gauge has shown that the engine did not stop."""
    lane = LaneSettings("interactive", ttft_slo_s=60.0, deadline_s=60.0)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(10.0)),))
    gate.handle(_Stage.arrival(1, stream=True), 0.0)
    gate.handle(FirstToken(1), 0.1)
    gate.handle(EngineSeen("engine", 1.9, 1, 0), 1.9)
    gate.handle(ClientGone(1), 2.0)
    gate.handle(EngineSeen("engine", 3.5, 1, 0), 3.5)
    queued = gate.handle(_Stage.arrival(2, stream=True), 3.6)[0]

    assert isinstance(queued, Queue)
    assert queued.expected_wait_s > 5.0
