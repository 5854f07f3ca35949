"""A client that one replica refuses and that returns to another with its ticket: two cores, two clocks, one key."""

from typing import Any

import pytest

from core.governor.asking import gate_of
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, Finished, Released
from millgate.core.settings import LaneSettings
from millgate.core.words import Reason
from millgate.dialects.ticket import HEADER
from millgate.servers.http.arrivals import with_ticket
from millgate.servers.requests.tickets import TicketDesk

_KEY = b"k" * 32
_RUNNING = 10_000


class _Replica:
    """A gate with one stream, which is busy; its core began to count at `began`, and its wall clock is `ahead_s`."""

    def __init__(self, began: float, key: bytes = _KEY, ahead_s: float = 0.0, **lane: Any) -> None:
        self._began, self._ahead_s = began, ahead_s
        self._elapsed_s = 0.0
        self._attempts = 0
        self.gate = gate_of(LaneSettings("lane", **{"deadline_s": 60.0, "max_queue": 0} | lane), streams=1)
        self._desk = TicketDesk(lambda: self.now, key, lambda: 1.7e9 + self._ahead_s + self._elapsed_s)
        self.gate.handle(Arrived(_RUNNING, prompt_bytes=4, max_tokens=100), self.now)

    @property
    def now(self) -> float:
        return self._began + self._elapsed_s

    def asks(self, after_s: float, ticket: bytes = b"", **fields: Any) -> Any:
        self._elapsed_s = after_s
        self._attempts += 1
        arrival = Arrived(self._attempts, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
        arrival = with_ticket(arrival, self._desk, ticket) if ticket else arrival
        return self.gate.handle(arrival._replace(**fields), self.now)[0]

    def refuses(self, after_s: float = 0.0) -> tuple[float, bytes]:
        """Return the hint and the ticket of a client that asks now."""
        refused = self.asks(after_s)
        assert isinstance(refused, Yield)
        return refused.retry_after_s, self._desk.line("", refused).removeprefix(HEADER + b": ").strip()

    def ends(self, after_s: float) -> tuple[Any, ...]:
        self._elapsed_s = after_s
        self.gate.handle(Finished(_RUNNING, 1, 100), self.now)
        return self.gate.handle(Released(_RUNNING), self.now)


def test_a_client_that_is_due_is_held_by_another_replica_and_admitted_first() -> None:
    hint_s, ticket = _Replica(5_000.0).refuses()
    other = _Replica(50.0)
    assert isinstance(other.asks(hint_s), Yield), "a newcomer"
    assert isinstance(other.asks(hint_s, ticket), Queue), "it was told to come now"
    (admitted,) = other.ends(hint_s + 0.1)
    assert isinstance(admitted, Admit)
    assert admitted.attempt == 2


def test_age_and_deadline_go_with_the_client() -> None:
    one, other = _Replica(5_000.0), _Replica(50.0, max_queue=10)
    hint_s, ticket = one.refuses(1.0)
    other.asks(1.5)
    older = other.asks(1.0 + hint_s, ticket)
    assert isinstance(older, Queue)
    assert older.place == 1, "it came before the other"
    told = other.gate.explain(Arrived(99, first_seen=51.0, prompt_bytes=400), other.now)
    assert told.deadline == 51.0 + 60.0


def test_a_ticket_is_good_although_clocks_differ_by_half_a_second() -> None:
    hint_s, ticket = _Replica(5_000.0).refuses()
    for ahead_s in (-0.5, 0.5):
        assert isinstance(_Replica(50.0, ahead_s=ahead_s).asks(hint_s + 0.5, ticket), Queue)


def test_a_replica_with_another_key_takes_no_ticket() -> None:
    hint_s, ticket = _Replica(5_000.0).refuses()
    assert isinstance(_Replica(50.0, b"o" * 32).asks(hint_s, ticket), Yield)


def test_a_ticket_is_used_once_at_each_replica() -> None:
    hint_s, ticket = _Replica(5_000.0).refuses()
    other = _Replica(50.0)
    assert isinstance(other.asks(hint_s, ticket), Queue)
    assert isinstance(other.asks(hint_s, ticket), Yield)


def test_a_client_that_comes_from_another_replica_counts_as_one_that_returns() -> None:
    """The client whose appointment lapses here has gone to another replica, and theirs come here: as many return as before one gate."""
    hint_s, ticket = _Replica(5_000.0).refuses()
    with_visitor, alone = _Replica(50.0), _Replica(50.0)
    with_visitor.asks(hint_s, ticket)
    for replica in (with_visitor, alone):
        replica.refuses(hint_s)
        replica.asks(hint_s + 60.0, fingerprint=lambda: 8)
    shares = [each.gate.snapshot(each.now).retries.attendance_first for each in (with_visitor, alone)]
    assert shares[0] > shares[1]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_touches_no_ticket_of_a_gate_alone(step_s: float) -> None:
    """Clients that had waited were newcomers, or had waited for an hour, when the clock of the host was set."""
    now, wall = 50.0, 1.7e9
    desk = TicketDesk(lambda: now, wall=lambda: wall)
    value = (
        desk.line("", Yield(1, Reason.SATURATED, 5.0, retry=True, first_seen=40.0))
        .removeprefix(HEADER + b": ")
        .strip()
    )
    now, wall = now + 5.0, wall + 5.0 + step_s
    ticket = desk.redeem(value, "")
    assert ticket is not None
    assert (ticket.first_seen, ticket.due_at, ticket.hint_s) == pytest.approx((40.0, 55.0, 5.0), abs=0.002)
