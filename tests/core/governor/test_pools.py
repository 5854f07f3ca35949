"""Routes and pools: a full engine stops only what needs it, and promises are counted by pool."""

from dataclasses import replace
from functools import partial

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, EngineDown, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import Reason

_PATIENT = LaneSettings("lane", deadline_s=60.0)


def _engine(name: str, *models: str) -> EngineSettings:
    return EngineSettings(name, 1, models=models, prior=steady_prior(2.0))


def _gate(*engines: EngineSettings, lane: LaneSettings = _PATIENT) -> Governor:
    return governor(lane, engines=engines)


def _ask(gate: Governor, attempt: int, model: str, now: float = 0.0) -> Admit | Queue | Yield:
    arrival = Arrived(attempt, model=model, prompt_bytes=400, max_tokens=100, fingerprint=lambda: attempt)
    decision = gate.handle(arrival, now)[0]
    assert isinstance(decision, Admit | Queue | Yield)
    return decision


def test_a_full_engine_does_not_stop_the_work_of_another() -> None:
    gate = _gate(_engine("a", "small"), _engine("b", "big"))
    _ask(gate, 1, "small")
    _ask(gate, 2, "big")
    assert isinstance(_ask(gate, 3, "small"), Queue)
    assert isinstance(_ask(gate, 4, "big"), Queue)

    gate.handle(Finished(2, 100, 100), 1.0)
    released = gate.handle(Released(2), 1.0)

    assert [type(each) for each in released] == [Admit]
    assert released[0].attempt == 4


def test_a_free_engine_admits_at_once_while_others_wait_elsewhere() -> None:
    gate = _gate(_engine("a", "small"), _engine("b", "big"))
    _ask(gate, 1, "small")
    _ask(gate, 2, "small")

    assert isinstance(_ask(gate, 3, "big"), Admit)


def test_hints_count_only_those_who_want_the_same_engines() -> None:
    gate = _gate(_engine("a", "small"), _engine("b", "big"), lane=LaneSettings("lane", max_queue=0))
    _ask(gate, 1, "small")
    _ask(gate, 2, "big")
    far = [_ask(gate, 10 + each, "small") for each in range(5)][-1]
    near = _ask(gate, 20, "big")

    assert isinstance(far, Yield)
    assert isinstance(near, Yield)
    assert far.retry_after_s > 4 * near.retry_after_s


def test_engines_that_share_a_model_are_one_pool() -> None:
    gate = _gate(_engine("a", "small", "big"), _engine("b", "big"))
    _ask(gate, 1, "small")
    _ask(gate, 2, "big")
    assert isinstance(_ask(gate, 3, "small"), Queue)
    assert isinstance(_ask(gate, 4, "big"), Queue)

    gate.handle(Finished(2, 100, 100), 1.0)
    freed = gate.handle(Released(2), 1.0)

    assert [each.attempt for each in freed] == [4], "b does not serve the small model, whose turn it was"


def test_a_model_that_nobody_lists_goes_to_the_only_pool() -> None:
    assert isinstance(_ask(_gate(_engine("a", "base")), 1, "an-adapter"), Admit)
    refused = _ask(_gate(_engine("a", "small"), _engine("b", "big")), 1, "an-adapter")
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.NO_ENGINE


def test_what_waits_finds_its_engines_again_after_a_reload() -> None:
    gate = _gate(_engine("a", "small"), _engine("b", "big"))
    _ask(gate, 1, "small")
    _ask(gate, 2, "small")
    moved = Settings((_PATIENT,), (_engine("a", "small"), _engine("b", "big", "small")))

    admitted = gate.reconfigure(moved, 1.0)

    assert [(type(each), each.attempt) for each in admitted] == [(Admit, 2)]


