"""What a turn of the loop writes leaves at its end, whole and in order."""

from collections.abc import Callable
from typing import Any

from millgate.http1.wire.outbox import Outbox

MANY = 16
LARGE = b"x" * 65_536


class Turn:
    """A loop whose turn ends when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., Any]] = []
        self.outbox = Outbox(self.callbacks.append)

    def end(self) -> None:
        callbacks, self.callbacks[:] = list(self.callbacks), []
        for callback in callbacks:
            callback()


class Reader:
    """Remembers what was delivered, to all readers in one list."""

    def __init__(self, name: str, delivered: list[tuple[str, bytes]]) -> None:
        self.name = name
        self.delivered = delivered
        self.then: Callable[[], None] = lambda: None

    def deliver(self, data: bytes) -> None:
        self.delivered.append((self.name, data))
        self.then()


def test_letters_leave_in_the_order_of_sending_when_the_turn_ends() -> None:
    turn = Turn()
    delivered: list[tuple[str, bytes]] = []
    one, other = Reader("one", delivered), Reader("other", delivered)
    turn.outbox.put(one, b"1")
    turn.outbox.put(other, b"2")
    turn.outbox.put(one, b"3")
    assert delivered == []
    assert len(turn.callbacks) == 1
    turn.end()
    assert delivered == [("one", b"1"), ("other", b"2"), ("one", b"3")]


def test_every_turn_is_ended_anew() -> None:
    turn = Turn()
    delivered: list[tuple[str, bytes]] = []
    reader = Reader("one", delivered)
    for expected in (1, 2, 3):
        turn.outbox.put(reader, b"x")
        turn.end()
        assert len(delivered) == expected
    turn.outbox.send()
    assert len(delivered) == 3


def test_nobody_waits_for_more_than_a_few_others() -> None:
    turn = Turn()
    delivered: list[tuple[str, bytes]] = []
    reader = Reader("one", delivered)
    for _ in range(MANY):
        assert delivered == []
        turn.outbox.put(reader, b"x")
    assert len(delivered) == MANY
    turn.outbox.put(reader, b"y")
    turn.end()
    assert delivered[MANY:] == [("one", b"y")]


def test_what_is_large_takes_no_memory_while_the_turn_lasts() -> None:
    turn = Turn()
    delivered: list[tuple[str, bytes]] = []
    one, other = Reader("one", delivered), Reader("other", delivered)
    turn.outbox.put(one, b"before")
    turn.outbox.put(other, LARGE)
    assert delivered == [("one", b"before"), ("other", LARGE)]


def test_what_a_delivery_sends_is_delivered_too() -> None:
    turn = Turn()
    delivered: list[tuple[str, bytes]] = []
    one, other = Reader("one", delivered), Reader("other", delivered)
    replies = iter([b"reply"])

    def reply() -> None:
        for data in replies:
            turn.outbox.put(other, data)

    one.then = reply
    turn.outbox.put(one, b"1")
    turn.outbox.put(one, b"2")
    turn.end()
    turn.end()
    assert delivered == [("one", b"1"), ("one", b"2"), ("other", b"reply")]
