"""A client that reads slowly: its answer comes as fast as it reads, which says nothing of its engine."""

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Ended
from millgate.core.events import EngineProgress, Failed, Finished, FirstToken, Growth, HeldBack, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, LimitSettings
from millgate.core.words import FailureKind, Outcome, Sent

_LANE = LaneSettings("lane", deadline_s=60.0, ttft_slo_s=10.0, tpot_slo_s=0.05)


def read_slowly(gate: Governor, *, told: bool) -> list[Ended]:
    """Let four clients take a minute for answers that the engine writes within two seconds; return how they ended."""
    for attempt in range(1, 5):
        ask(gate, attempt)
        gate.handle(FirstToken(attempt), 0.5)
        if told:
            gate.handle(HeldBack(attempt), 1.0)
    for second in range(1, 60):
        streams = tuple(Growth(attempt, second) for attempt in range(1, 5))
        gate.handle(EngineProgress("engine", streams), float(second))
    ended = []
    for attempt in range(1, 5):
        decisions = gate.handle(Finished(attempt, 100, 100), 60.0)
        ended += [each for each in decisions if isinstance(each, Ended)]
        gate.handle(Released(attempt), 60.0)
    return ended


def test_clients_that_read_slowly_do_not_spend_the_error_budget_of_their_lane() -> None:
    gate = gate_of(_LANE)
    assert {each.outcome for each in read_slowly(gate, told=True)} == {Outcome.GOOD}
    assert gate.snapshot(60.0).lanes[0].slo.short.burn == 0.0


def test_clients_that_read_slowly_lower_no_limit() -> None:
    engine = EngineSettings("engine", 16, limit=LimitSettings("aimd", tpot_slo_s=0.05))
    untold, gate = gate_of(_LANE, engine=engine), gate_of(_LANE, engine=engine)
    read_slowly(untold, told=False)
    assert untold.snapshot(60.0).engines[0].limit < 16

    read_slowly(gate, told=True)

    assert gate.snapshot(60.0).engines[0].limit == 16


def test_how_long_a_slow_client_has_its_stream_is_learned() -> None:
    """The stream is not free for others all that time: those that wait for it must not be told less."""
    gate = gate_of(_LANE)
    before_s = gate.snapshot(0.0).engines[0].expected_service_s
    read_slowly(gate, told=True)
    assert gate.snapshot(60.0).engines[0].expected_service_s > 5 * before_s


def test_a_client_that_has_left_holds_nothing_back() -> None:
    gate = gate_of(_LANE)
    assert gate.handle(HeldBack(7), 0.0) == ()


def test_what_breaks_off_because_its_client_did_not_read_lowers_no_limit() -> None:
    """A proxy before the engine had given up on a reader that stood still."""
    engine = EngineSettings("engine", 16, limit=LimitSettings("aimd", tpot_slo_s=0.05))
    limits = []
    for told in (False, True):
        gate = gate_of(_LANE, engine=engine)
        for attempt in range(1, 5):
            ask(gate, attempt)
            gate.handle(FirstToken(attempt), 0.5)
            if told:
                gate.handle(HeldBack(attempt), 1.0)
            gate.handle(Failed(attempt, FailureKind.BROKEN, Sent.BYTES), 20.0)
            gate.handle(Released(attempt), 20.0)
        gate.handle(EngineProgress("engine", ()), 40.0)
        limits.append(gate.snapshot(40.0).engines[0].limit)
    assert limits[0] < limits[1] == 16
