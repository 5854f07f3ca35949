"""The first of two legs: a prompt that one engine reads for another, and the memory in which it keeps it until that is fetched.

An engine that has read a prompt for another keeps its blocks under a lease. They are free when the other has fetched them, or
when the lease ends (vLLM's NIXL connector, `docs/features/nixl_connector_usage.md`). No call gives them back sooner.
"""

from heapq import heappop, heappush
from math import inf
from typing import Final

from millgate.core.measure import OUTLIER_RATIO, Ewma
from millgate.core.settings import Labels
from millgate.core.state.engine import Engine, Permit, ends_but_for_memory
from millgate.core.words import KvTransfer, Role

# Before any transfer was seen: 20 ms to set one up, and 320 KB a token (70 billion parameters, 16 bits) over 450 GB/s
# within a host (NVLink), 50 within a rack (400 Gb/s), 12.5 within a zone (100 Gb/s), and between zones two fifths of
# that, as llm-d's scorer has it.
_SETUP_S: Final = 0.02
_PER_TOKEN_S: Final[tuple[float, ...]] = (7.2e-7, 6.5e-6, 2.6e-5, 6.5e-5)


def distance_of(one: Labels, other: Labels) -> int:
    """Return how far apart two engines stand: 0 on one host, 1 in one rack, 2 in one zone, 3 in two; in one rack where nothing is said."""
    if one.zone and other.zone and one.zone != other.zone:
        return 3
    if one.rack and other.rack and one.rack != other.rack:
        return 2
    return 0 if one.host and one.host == other.host else 1


# What two engines share by distance, from the nearest on; nothing is required by an empty word.
_SHARED: Final[tuple[str, ...]] = ("host", "rack", "zone", "")


def may_hand_over(one: Labels, other: Labels) -> bool:
    """Return whether neither requires a place that the other is not known to be in."""
    distance = distance_of(one, other)
    return _within(one, other, one.required, distance) and _within(one, other, other.required, distance)


def _within(one: Labels, other: Labels, required: str, distance: int) -> bool:
    if distance > _SHARED.index(required):
        return False
    if required == "zone":
        return bool(one.zone and other.zone)
    return required != "rack" or bool(one.rack and other.rack)


def may_be_two(reader: Engine, engine: Engine) -> bool:
    """Return whether they hand prompts over in the same way, and neither requires a place where the other one is not."""
    one, other = reader.settings, engine.settings
    return one.kv_transfer is other.kv_transfer and may_hand_over(one.labels, other.labels)


class PrefillLeg:
    """What one engine, the `reader`, does for one attempt: of the prompt it had to read `unread_tokens`, and held the others.

    It `is_reading` until the prompt is read; then `kept_tokens` of its memory are taken until they are fetched or the lease ends.
    One that `is_paired` has the request together with the engine that answers, and ends when that one has the prompt.
    """

    def __init__(self, reader: Engine, permit: Permit, unread_tokens: int, cached_tokens: int) -> None:
        self.reader, self.permit = reader, permit
        self.unread_tokens, self.cached_tokens = unread_tokens, cached_tokens
        self.is_reading = True
        self.is_paired = reader.settings.kv_transfer is KvTransfer.SGLANG
        self.kept_tokens = 0
        self.kept_at = 0.0

    def has_read(self, now: float) -> None:
        """The prompt is read: its stream is free, its memory stays taken."""
        self.reader.first_token(self.permit, self.unread_tokens, now)
        self.kept_tokens = ends_but_for_memory(self.reader, self.permit)
        self.is_reading, self.kept_at = False, now

    def let_go(self, now: float) -> None:
        """The engine has nothing more to do with it, and keeps nothing of it."""
        if self.is_reading:
            self.reader.releases(self.permit, now)
            self.reader.changed()
            self.is_reading = False
        self.reader.gate.frees(self.kept_tokens)
        self.kept_tokens = 0


class Legs:
    """First legs that end by time alone, at `due_at` the next of them; what became of all, and how long a transfer takes.

    `fetched` transfers took `transfer_s` together and carried `tokens`; of the others `lost` failed, and `expired` were
    never fetched. `by_role` counts legs on engines that do one of the two only, or also.
    """

    def __init__(self) -> None:
        self.due_at = inf
        self._ends: list[tuple[float, int, PrefillLeg]] = []
        self._count = 0
        self.begun = self.fetched = self.lost = self.expired = self.tokens = 0
        self.transfer_s = 0.0
        self.by_role = {Role.PREFILL: 0, Role.DECODE: 0}
        self._factors = tuple([Ewma(1.0) for _ in _PER_TOKEN_S])

    def expected_s(self, distance: int, tokens: int) -> float:
        """Return how long the transfer of so many tokens is expected to take over this distance."""
        return self._factors[distance].mean * _believed_s(distance, tokens)

    def begins(self) -> None:
        """Count a request of two legs."""
        self.begun += 1

    def begins_on(self, engine: Engine) -> None:
        """Count one leg there."""
        self.by_role[engine.settings.role] += 1

    def ends_at(self, leg: PrefillLeg, at: float) -> None:
        """Let go of it then, unless that has happened before."""
        self._count += 1
        heappush(self._ends, (at, self._count, leg))
        self.due_at = self._ends[0][0]

    def expire(self, now: float) -> None:
        """Let go of what is due."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            _, _, leg = heappop(ends)
            self.expired += bool(leg.kept_tokens)
            leg.let_go(now)
        self.due_at = ends[0][0] if ends else inf

    def was_fetched(self, leg: PrefillLeg, by: Engine, tokens: int, now: float, *, is_seen: bool) -> None:
        """The other engine has this prompt: learn how long that took, where it `is_seen`; of a whole answer it counts as expected."""
        distance = distance_of(leg.reader.settings.labels, by.settings.labels)
        took_s = self.expected_s(distance, tokens)
        if is_seen:
            took_s = now - leg.kept_at
            # One that took far longer than is believed waited for something else.
            factor = self._factors[distance]
            factor.add(min(OUTLIER_RATIO * factor.mean, took_s / _believed_s(distance, tokens)))
        self.fetched += 1
        self.tokens += tokens
        self.transfer_s += took_s
        leg.let_go(now)

    def was_lost(self) -> None:
        """Count a prompt that the other engine has to read after all."""
        self.lost += 1


def _believed_s(distance: int, tokens: int) -> float:
    return _SETUP_S + _PER_TOKEN_S[distance] * tokens


def has_taken_over(engine: Engine, permit: Permit, now: float) -> None:
    """The first token has come of a prompt that was handed over: it tells nothing of how fast this engine reads."""
    permit.first_token(now)
    engine.gate.prefilled(permit.attempt)
    permit.reads_after(engine.service.has_read(1))


def reads_after_all(engine: Engine, permit: Permit, unread_tokens: int, now: float) -> None:
    """This engine reads the prompt that another one was to read, from now on."""
    permit.is_sent(now)
    permit.reads_itself(engine.unread_tokens(now), engine.expected_ttft_s(unread_tokens, now))
    if not engine.gate.prefill_tokens:
        engine.reading.began(now)
    engine.gate.reads(permit.attempt, unread_tokens)
    engine.changed()
