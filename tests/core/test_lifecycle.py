"""The legal lives of an attempt: every pair of state and news."""

import pytest

from core.world import governor
from millgate.core.decisions import Ended
from millgate.core.events import Arrived, ClientGone, Event, Failed, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.lifecycle import NEXT, State
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.words import FailureKind, Sent, Stage

NEWS: dict[type, Event] = {
    ClientGone: ClientGone(1),
    FirstToken: FirstToken(1),
    Finished: Finished(1, 10, 10),
    Failed: Failed(1, FailureKind.BROKEN, Sent.REQUEST),
    Released: Released(1),
}
PATHS: dict[State, tuple[Event, ...]] = {
    State.QUEUED: (Arrived(2, max_tokens=5), Arrived(1, max_tokens=5)),
    State.PREFILL: (Arrived(1),),
    State.DECODE: (Arrived(1), FirstToken(1)),
    State.DEPARTING: (Arrived(1), FirstToken(1), Finished(1)),
    State.OVER: (Arrived(1), FirstToken(1), Finished(1), Released(1)),
}


def _in_state(state: State) -> Governor:
    """Return a gate of one stream in which attempt 1 stands there."""
    gate = governor(LaneSettings("lane"), engines=(EngineSettings("engine", 1),))
    for number, event in enumerate(PATHS[state]):
        gate.handle(event, 0.1 * number)
    return gate


@pytest.mark.parametrize("kind", NEWS)
@pytest.mark.parametrize("state", State)
def test_every_pair_is_either_a_row_of_the_table_or_changes_nothing(state: State, kind: type) -> None:
    gate = _in_state(state)
    before = gate.snapshot(1.0)
    decisions = gate.handle(NEWS[kind], 1.0)
    after = _stands(gate)

    if (state, kind) not in NEXT:
        assert decisions == ()
        assert gate.snapshot(1.0) == before
    else:
        assert after is NEXT[state, kind]
        assert gate.snapshot(1.0) != before


def _stands(gate: Governor) -> State:
    attempt = gate._knowledge.attempts.by_number.get(1)
    return State.OVER if attempt is None else attempt.state


@pytest.mark.parametrize("kind", [ClientGone, Finished, Failed])
@pytest.mark.parametrize("state", [State.PREFILL, State.DECODE])
def test_what_ends_an_admitted_attempt_ends_it_once_and_its_permit_later(state: State, kind: type) -> None:
    gate = _in_state(state)
    (ended,) = gate.handle(NEWS[kind], 1.0)

    assert isinstance(ended, Ended)
    assert all(gate.handle(news, 1.0) == () for name, news in NEWS.items() if name is not Released)
    assert gate.snapshot(1.0).engines[0].running == 1
    gate.handle(Released(1), 1.0)
    assert gate.snapshot(1.0).engines[0].running == 0


def test_states_carry_the_words_of_the_stages() -> None:
    """A client_gone names the state in which it happened."""
    assert [Stage(state) for state in (State.QUEUED, State.PREFILL, State.DECODE)] == list(Stage)
    with pytest.raises(ValueError, match="departing"):
        Stage(State.DEPARTING)
