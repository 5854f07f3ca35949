"""Two waves of 20 whose refused 19 stay away, by the line door: peers that close have no appointment any more.

One engine, cap 1, an answer takes a second. What is said of the core here is said by its event `Withdrawn`, which the
line door posts when a connection closes.
"""

import pytest

from core.world import Client, World, primitive
from millgate.core.decisions import Admit, Yield
from millgate.core.events import Arrived, Finished, FirstToken, Released, Withdrawn
from millgate.core.governor import Governor

_WAVE = 20
_GAP_S = 25.0


def _ask(gate: Governor, attempt: int, body: int, now: float, tenant: str = "") -> Admit | Yield:
    arrival = Arrived(attempt, tenant, prompt_bytes=400, max_tokens=100, fingerprint=lambda: body)
    (decision,) = gate.handle(arrival, now)
    assert isinstance(decision, Admit | Yield)
    return decision


def _hint_s(gate: Governor, attempt: int, body: int, now: float) -> float:
    decision = _ask(gate, attempt, body, now)
    assert isinstance(decision, Yield)
    return decision.retry_after_s


def _refused_wave(gate: Governor) -> list[float]:
    """Let one in and refuse the others; return their hints."""
    assert isinstance(_ask(gate, 1, 1, 0.0), Admit)
    return [_hint_s(gate, number, number, 0.0) for number in range(2, _WAVE + 1)]


def test_peers_that_have_closed_are_not_before_a_newcomer() -> None:
    gate = primitive(1, 1.0)
    hints = _refused_wave(gate)
    behind_all_s = _hint_s(gate, 21, 21, 0.1)
    gate.handle(Withdrawn(tuple(range(2, 22))), 0.2)
    alone_s = _hint_s(gate, 22, 22, 0.3)

    assert behind_all_s > max(hints) - 1.0 > 15.0
    assert alone_s <= hints[0]
    assert gate.snapshot(0.3).retries.appointments == 1


def test_a_withdrawal_leaves_the_others_hints_and_the_belief_in_them_alone() -> None:
    """One of two halves closes: the other's appointments stay, and count as much as before."""
    gate, other = primitive(1, 1.0), primitive(1, 1.0)
    _refused_wave(gate)
    assert isinstance(_ask(other, 1, 1, 0.0), Admit)
    for number in range(2, 11):
        _hint_s(other, number, number, 0.0)
    gate.handle(Withdrawn(tuple(range(11, 21))), 0.2)

    assert gate.snapshot(0.2).retries.appointments == other.snapshot(0.2).retries.appointments == 9
    # Ten more before it would be ten seconds more; hints differ by a little so that clients do not come together.
    assert _hint_s(gate, 99, 99, 0.3) == pytest.approx(_hint_s(other, 99, 99, 0.3), abs=0.1)


def test_one_that_has_closed_and_comes_again_is_recognised_and_stands_before_a_newcomer() -> None:
    """A client with a connection for each job: what it loses is its claim on a slot, not its age."""
    gate = primitive(1, 1.0)
    _refused_wave(gate)
    gate.handle(Withdrawn((10,)), 0.1)
    back_s = _hint_s(gate, 31, 10, 0.5)
    newcomer_s = _hint_s(gate, 32, 32, 0.5)

    assert gate.snapshot(0.5).retries.recognised == 1
    assert back_s < newcomer_s - 5.0


def test_one_that_has_closed_and_is_back_at_its_hint_is_served_as_if_it_had_stayed() -> None:
    decisions = []
    for withdrawn in ((), (2,)):
        gate = primitive(1, 1.0)
        hint_s = _refused_wave(gate)[0]
        gate.handle(Withdrawn(withdrawn), 0.1)
        gate.handle(FirstToken(1), 0.5)
        gate.handle(Finished(1, 100, 100), 1.0)
        gate.handle(Released(1), 1.0)
        decisions.append(_ask(gate, 31, 2, hint_s))

    assert all(isinstance(decision, Admit) for decision in decisions)


def test_what_was_never_promised_or_is_already_withdrawn_withdraws_nothing() -> None:
    gate = primitive(1, 1.0)
    gate.handle(Withdrawn((7,)), 0.0)
    _refused_wave(gate)
    gate.handle(Withdrawn((2, 2, 77)), 0.1)
    gate.handle(Withdrawn((2,)), 0.2)
    gate.handle(Withdrawn((3,), tenant="another"), 0.2)

    assert gate.snapshot(0.3).retries.appointments == _WAVE - 2
    assert gate.snapshot(0.3).retries.records == _WAVE - 1


def test_a_withdrawn_record_ends_when_it_is_no_longer_known() -> None:
    gate = primitive(1, 1.0)
    _refused_wave(gate)
    gate.handle(Withdrawn(tuple(range(2, 21))), 0.1)
    gate.handle(FirstToken(1), 0.5)
    gate.handle(Finished(1, 100, 100), 1.0)
    gate.handle(Released(1), 1.0)

    assert gate.snapshot(4_000.0).retries.records == 0


@pytest.mark.parametrize("service_s", [0.5, 1.0, 2.0])
def test_the_third_wave_of_twenty_is_served_nearly_as_if_it_were_alone(service_s: float) -> None:
    world = World(primitive(1, service_s))
    waves = []
    for number, (starts_at, returns) in enumerate(((0.0, False), (_GAP_S, False), (_GAP_S + 3.0, True))):
        wave = [
            Client(body, service_s, body=body, returns=returns)
            for body in range(number * _WAVE + 1, (number + 1) * _WAVE + 1)
        ]
        for client in wave:
            world.come(client, starts_at)
        if not returns:  # an event after all of them: the refused close their connections
            away = tuple(client.body for client in wave)
            world.at(starts_at + 0.01, lambda away=away: world.send(Withdrawn(away)))  # type: ignore[misc]
        waves.append(wave)
    world.run()
    ends_at = [client.admitted_at + service_s for client in waves[-1] if client.admitted_at is not None]

    assert len(ends_at) == _WAVE
    assert max(ends_at) - (_GAP_S + 3.0) <= 1.25 * _WAVE * service_s
    assert max(client.attempts for client in waves[-1]) <= 2
