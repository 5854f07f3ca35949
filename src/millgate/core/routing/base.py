"""The contract of a router: what would one more request cost on an engine?"""

from typing import Protocol


class Router(Protocol):
    """Prices engines; the governor takes the cheapest that has room, the first named among equals.

    One that inherits from this is called directly by compiled code, which asks it for every engine.
    """

    def cost(self, streams: int, ttft_s: float, tpot_s: float, output_tokens: float) -> float:
        """Return the cost of one more usual request on an engine: a pure function, in any unit, finite.

        `streams` run there now. Its first token would come after `ttft_s` (what waits to be prefilled counted), and
        each of its `output_tokens` would take `tpot_s` with it among them.
        """

    def marginal_cost(
        self,
        streams: int,
        unread_s: float,
        reading_s: float,
        tpot_s: float,
        slower_s: float,
        output_tokens: int,
        live_share: float,
    ) -> float:
        """Return what one request adds to an engine that may hold a part of its prompt, in seconds of waiting: a pure function.

        `streams` run there now and have prompts of `unread_s` to read. What is not held of its own takes `reading_s`; its
        tokens take `tpot_s` each, and every other stream's then `slower_s` more. Live sessions have `live_share` of its memory.
        """
