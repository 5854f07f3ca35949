"""Which engines know the `stream_options` that the gate puts in: believed by what they have answered, not by what an error names.

A 400 or 422 may quote the client. So an engine is taken for one that refuses them only when the same request without them has been answered.
"""

from collections.abc import Callable
from typing import Final

FORGOTTEN_S: Final = 300.0
"""After so long an engine that refused them is asked again: it may have been replaced, or one odd request have misled."""
_MOST_ENGINES: Final = 4096
_NAME: Final = b"stream_options"


class AskedUsage:
    """What engines have made of `stream_options`; beyond a bound all of it is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused_until: dict[str, float] = {}

    def may_ask(self, engine: str) -> bool:
        """Whether this engine is not known to refuse them."""
        until = self._refused_until.get(engine, 0.0)
        return until == 0.0 or self._clock() >= until

    def note(self, engine: str, *, takes: bool) -> None:
        """Note that this engine has answered a request with them, or without them one that it had refused with them."""
        if len(self._refused_until) >= _MOST_ENGINES:
            self._refused_until.clear()
        self._refused_until[engine] = 0.0 if takes else self._clock() + FORGOTTEN_S

    def may_be_meant(self, engine: str, complaint: bytes, body: bytes) -> bool:
        """Whether this refusal may complain of them: not where an engine that takes them can have the name from the client's body."""
        return complaint.find(_NAME) >= 0 and (self._refused_until.get(engine) != 0.0 or body.find(_NAME) < 0)
