"""What one turn of the loop writes, sent together at its end.

A write to a socket wakes the process at its other end, and the waking costs the writer more than the write. It is 11 of the
61 us of a refusal, 15 of the 75 us of a relayed request (`make bench`, two processes on two cores). Between two writes
that follow each other at once the reader has no time to fall asleep again.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

_LETTERS: Final = 16
"""No answer waits longer than it takes to make so many: half a millisecond."""
_LARGE_BYTES: Final = 65_536
"""Data of this size leave at once: what waits is bounded by letters, each below this."""


class Addressee(Protocol):
    """A connection, as the outbox sees it."""

    def deliver(self, data: bytes) -> None:
        """Write to the transport, or nowhere when it is gone."""


class Outbox:
    """Keeps what connections send until the loop has read every socket that was ready, in the order of sending.

    Code that closes, half-closes or cuts a transport calls `send` first. `soon` is the loop's `call_soon`.
    """

    def __init__(self, soon: Callable[[Callable[..., Any]], object]) -> None:
        self._soon = soon
        self._letters: list[tuple[Addressee, bytes]] = []

    def put(self, addressee: Addressee, data: bytes) -> None:
        """Deliver these bytes before the loop looks at its sockets again."""
        letters = self._letters
        letters.append((addressee, data))
        count = len(letters)
        if count >= _LETTERS or len(data) >= _LARGE_BYTES:
            self.send()
        elif count == 1:
            self._soon(self.send)

    def send(self) -> None:
        """Deliver all that waits; again is harmless."""
        letters = self._letters
        if letters:
            self._letters = []
            for addressee, data in letters:
                addressee.deliver(data)
