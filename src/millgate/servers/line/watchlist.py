"""When to look at which connection next: thousands that are silent cost nothing until their time has come."""

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from millgate.http1.client.sweep import SWEEP_S
from millgate.servers.line.connection import LineConnection

_STALE_DUES: Final = 1000
"""The heap of due times may hold so many entries of closed connections, and a few per open one (INV-5)."""


class Watchlist:
    """The due times of these open connections, earliest first; the set is its owner's."""

    __slots__ = ("_connections", "_dues", "_next_watch")

    def __init__(self, connections: set[LineConnection]) -> None:
        self._connections = connections
        # An entry that is not its connection's `watched_at` is stale.
        self._dues: list[tuple[float, int, LineConnection]] = []
        self._next_watch = count().__next__

    def __len__(self) -> int:
        """Return how many due times are kept, stale ones included."""
        return len(self._dues)

    def watch(self, connection: LineConnection, earliest: float = 0.0) -> None:
        """Look at this connection when it is due, which may have become earlier, and not before `earliest`."""
        at = max(connection.due(), earliest)
        if at < connection.watched_at:
            connection.watched_at = at
            if len(self._dues) > 4 * (len(self._connections) + _STALE_DUES):
                self._dues = [each for each in self._dues if each[2] in self._connections]
                heapify(self._dues)
            heappush(self._dues, (at, self._next_watch(), connection))

    def check(self, now: float) -> None:
        """Look at the connections whose time has come."""
        while self._dues and self._dues[0][0] <= now:
            at, _, connection = heappop(self._dues)
            if at != connection.watched_at or connection not in self._connections:
                continue
            try:
                if connection.due() <= now:
                    connection.tick(now)
            except Exception:
                connection.abort()  # what it waits for would never come
                raise
            connection.watched_at = math.inf
            self.watch(connection, now + SWEEP_S)