def test_what_one_engine_alone_can_answer_waits_for_that_one_after_a_reload_too() -> None:
    gate = _gate(_engine("a"), _engine("b"))
    for attempt, engine in ((1, "a"), (2, "b"), (3, "a")):
        gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=100, engine=engine), 0.0)
    gate.reconfigure(Settings((_PATIENT,), (_engine("a"), _engine("b"))), 0.5)

    gate.handle(Finished(2, 100, 100), 1.0)
    assert gate.handle(Released(2), 1.0) == ()

    gate.handle(Finished(1, 100, 100), 1.5)
    (admit,) = gate.handle(Released(1), 1.5)
    assert isinstance(admit, Admit)
    assert (admit.attempt, admit.legs[0].engine) == (3, "a")


def test_who_waits_for_the_last_engine_of_its_model_is_refused_when_it_goes() -> None:
    gate = _gate(_engine("a", "small"), _engine("b", "big"))
    for attempt in (1, 2):
        _ask(gate, attempt, "small")
    decisions = gate.handle(EngineDown("a"), 1.0)

    assert isinstance(decisions[0], Yield)
    assert (decisions[0].attempt, decisions[0].reason) == (2, Reason.NO_ENGINE)


def test_what_waits_for_a_model_is_refused_when_a_reload_takes_its_last_engine() -> None:
    """The other engine is full, so it is no lane's turn: only the reload itself can find what waits in vain."""
    lanes = (_PATIENT, replace(_PATIENT, name="other"))
    gate = governor(*lanes, engines=(_engine("a", "small"), _engine("b", "big")))
    for attempt, model in enumerate(("small", "big", "big")):
        _ask(gate, attempt, model)

    decisions = gate.reconfigure(Settings(lanes, (_engine("a", "small"), _engine("c", "other"))), 1.0)

    assert isinstance(decisions[0], Yield)
    assert (decisions[0].attempt, decisions[0].reason) == (2, Reason.NO_ENGINE)


def test_the_early_warning_is_read_while_no_engine_is_up() -> None:
    gate = _gate(_engine("a"))
    gate.handle(EngineDown("a"), 1.0)
    _ask(gate, 1, "any", 2.0)

    assert gate.snapshot(3.0).pools[0].warning.occupancy == 0.0


def test_a_reload_takes_another_bound_of_appointments() -> None:
    gate = _gate(_engine("a"), lane=LaneSettings("lane", max_queue=0))
    for number in range(6):
        _ask(gate, number, "small")
    assert gate.snapshot(0.0).retries.records == 5

    gate.reconfigure(Settings((LaneSettings("lane", max_queue=0),), (_engine("a"),), max_appointments=6), 0.0)
    for number in range(6, 12):
        _ask(gate, number, "small")

    assert (gate.snapshot(0.0).retries.records, gate.snapshot(0.0).retries.appointments_dropped) == (6, 5)


def test_clients_of_every_model_keep_their_places_when_a_reload_adds_engines_before_theirs() -> None:
    """Only the first pool kept them: clients of the others were newcomers, and what labels its retries was charged for them."""
    lane = LaneSettings("lane", max_queue=0)
    small, big = _engine("a", "small"), _engine("b", "big")
    gate = _gate(small, big, lane=lane)
    for attempt, model in enumerate(("small", "big", "small", "big")):
        told = _ask(gate, attempt, model)
    assert isinstance(told, Yield)

    gate.reconfigure(Settings((lane,), (_engine("c", "new"), small, big)), 0.5)

    for body, model in ((2, "small"), (3, "big")):
        returned = Arrived(9, model=model, prompt_bytes=400, max_tokens=100, fingerprint=partial(int, body))
        assert gate.explain(returned, told.retry_after_s).recognised, model


def test_engines_under_new_names_go_on_with_the_clients_of_those_that_are_gone() -> None:
    lane = LaneSettings("lane", max_queue=0)
    gate = _gate(_engine("a"), lane=lane)
    _ask(gate, 1, "any")
    assert isinstance(_ask(gate, 2, "any"), Yield)

    gate.reconfigure(Settings((lane,), (_engine("b"),)), 0.5)

    assert gate.explain(Arrived(9, model="any", prompt_bytes=400, fingerprint=lambda: 2), 1.0).recognised
