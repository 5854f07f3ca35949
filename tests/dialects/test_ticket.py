"""A ticket proves when a request was first seen: to its own tenant, for two minutes, once; anything else is none."""

import pytest
from hypothesis import given, settings, strategies as some

from millgate.dialects.ticket import LONGEST_KEY, SHORTEST_KEY, VALID_S, Tickets

KEY = bytes(range(32))
NOW = 1_800_000_000.0

moderate = settings(max_examples=100)


def _tickets(most_used: int = 100, *, key: bytes = KEY, first_serial: int = 7) -> Tickets:
    return Tickets(key, first_serial, most_used)


@moderate
@given(some.text(max_size=20), some.floats(0.0, 3600.0), some.floats(0.1, 60.0), some.floats(0.0, 119.0))
def test_what_was_written_is_read_back_to_the_millisecond(
    tenant: str, age_s: float, hint_s: float, later_s: float
) -> None:
    tickets = _tickets()
    ticket = tickets.redeem(tickets.issue(tenant, NOW - age_s, NOW + hint_s, NOW), tenant, NOW + later_s)

    assert ticket is not None
    assert ticket.first_seen == pytest.approx(NOW - age_s, abs=0.002)
    assert ticket.due_at == pytest.approx(NOW + hint_s, abs=0.002)


def test_a_ticket_is_short_plain_ascii() -> None:
    value = _tickets().issue("tenant", NOW - 1.0, NOW + 1.0, NOW)

    assert len(value) == 48
    assert value.replace(b"-", b"").replace(b"_", b"").isalnum()


def test_a_ticket_is_good_once() -> None:
    tickets = _tickets()
    value = tickets.issue("t", NOW, NOW, NOW)

    assert tickets.redeem(value, "t", NOW + 1.0) is not None
    assert tickets.redeem(value, "t", NOW + 1.0) is None
    assert tickets.redeem(value, "t", NOW + VALID_S - 0.001) is None


def test_two_of_the_same_instant_are_two() -> None:
    tickets = _tickets()
    one, other = (tickets.issue("t", NOW, NOW, NOW) for _ in range(2))

    assert one != other
    assert tickets.redeem(one, "t", NOW) is not None
    assert tickets.redeem(other, "t", NOW) is not None


@pytest.mark.parametrize(
    ("later_s", "good"), [(-1.1, False), (-0.9, True), (VALID_S - 0.1, True), (VALID_S, False)]
)
def test_a_ticket_is_good_for_two_minutes_from_its_issue(later_s: float, good: bool) -> None:
    tickets = _tickets()
    value = tickets.issue("t", NOW, NOW, NOW)

    assert (tickets.redeem(value, "t", NOW + later_s) is not None) is good


def test_another_tenant_cannot_use_it_and_does_not_use_it_up() -> None:
    tickets = _tickets()
    value = tickets.issue("t", NOW, NOW, NOW)

    assert tickets.redeem(value, "u", NOW) is None
    assert tickets.redeem(value, "t", NOW) is not None


def test_a_fleet_that_shares_a_key_shares_tickets_and_no_one_else_does() -> None:
    value = _tickets().issue("t", NOW, NOW, NOW)

    assert _tickets(first_serial=99).redeem(value, "t", NOW) is not None
    assert _tickets(key=bytes(32)).redeem(value, "t", NOW) is None


@moderate
@given(some.integers(0, 47), some.integers(0, 127))
def test_a_ticket_with_any_character_changed_is_none(index: int, character: int) -> None:
    tickets = _tickets()
    value = tickets.issue("t", NOW, NOW, NOW)
    forged = value[:index] + bytes([character]) + value[index + 1 :]

    assert (tickets.redeem(forged, "t", NOW) is None) is (forged != value)


@moderate
@given(some.one_of(some.binary(max_size=100), some.binary(min_size=48, max_size=48)))
def test_bytes_from_anywhere_are_no_ticket_and_no_error(value: bytes) -> None:
    assert _tickets().redeem(value, "t", NOW) is None


def test_inv_5_used_tickets_are_remembered_up_to_a_bound_and_beyond_it_none_is_taken() -> None:
    """INV-5: never twice, even when nothing more can be remembered; room comes back with time."""
    tickets = _tickets(most_used=3)
    values = [tickets.issue("t", NOW, NOW, NOW + number) for number in range(5)]
    taken = [tickets.redeem(value, "t", NOW + 10.0) is not None for value in values]

    assert taken == [True, True, True, False, False]
    assert [tickets.redeem(value, "t", NOW + 11.0) for value in values] == [None] * 5
    assert tickets.redeem(values[3], "t", NOW + VALID_S + 2.5) is not None


@moderate
@given(some.lists(some.tuples(some.integers(0, 9), some.floats(0.0, 50.0)), max_size=60))
def test_inv_5_in_any_order_each_is_taken_at_most_once(steps: list[tuple[int, float]]) -> None:
    tickets, now = _tickets(most_used=4), NOW
    values, taken = [tickets.issue("t", NOW, NOW, NOW + 10.0 * number) for number in range(10)], []
    for which, step_s in steps:
        now += step_s
        if tickets.redeem(values[which], "t", now) is not None:
            taken.append(which)

    assert len(set(taken)) == len(taken)
    assert len(tickets._used) == len(tickets._order) <= 4


@pytest.mark.parametrize("length", [0, SHORTEST_KEY - 1, LONGEST_KEY + 1])
def test_a_key_of_a_wrong_length_is_refused_and_not_told(length: int) -> None:
    with pytest.raises(ValueError, match=f"a ticket key has 32 to 64 bytes, this one has {length}$"):
        _tickets(key=b"k" * length)


def test_a_clock_that_is_set_back_leaves_room_for_used_tickets() -> None:
    """A host that began with a clock of next year took no ticket after so many for the whole year."""
    tickets = _tickets(2)
    ahead = NOW + 365 * 86_400.0
    for _ in range(2):
        assert tickets.redeem(tickets.issue("t", ahead, ahead, ahead), "t", ahead) is not None
    value = tickets.issue("t", NOW, NOW, NOW)

    assert tickets.redeem(value, "t", NOW) is not None
    assert tickets.redeem(value, "t", NOW) is None
