"""Virtual time: one heap of things to do, in order of time, then priority, then the order of asking.

Nothing here reads a clock or throws dice, so the same program gives the same run to the last bit. A thing once
asked for happens. A caller that no longer wants it looks at its own state when called (cancelled entries would have to
be found in the heap, and are rare).
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

# At one instant engines report first, then clients act, then housekeeping looks on: what a real gateway has
# already received when it decides.
ENGINES, CLIENTS, WATCHES = 0, 1, 2

_Entry = tuple[float, int, int, Callable[[Any], None], Any]


class Loop:
    """A clock that jumps to the next thing to do; `now` is virtual seconds and never goes backward."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[_Entry] = []
        self._asked = 0

    def at(self, when_s: float, call: Callable[[Any], None], argument: Any, priority: int = CLIENTS) -> None:
        """Call `call(argument)` at this time, at once if it is past."""
        self._asked += 1
        at = when_s if when_s > self.now else self.now  # noqa: FURB136 - max() would cost a call for every event
        heappush(self._heap, (at, priority, self._asked, call, argument))

    def run(self, until_s: float = inf) -> None:
        """Do everything that is due up to and with `until_s`, and end there (or where nothing is left)."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, _, call, argument = heappop(heap)
            call(argument)
        if until_s < inf:
            self.now = max(self.now, until_s)
