"""The engine that is least busy, by its own speed (design section 4, step 9)."""


class LeastWork:
    """Least stream-seconds: the time to the whole answer, times the streams that then share the engine.

    A newcomer lengthens every answer beside it (they wait for its prompt, and decode in a larger batch), so time
    alone is half of its price: by time to first token alone, engines whose learned speeds differ by a hair draw
    every request (mean TPOT 21 ms instead of 8 on a public trace over eight engines at a load of 0.3).
    Equal engines get equal numbers of streams; one twice as fast gets twice as many.
    """

    __slots__ = ()

    def cost(self, streams: int, ttft_s: float, tpot_s: float, output_tokens: float) -> float:
        """Return stream-seconds."""
        return (streams + 1) * (ttft_s + output_tokens * tpot_s)
