"""Which bound ends a whole answer that does not come: what the log of the process says when it acts."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from millgate.core.decisions import Admit
from millgate.dialects.contract import RequestFacts

FIRST_EVENT: Final = "limits.first_event"
LONGEST_ANSWER: Final = "limits.longest_answer"
MAX_TOKENS: Final = "max_tokens of the request"
CLIENT: Final = "deadline of the client"
SILENCE: Final = "limits.upstream_idle"
_SAME_MOMENT_S: Final = 0.1


class GivenUp(NamedTuple):
    """A whole answer that was given up: the bound that acted by its setting, and how many seconds it had given.

    `bound_s` is None for silence: the door knows nothing of the transport's bound.
    """

    request_id: str
    engine: str
    setting: str
    bound_s: float | None
    why: str


class WholeBound:
    """Remembers how long one whole answer may take, from its admission on; `told` is called when that was too short.

    `began_at` and `expires_at` are times of the running loop, `allowed_s` is what the client allows from its arrival on.
    """

    def __init__(
        self,
        told: Callable[[GivenUp], None],
        admit: Admit,
        began_at: float,
        expires_at: float,
        allowed_s: float | None,
        facts: RequestFacts,
    ) -> None:
        self._told = told
        self._admit = admit
        self._expires_at = expires_at
        self._allowed_s = allowed_s
        self._facts = facts
        self._began_at = began_at

    def begun(self) -> None:
        """It is passed on as it comes: from here on only silence ends it."""
        self._expires_at = inf

    def acted(self, request_id: bytes, why: str) -> None:
        """Say that the answer was given up; `why` is the transport's word for it."""
        setting, bound_s = self._bound()
        engine = self._admit.legs[0].engine
        self._told(GivenUp(request_id.decode("latin-1"), engine, setting, bound_s, why))

    def _bound(self) -> tuple[str, float | None]:
        """Return the setting that acted, and its seconds from admission; the client's own count from its arrival."""
        if asyncio.get_running_loop().time() < self._expires_at:
            return SILENCE, None
        bound_s = round(self._expires_at - self._began_at, 3)
        if self._expires_at < self._admit.first_event_by:
            return FIRST_EVENT, bound_s
        if self._allowed_s is not None and self._is_the_clients(self._allowed_s):
            return CLIENT, round(self._allowed_s, 3)
        return LONGEST_ANSWER if self._facts.max_tokens is None else MAX_TOKENS, bound_s

    def _is_the_clients(self, allowed_s: float) -> bool:
        """Whether the bound ends when the client's own time does: both clocks were read within a tenth of a second."""
        arrived_at = self._began_at - self._admit.waited_s
        return abs(arrived_at + allowed_s - self._expires_at) <= _SAME_MOMENT_S
