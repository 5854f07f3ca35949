"""How long do turns of sessions wait for long prompts that belong to none, on each engine?

A turn that goes on from what its engine holds is read in a moment, unless it comes while a long prompt is read there:
engines read one prompt after the other. So each engine that reads both makes turns wait. With a price on what meets,
long prompts go where few turns come, and sessions go where few such prompts are read. Each makes the other's choice
clearer, and some engines read the long prompts for all; no setting says how many. They are ordinary engines: a long
prompt that would wait there for another longer than it would hold up turns elsewhere goes on.

What is read on an engine may evict contexts of sessions, so these count there too, for five minutes after a turn: most
pauses of agents that are longer than a lease end by then.
"""

from collections import OrderedDict
from math import exp
from typing import Final

from millgate.core.settings import MINUTE_S

LONG_TOKENS: Final = 8_192
"""What one step of vLLM reads by default on large GPUs: a turn waits for no more than one step where a prompt has fewer unread tokens."""
SESSION_TURNS: Final = 66
"""So many turns a session of a coding agent has (callanjfox/kv-cache-tester: 23,669 turns in 360 recorded sessions)."""
# What has been seen of an engine fades within so long: some dozens of turns and long prompts of a busy fleet. (Agents'
# contexts for 0.6 of the memory, six cold prompts a minute, 16 seeds of `python -m lab run cold_prompts`: the p95 of the
# agents' first tokens is 1.22 s with half of it and 1.11 s with this; for 0.4 both have 0.88 s.) Until so long has been
# seen, at least a minute is assumed.
_MEMORY_S: Final = 300.0
# So many times as much a turn that waits counts as a long prompt that does: it was to begin at once. (The same runs: 1.44,
# 1.35, 1.13, 1.11 and 1.15 s with 1, 2, 4, 8 and 16; for 0.4 of the memory 0.85 to 0.90 s with each of them.)
_TURNS_COUNT: Final = 8.0


class _Seen:
    """What comes to one engine, fading: turns of sessions, and what a turn at a random time waits for prompts of none; as it was `at` that time."""

    def __init__(self, now: float) -> None:
        self.turns = self.waits_s2 = 0.0
        self.at = now

    def add(self, turns: float, waits_s2: float, now: float) -> None:
        """Let what was seen fade until now, and add this."""
        keep = self.share_left(now)
        self.turns = keep * self.turns + turns
        self.waits_s2 = max(0.0, keep * self.waits_s2 + waits_s2)
        self.at = now

    def share_left(self, now: float) -> float:
        return exp((self.at - now) / _MEMORY_S)


class Encounters:
    """What sessions and long prompts would wait for each other; engines are known by their numbers in the index of prefixes."""

    def __init__(self, most_sessions: int) -> None:
        self._seen: dict[int, _Seen] = {}
        self._since = 0.0
        self._most_sessions = most_sessions
        # Where each session had its last turn, with how long a prompt and when, the longest ago first; and the tokens
        # on each engine.
        self._contexts: OrderedDict[int, tuple[int, int, float]] = OrderedDict()
        self._tokens: dict[int, int] = {}

    def turn(self, number: int, session: int, tokens: int, now: float) -> None:
        """A turn of this session is read by this engine, with so long a prompt."""
        self._of(number, now).add(1.0, 0.0, now)
        self._leaves(session)
        contexts = self._contexts
        contexts[session] = number, tokens, now
        self._tokens[number] = self.context_tokens(number) + tokens
        oldest = next(iter(contexts))
        while len(contexts) > self._most_sessions or contexts[oldest][2] <= now - _MEMORY_S:
            self._leaves(oldest)
            oldest = next(iter(contexts))

    def context_tokens(self, number: int) -> int:
        """Return how long the contexts are of the sessions that have lately had their last turn on this engine."""
        return self._tokens.get(number, 0)

    def reads(self, number: int, reading_s: float, now: float) -> None:
        """A prompt that belongs to no session is read there: a turn that comes in that time waits for half of it in the mean."""
        self._of(number, now).add(0.0, _half_square(reading_s), now)

    def read_of_session(self, number: int, reading_s: float, at: float, now: float) -> None:
        """A prompt that was read there `at` that time began a session, as its second turn shows: it counts no more."""
        if number in self._seen:
            self._of(number, now).add(0.0, -_half_square(reading_s) * exp((at - now) / _MEMORY_S), now)

    def waits_s(
        self, number: int, reading_s: float, turns: int, now: float, own_s: float = 0.0, own_at: float = 0.0
    ) -> float:
        """Return how long turns that come there wait for a prompt that is read for so long, by what they count, and the `turns` of its own session for others.

        None of these turns waits for what began its session: where that was read there `own_at` that time, for `own_s`,
        and still counts as one of none.
        """
        seen = self._seen.get(number)
        if seen is None:
            return 0.0
        span_s = min(max(now - self._since, MINUTE_S), _MEMORY_S)
        others_s2 = max(0.0, seen.waits_s2 - _half_square(own_s) * exp((own_at - seen.at) / _MEMORY_S))
        waits_s2 = _TURNS_COUNT * seen.turns * _half_square(reading_s) + turns * others_s2
        return seen.share_left(now) * waits_s2 / span_s

    def forget(self, number: int) -> None:
        """This engine begins anew, or is gone."""
        for session in [key for key, context in self._contexts.items() if context[0] == number]:
            self._leaves(session)
        self._seen.pop(number, None)

    def _leaves(self, session: int) -> None:
        """This session's last turn counts no more."""
        if session in self._contexts:
            number, tokens, _ = self._contexts.pop(session)
            self._tokens[number] -= tokens

    def _of(self, number: int, now: float) -> _Seen:
        if not self._seen:
            self._since = now
        seen = self._seen.get(number)
        if seen is None:
            seen = self._seen[number] = _Seen(now)
        return seen


def _half_square(reading_s: float) -> float:
    """Return how long those wait that come once a second while a prompt is read."""
    return reading_s * reading_s / 2.0
