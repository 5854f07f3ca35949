"""An engine that comes back on trial: one request goes there, the others elsewhere or wait, until it is up for good."""

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue
from millgate.core.events import Arrived, EngineDown, EngineUp, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings

PATIENT = LaneSettings("lane", deadline_s=60.0)


def gate_of(*names: str) -> Governor:
    engines = [EngineSettings(name, 4, prior=steady_prior(2.0)) for name in names]
    return governor(PATIENT, engines=tuple(engines))


def ask(gate: Governor, attempt: int, now: float = 0.0) -> Decision:
    return gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=100), now)[0]


def engines_of(decisions: tuple[Decision, ...] | list[Decision]) -> list[str]:
    return [each.legs[0].engine for each in decisions if isinstance(each, Admit)]


def test_what_waits_is_not_all_sent_to_an_engine_that_has_just_come_back() -> None:
    gate = gate_of("well", "ill")
    gate.handle(EngineDown("ill"), 0.0)
    assert engines_of([ask(gate, number) for number in range(10)]) == ["well"] * 4

    assert engines_of(gate.handle(EngineUp("ill", trial=True), 1.0)) == ["ill"]
    assert isinstance(ask(gate, 10, 1.0), Queue)


def test_an_arrival_may_be_the_trial_and_the_next_go_elsewhere() -> None:
    gate = gate_of("well", "ill")
    gate.handle(EngineDown("ill"), 0.0)
    gate.handle(EngineUp("ill", trial=True), 1.0)
    assert sorted(engines_of([ask(gate, number, 1.0) for number in range(5)])) == ["ill"] + ["well"] * 4


def test_when_the_trial_has_succeeded_everybody_may_come() -> None:
    gate = gate_of("well", "ill")
    gate.handle(EngineDown("ill"), 0.0)
    for number in range(10):
        ask(gate, number)
    gate.handle(EngineUp("ill", trial=True), 1.0)
    assert engines_of(gate.handle(EngineUp("ill"), 1.5)) == ["ill"] * 3


def test_the_end_of_the_trial_alone_lets_nobody_in() -> None:
    """Whether it was a success is not the permit's to say."""
    gate = gate_of("well", "ill")
    gate.handle(EngineDown("ill"), 0.0)
    for number in range(10):
        ask(gate, number)
    (trial,) = gate.handle(EngineUp("ill", trial=True), 1.0)
    gate.handle(Finished(trial.attempt, 100, 100), 2.0)
    assert engines_of(gate.handle(Released(trial.attempt), 2.0)) == []


def test_a_second_trial_may_follow_one_that_showed_nothing() -> None:
    gate = gate_of("well", "ill")
    gate.handle(EngineDown("ill"), 0.0)
    for number in range(10):
        ask(gate, number)
    for now in (1.0, 2.0):
        assert engines_of(gate.handle(EngineUp("ill", trial=True), now)) == ["ill"]


def test_a_new_engine_that_has_not_answered_takes_nothing_before_it_is_up() -> None:
    gate = gate_of("well")
    for number in range(6):
        ask(gate, number)
    unseen = EngineSettings("unseen", 4, prior=steady_prior(2.0), is_up=False)
    well = EngineSettings("well", 4, prior=steady_prior(2.0), is_up=False)
    lane = Settings((PATIENT,), (well, unseen))
    # What is said of an engine that is there already means nothing.
    assert gate.reconfigure(lane, 1.0) == ()
    assert [engine.up for engine in gate.snapshot(1.0).engines] == [True, False]
    assert engines_of(gate.handle(EngineUp("unseen"), 2.0)) == ["unseen"] * 2


def test_the_next_arrival_is_the_trial_also_where_another_engine_is_cheaper() -> None:
    """With little to do the cheaper one took every request, and the other was on trial for good."""
    engines = [
        EngineSettings("well", 4, prior=steady_prior(1.0)),
        EngineSettings("ill", 4, prior=steady_prior(2.0)),
    ]
    gate = governor(PATIENT, engines=tuple(engines))
    gate.handle(EngineDown("ill"), 0.0)
    gate.handle(EngineUp("ill", trial=True), 1.0)
    assert engines_of([ask(gate, number, 1.0) for number in range(2)]) == ["ill", "well"]

    gate.handle(Finished(0, 100, 100), 3.0)
    gate.handle(Released(0), 3.0)
    gate.handle(EngineUp("ill"), 3.0)
    gate.handle(Finished(1, 100, 100), 4.0)
    gate.handle(Released(1), 4.0)
    assert engines_of([ask(gate, 2, 5.0)]) == ["well"]
