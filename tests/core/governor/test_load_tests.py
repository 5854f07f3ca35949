"""Load tools send one body from every client, at once and again: those are first attempts, not retries."""

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Admit, Yield
from millgate.core.events import Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings
from millgate.core.words import DeadlineFrom, Reason

_CLIENTS = 60


def _refusals(gate: Governor, retry_count: int | None) -> dict[Reason, int]:
    """Let sixty clients ask for the same thing every second, whatever they are told; count the reasons of refusals."""
    reasons: dict[Reason, int] = {}
    running: list[int] = []
    for attempt in range(_CLIENTS * 10):
        now = attempt / _CLIENTS
        if running and not attempt % _CLIENTS:
            for each in running:
                gate.handle(Finished(each, 100, 100), now)
                gate.handle(Released(each), now)
            running.clear()
        label = None if attempt < _CLIENTS else retry_count
        decision = ask(gate, attempt, now, fingerprint=lambda: 7, retry_count=label)
        if isinstance(decision, Admit):
            running.append(attempt)
        elif isinstance(decision, Yield):
            reasons[decision.reason] = reasons.get(decision.reason, 0) + 1
    return reasons


def _gate() -> Governor:
    lane = LaneSettings("lane", deadline_s=60.0, deadline_from=DeadlineFrom.ATTEMPT, max_queue=0)
    return gate_of(lane, streams=4, retry_budget=True)


def test_identical_bodies_of_sixty_load_clients_are_not_taken_for_retries() -> None:
    reasons = _refusals(_gate(), None)
    assert reasons[Reason.SATURATED] > 400
    assert Reason.RETRY_BUDGET not in reasons


def test_the_same_crowd_with_labels_is_charged() -> None:
    assert _refusals(_gate(), 1)[Reason.RETRY_BUDGET] > 100
