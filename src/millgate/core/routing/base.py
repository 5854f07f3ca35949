"""The contract of a router: what would one more request cost on an engine?"""

from typing import Protocol


class Router(Protocol):
    """Prices engines; the governor takes the cheapest that has room, the first named among equals."""

    def cost(self, streams: int, ttft_s: float, tpot_s: float, output_tokens: float) -> float:
        """Return the cost of one more usual request on an engine: a pure function, in any unit, finite.

        `streams` run there now. Its first token would come after `ttft_s` (what waits to be prefilled counted), and
        each of its `output_tokens` would take `tpot_s` with it among them.
        """
