"""Clients that were told when to return and never do: the next crowd does not wait for them."""

from itertools import pairwise

import pytest

from core.world import Client, World, primitive
from millgate.core.events import Tick

_WAVE = 20
_GAP_S = 25.0


def _third_wave(service_s: float, tenants: int = 1) -> list[Client]:
    """Play two waves whose refused clients stay away, and one that keeps its hints; return the last, served."""
    world = World(primitive(1, service_s))
    number, waves = 0, []
    for starts_at, returns in ((0.0, False), (_GAP_S, False), (_GAP_S + 3.0, True)):
        wave = []
        for _ in range(_WAVE):
            number += 1
            wave.append(Client(number, service_s, body=number, returns=returns, tenant=str(number % tenants)))
            world.come(wave[-1], starts_at)
        waves.append(wave)
    world.run()
    return waves[-1]


@pytest.mark.parametrize("service_s", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("tenants", [1, 3])
def test_a_wave_after_two_that_never_returned_is_served_nearly_as_if_it_were_alone(
    service_s: float, tenants: int
) -> None:
    wave = _third_wave(service_s, tenants)
    admitted_at = [client.admitted_at for client in wave if client.admitted_at is not None]

    assert len(admitted_at) == _WAVE
    assert max(admitted_at) + service_s - (_GAP_S + 3.0) <= 1.25 * _WAVE * service_s
    assert max(client.attempts for client in wave) <= (4 if tenants == 1 else 5)


def test_the_learned_attendance_of_either_kind_is_in_the_snapshot() -> None:
    gate = primitive(1, 1.0)
    calm = gate.snapshot(0.0).retries
    world = World(gate)
    for number in range(_WAVE):
        world.come(Client(number, 1.0, body=number, returns=False), 0.0)
    world.run()
    looked = gate.snapshot(120.0).retries
    gate.handle(Tick(), 120.0)
    gone = gate.snapshot(120.0).retries

    assert (calm.attendance_first, calm.attendance_returned) == (1.0, 1.0)
    assert looked.attendance_first == gone.attendance_first < 0.2
    assert gone.attendance_returned == 1.0


def test_those_who_return_are_told_a_true_time_the_second_time() -> None:
    """The first hints of the third wave are guesses of who is there; a client that has returned is counted whole."""
    wave = _third_wave(1.0)
    second_hints = sorted(client.yields[1].retry_after_s for client in wave if len(client.yields) > 1)
    spaced_s = [later - sooner for sooner, later in pairwise(second_hints)]

    assert len(second_hints) >= _WAVE // 2
    assert sum(spaced_s) / len(spaced_s) >= 0.8
