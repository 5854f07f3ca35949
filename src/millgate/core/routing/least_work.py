"""The engine that is least busy, by its own speed (design section 4, step 9)."""

from typing import Final

# Prompts ahead delay this one, and those behind it. A prefix that is read a second time takes the memory of another,
# which is read again one day: as if so many more streams waited for it, and many more where sessions live in that
# memory. What each is worth: `python -m lab.routing` (with 2 for what is ahead, first tokens came 8 % later than by the
# best router at twice the load), and for sessions `python -m lab run agent_sessions` (with 2 displaced and none for
# sessions, 45 minutes of agents found 0.72 in caches for 0.84). What is ahead counts less than what is read with
# nothing running, or siblings of a burst would each read what the first one reads.
_AHEAD_COUNTS: Final = 4.0
_DISPLACED_STREAMS: Final = 4.0
_DISPLACED_LIVE_STREAMS: Final = 12.0


def usual_cost(streams: int, ttft_s: float, tpot_s: float, output_tokens: float) -> float:
    """Return what one more usual request costs on an engine, in stream-seconds: the time to the whole answer, times the streams that then share it.

    `streams` run there now. Its first token would come after `ttft_s` (what waits to be prefilled counted), and each of
    its `output_tokens` would take `tpot_s` with it among them. A newcomer lengthens every answer beside it (they wait
    for its prompt, and decode in a larger batch), so time alone is half of its price: by time to first token alone,
    engines whose learned speeds differ by a hair draw every request (mean TPOT 21 ms instead of 8 on a public trace
    over eight engines at a load of 0.3). Equal engines get equal numbers of streams; one twice as fast gets twice as
    many.
    """
    return (streams + 1) * (ttft_s + output_tokens * tpot_s)


class CostFloor:
    """What one request adds to an engine at least: `marginal_cost` where no session is live there, step by step the same, so that it is no more in its last digit."""

    def __init__(self) -> None:
        self._ahead_s = self._streams = self._token_s = self._written_s = 0.0

    def moved(self, streams: int, unread_s: float, token_s: float, tpot_s: float, slower_s: float) -> None:
        """Take the engine's load and speed as they are now, as `marginal_cost` has them; it reads one token in `token_s`."""
        self._ahead_s = _AHEAD_COUNTS * unread_s
        self._streams = 1.0 + streams + _DISPLACED_STREAMS
        self._token_s = token_s
        self._written_s = tpot_s + streams * slower_s

    def of(self, unread_tokens: float, output_tokens: float) -> float:
        """Return what a request with so many unread tokens costs there at least."""
        waits_s = self._ahead_s + self._streams * (self._token_s * unread_tokens)
        return waits_s + output_tokens * self._written_s


def marginal_cost(
    streams: int,
    unread_s: float,
    reading_s: float,
    tpot_s: float,
    slower_s: float,
    output_tokens: int,
    live_share: float,
) -> float:
    """Return what one request adds to an engine that may hold a part of its prompt: the seconds that it and those beside it wait for it.

    `streams` run there now and have prompts of `unread_s` to read. What is not held of its own takes `reading_s`; its
    tokens take `tpot_s` each, and every other stream's then `slower_s` more. Sessions that lately had a turn there have
    `live_share` of its memory. A sum, where `usual_cost` is a product: in a product the answer's seconds, which are the
    same on every engine, drown those that a held prefix saves.
    """
    displaced = _DISPLACED_STREAMS + _DISPLACED_LIVE_STREAMS * live_share
    waits_s = _AHEAD_COUNTS * unread_s + (1.0 + streams + displaced) * reading_s
    return waits_s + output_tokens * (tpot_s + streams * slower_s)
