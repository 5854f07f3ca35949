"""The bounds of the book of appointments, and the age by which a queue ranks a client that is put before an older one."""

import tracemalloc
from random import Random

import pytest

from core.return_records import book_of, found_by, new_record, refused_again
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.tickets.appointments import FORGOTTEN_PER_EVENT, Appointments


def test_inv_5_a_burst_that_runs_out_together_is_forgotten_a_few_per_event() -> None:
    appointments = Appointments(10_000)
    for number in range(10_000):
        appointments.leave(new_record(body=number))
    left: list[int] = []
    while appointments.records:
        appointments.expire(100.0 + len(left))
        left.append(appointments.records)
    assert left[0] == 10_000 - FORGOTTEN_PER_EVENT
    assert len(left) == -(-10_000 // FORGOTTEN_PER_EVENT)


@pytest.mark.parametrize("tenants", [1, 100, 1_000])
def test_inv_5_a_hundred_thousand_waiting_clients_take_less_than_30_mb(tenants: int) -> None:
    """A tenth of them, by a tenth of the tenants, in a tenth of the memory; no body is there twice."""
    dice = Random(1)
    records = [
        (f"t{number % tenants}", dice.getrandbits(64), number * 1e-4, 10.0 + dice.random())
        for number in range(10_000)
    ]
    tracemalloc.start()
    try:
        appointments = Appointments(10_000)
        for tenant, body, at, due_at in records:
            assert appointments.leave(
                new_record(at, due_at, tenant=tenant, body=body, open_until=due_at + 1.0)
            )
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 3_000_000


def test_inv_5_a_crowd_of_equal_bodies_costs_a_few_looks_and_the_memory_of_ends_stays_in_proportion() -> None:
    appointments = Appointments(20_000)
    for number in range(20_000):
        assert appointments.leave(new_record(number * 1e-4, 10.0 + number * 1e-4, body=0))
    assert appointments.match("t", 0, 25.0, 1) is None
    for _ in range(50_000):
        found = found_by(appointments, new_record(body=0), 10.0)
        appointments.take(found)
        assert appointments.leave(refused_again(found, known_until=20.0, due_at=11.0, open_until=12.0))
    assert appointments.records == 20_000
    assert len(appointments._ends) <= 2 * (20_000 + 1_000) + 1


def test_below_a_bound_that_a_reload_has_lowered_one_that_ends_makes_no_room() -> None:
    """What would be decided is asked before what is over is forgotten, and decided after."""
    appointments = book_of(*[new_record(body=number) for number in range(9)])
    assert appointments.leave(new_record(0.0, None, body=9, known_until=5.0))
    appointments.keep_at_most(4)
    assert not appointments.has_room_for("t", 6.0)
    appointments.expire(6.0)
    assert appointments.records == 9
    assert not appointments.has_room_for("t", 6.0)


def test_a_place_before_an_older_one_is_ranked_as_old_as_that() -> None:
    """So a queue in which both wait keeps their turns."""
    long = [new_record(float(at), tenant="long", body=at) for at in (1, 2, 3)]
    appointments = book_of(*long)
    short = new_record(4.0, tenant="short")
    appointments.leave(short)
    assert [found_by(appointments, each).as_old_as for each in (*long, short)] == [1.0, 2.0, 3.0, 2.0]
    later = new_record(5.0, tenant="third")
    appointments.leave(later)
    assert found_by(appointments, later).as_old_as == 2.0


def test_it_is_ranked_no_older_than_it_is_told() -> None:
    appointments = book_of(*[new_record(float(at), tenant="long", body=at) for at in (1, 2, 3)])
    short = new_record(4.0, tenant="short")
    known = short.known_from, short.known_until, short.due_at, short.open_until
    appointments.leave(ReturnRecord("short", 7, 4.0, short.number, *known, as_old_as=2.5))
    assert found_by(appointments, short).as_old_as == 2.5


def test_who_stands_behind_everybody_or_has_no_place_is_ranked_by_its_own_age() -> None:
    first, second, gone = (
        new_record(1.0, body=1),
        new_record(2.0, body=2),
        new_record(3.0, None, tenant="gone"),
    )
    appointments = book_of(first, second, gone)
    assert [found_by(appointments, each).as_old_as for each in (first, second, gone)] == [1.0, 2.0, 3.0]


def test_whose_place_has_ended_is_ranked_by_its_own_age() -> None:
    appointments = book_of(*[new_record(float(at), tenant="long", body=at, open_until=30.0) for at in (1, 2)])
    short = new_record(4.0, tenant="short", open_until=12.0)
    appointments.leave(short)
    assert found_by(appointments, short).as_old_as == 2.0
    appointments.expire(13.0)
    assert found_by(appointments, short, 13.5).as_old_as == 4.0


def test_records_without_an_appointment_take_the_place_of_none_and_a_half_of_the_room_at_most() -> None:
    """A tenant that floods its quota with bodies of its own put all others out of the line of engines."""
    appointments = Appointments(10)
    for number in range(4):
        assert appointments.leave(new_record(0.0, 10.0, tenant="quiet", body=number))
    kept = [appointments.leave(new_record(0.0, None, tenant="flood", body=number)) for number in range(20)]
    assert kept == [True] * 5 + [False] * 15
    assert appointments.open == 4

    assert appointments.leave(new_record(1.0, 11.0, tenant="quiet", body=9))
    assert (appointments.open, appointments.records) == (5, 10)
