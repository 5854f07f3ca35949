"""The gate of one engine: three meters, permits that end exactly once (INV-2, INV-3).

Streams bound the batch (one for each sequence that the engine makes of a request), KV tokens the memory, prompt tokens not
yet prefilled the wait for a first token. A permit takes from all three or from none. Permits are kept by attempt: a
second release finds nothing and changes nothing.
"""

from millgate.core.limits.base import Limit


class _Share:
    """One attempt's share of the meters; the KV share may grow, the prefill share ends first."""

    __slots__ = ("kv_tokens", "prefill_tokens", "streams")

    def __init__(self, kv_tokens: int, prefill_tokens: int, streams: int) -> None:
        self.kv_tokens = kv_tokens
        self.prefill_tokens = prefill_tokens
        self.streams = streams


class EngineGate:
    """Counts streams, KV tokens and unprefilled prompt tokens against their limits; None turns a meter off.

    `most_streams` is what the limit can ever be, None where it may be anything.
    """

    def __init__(
        self,
        limit: Limit,
        kv_limit: int | None = None,
        prefill_limit: int | None = None,
        most_streams: int | None = None,
    ) -> None:
        self.limit, self.most_streams = limit, most_streams
        self.kv_limit, self.prefill_limit = kv_limit, prefill_limit
        self.streams = self.kv_tokens = self.prefill_tokens = 0
        self._permits: dict[int, _Share] = {}

    def reconfigured(self, fresh: "EngineGate", *, new_limit: bool, most_streams: int) -> None:
        """Take the bounds of a fresh gate, and its limit where that is a `new_limit`; permits that are out stay out."""
        if new_limit:
            self.limit = fresh.limit
        else:
            self.limit.adopt(most_streams)
        self.kv_limit, self.prefill_limit = fresh.kv_limit, fresh.prefill_limit
        self.most_streams = fresh.most_streams

    def clip(self, kv_tokens: int, prefill_tokens: int) -> tuple[int, int]:
        """Return the reservation cut to what the meters can ever hold.

        A generous `max_tokens`, or a prompt longer than the prefill meter, then runs alone instead of never.
        """
        kv_limit, prefill_limit = self.kv_limit, self.prefill_limit
        return (
            kv_tokens if kv_limit is None else min(kv_tokens, kv_limit),
            prefill_tokens if prefill_limit is None else min(prefill_tokens, prefill_limit),
        )

    def fits(self, prompt_tokens: int, streams: int = 1) -> bool:
        """Return whether a prompt of this size and one output token could ever run here, in so many streams."""
        if self.most_streams is not None and streams > self.most_streams:
            return False
        return self.kv_limit is None or prompt_tokens < self.kv_limit

    def has_room(self, kv_tokens: int, prefill_tokens: int, streams: int = 1) -> bool:
        """Return whether a permit of this size, clipped, would be given now: an empty meter takes any that fits."""
        if self.streams and self.streams + streams > self.limit.current():
            return False
        kv_limit, prefill_limit = self.kv_limit, self.prefill_limit
        if kv_limit is not None and self.kv_tokens and self.kv_tokens + kv_tokens > kv_limit:
            return False
        if prefill_limit is None or not self.prefill_tokens:
            return True
        return self.prefill_tokens + prefill_tokens <= prefill_limit

    def take(self, attempt: int, kv_tokens: int, prefill_tokens: int, streams: int = 1) -> None:
        """Give the attempt its permit; the caller has asked `has_room` at this very instant."""
        assert attempt not in self._permits, f"attempt {attempt} already has a permit"
        self._permits[attempt] = _Share(kv_tokens, prefill_tokens, streams)
        self.streams += streams
        self.kv_tokens += kv_tokens
        self.prefill_tokens += prefill_tokens

    def prefilled(self, attempt: int) -> None:
        """Give back the prefill share: the prompt has been read."""
        permit = self._permits.get(attempt)
        if permit is not None:
            self.prefill_tokens -= permit.prefill_tokens
            permit.prefill_tokens = 0

    def grow(self, attempt: int, kv_tokens: int) -> None:
        """Raise the KV share to `kv_tokens` if it is larger; may pass the limit, which then blocks admissions."""
        permit = self._permits.get(attempt)
        if permit is not None and kv_tokens > permit.kv_tokens:
            self.kv_tokens += kv_tokens - permit.kv_tokens
            permit.kv_tokens = kv_tokens

    def release(self, attempt: int) -> bool:
        """End the permit; False when there was none (it had ended before)."""
        permit = self._permits.pop(attempt, None)
        if permit is None:
            return False
        self.streams -= permit.streams
        self.kv_tokens -= permit.kv_tokens
        self.prefill_tokens -= permit.prefill_tokens
        return True
