"""One account of the sockets of this process: clients of all doors, engines, and what is kept free for the rest.

Every acceptor of connections asks it, so that no door can use up what another needs. An accepted client may want an
engine's connection beside its own; that one is kept for it, or a gate full of silent clients could reach no engine.
"""

import contextlib
import resource
from collections.abc import Callable
from typing import Final

_KEPT_FREE: Final = 100
"""Descriptors for listeners, logs, the admin door, what was accepted this turn, and lingering refusals."""
LINGERING: Final = 32
"""How many connections too many may stay for the moment that their refusal takes."""
_ENDLESS: Final = 1_000_000
RAISED_TO: Final = 65_536
"""Room for 32,718 clients, whose streams have 0.5 GB. Containers may open 2**30 files: idle clients would use up the memory first."""


def raise_soft_limit() -> None:
    """Let this process and its children open `RAISED_TO` files, where the hard limit allows it; a soft limit that is higher stays.

    The soft limit of 1,024 of most hosts is for programs that call select(2), which fails beyond it. Nothing that serves does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = RAISED_TO if hard == resource.RLIM_INFINITY else min(hard, RAISED_TO)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(
            OSError, ValueError
        ):  # a sandbox; on macOS a hard limit above the kernel's own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Descriptors:
    """Counts clients, and tells whether another one fits; `others` says how many other connections are open.

    Those are the ones to engines and of operators. `engine_share` of the room is theirs, whether they use it or not;
    what they use beyond it is no client's.
    """

    def __init__(self, others: Callable[[], int] = lambda: 0, *, engine_share: float = 0.0) -> None:
        if not 0.0 <= engine_share < 1.0:
            raise ValueError(f"engine_share is {engine_share}, at least 0 and less than 1 is possible")
        self._others = others
        self._engine_share = engine_share
        self.room = 0
        """Sockets that clients, engines and operators may have together."""
        self.clients = 0
        """Client connections that are open, also those that have not finished their TLS handshake."""
        self.measure()

    def measure(self) -> None:
        """Read the soft limit of open files (again)."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.room = _ENDLESS if soft == resource.RLIM_INFINITY else max(2, soft - _KEPT_FREE)

    @property
    def most_clients(self) -> int:
        """How many clients may be connected now; at least one."""
        kept = int(self.room * self._engine_share)
        return max(1, self.room - max(kept, self._others()))

    @property
    def overdrawn(self) -> bool:
        """Whether there are more clients than may be."""
        return self.clients > self.most_clients

    @property
    def crowded(self) -> bool:
        """Whether another client could not even be told that there are too many."""
        return self.clients > self.most_clients + LINGERING


class DoorClients:
    """The clients of one door: at most `most`, and no more than the account has room for; each is counted once."""

    def __init__(self, account: Descriptors, most: int | None) -> None:
        self.account = account
        self.most = most
        self._clients: set[object] = set()

    def enter(self, client: object) -> None:
        """Count a client that has been accepted, unless it is counted."""
        if client not in self._clients:
            self._clients.add(client)
            self.account.clients += 1

    def leave(self, client: object) -> None:
        """Count a client no more, if it is counted."""
        if client in self._clients:
            self._clients.discard(client)
            self.account.clients -= 1

    @property
    def overdrawn(self) -> bool:
        """Whether there are more than may be, here or in all."""
        return (self.most is not None and len(self._clients) > self.most) or self.account.overdrawn

    @property
    def crowded(self) -> bool:
        """Whether another one could not even be told that there are too many."""
        too_many = self.most is not None and len(self._clients) > self.most + LINGERING
        return too_many or self.account.crowded
