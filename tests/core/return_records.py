"""Records of refused requests as tests need them, and what the book of appointments says of them."""

from itertools import count

from millgate.core.tickets import SOONEST_RETURN_S
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.tickets.appointments import Appointments

NUMBERS = count(1)


def new_record(
    first_seen: float = 0.0,
    due_at: float | None = 10.0,
    *,
    tenant: str = "t",
    body: int = 7,
    known_until: float = 20.0,
    open_until: float = 12.0,
) -> ReturnRecord:
    """Return a record of a request that was told to be back at `due_at`; None of one that was told nothing."""
    until = 0.0 if due_at is None else open_until
    known_from = first_seen + SOONEST_RETURN_S
    return ReturnRecord(tenant, body, first_seen, next(NUMBERS), known_from, known_until, due_at, until)


def found_by(appointments: Appointments, record: ReturnRecord, now: float | None = None) -> ReturnRecord:
    """Return the record as `match` returns it to a labelled retry of its own body at its own time."""
    at = (record.due_at or record.known_from) if now is None else now
    found = appointments.match(record.tenant, record.fingerprint, at, 1)
    assert found is not None
    return found


def refused_again(found: ReturnRecord, **change: float) -> ReturnRecord:
    """Return the record that a request leaves that was found and is refused again, but for these fields."""
    names = (
        "tenant fingerprint first_seen number known_from known_until due_at open_until lined_up_at "
        "early_returns turn"
    )
    return ReturnRecord(**{name: getattr(found, name) for name in names.split()} | change)


def book_of(*records: ReturnRecord, bound: int = 100) -> Appointments:
    """Return a book with these records."""
    appointments = Appointments(bound)
    for record in records:
        assert appointments.leave(record)
    return appointments


def rank_of(appointments: Appointments, tenant: str, lined_up_at: float, number: int, now: float) -> int:
    """Return the fair place (1 is next) of a request of this age among those who are expected back."""
    return appointments.stand(tenant, lined_up_at, number, now).place
