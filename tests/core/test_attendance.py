"""How likely do clients return: learned by kind and tenant, and bounded in memory."""

import pytest

from millgate.core.tickets import ClientKind
from millgate.core.tickets.attendance import Attendance


def test_clients_return_until_they_are_seen_to_stay_away() -> None:
    attendance = Attendance()

    assert attendance.shares()[ClientKind.FIRST] == 1.0
    assert attendance.shares()[ClientKind.RETURNED] == 1.0


def test_a_crowd_that_stays_away_is_believed_gone() -> None:
    attendance = Attendance()
    for _ in range(20):
        attendance.learn("ann", ClientKind.FIRST, attended=False)

    assert attendance.shares()[ClientKind.FIRST] < 0.1
    assert attendance.shares()[ClientKind.RETURNED] == 1.0


def test_a_tenant_that_stays_away_is_told_from_one_that_returns() -> None:
    attendance = Attendance()
    for _ in range(30):
        attendance.learn("gone", ClientKind.FIRST, attended=False)
        attendance.learn("here", ClientKind.FIRST, attended=True)
    share = attendance.shares()[ClientKind.FIRST]

    assert share == pytest.approx(0.5, abs=0.05)
    assert attendance.likelihood("gone", ClientKind.FIRST) * share < 0.05
    assert attendance.likelihood("here", ClientKind.FIRST) * share > 0.95
    assert attendance.likelihood("new", ClientKind.FIRST) == 1.0


def test_what_has_lapsed_and_is_not_yet_learned_counts_like_what_is() -> None:
    asked, learned = Attendance(), Attendance()
    for _ in range(3):
        learned.learn("ann", ClientKind.FIRST, attended=False)

    assert asked.shares([ClientKind.FIRST] * 3) == learned.shares()


def test_tenants_beyond_the_bound_are_forgotten_longest_silent_first() -> None:
    attendance = Attendance()
    for number in range(1_001):
        attendance.learn(f"tenant-{number}", ClientKind.FIRST, attended=number % 2 == 0)
    unlike = [attendance.likelihood(f"tenant-{number}", ClientKind.FIRST) for number in (0, 1, 2)]

    assert unlike[0] == 1.0
    assert unlike[1] < 1.0 < unlike[2]


def test_of_one_kind_the_same_part_is_expected_however_many_are_away() -> None:
    """A flood is refused by one forecast a tick, which another share would have made anew."""
    attendance = Attendance()
    for _ in range(7):
        attendance.learn("t", ClientKind.FIRST, attended=False)
    for _ in range(100):
        attendance.opens(ClientKind.FIRST)
        assert attendance.expected() == attendance.shares()[ClientKind.FIRST]
