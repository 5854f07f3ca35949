"""Which engine still has which prompt prefix in its cache, as far as the gate placed it there.

A prompt is known by its *marks*: a chained key at the end of each of its messages, with the prompt tokens up to there. Equal
prefixes have equal keys. An engine keeps the blocks of what it has read until it needs the memory for something else. The
least recently used goes first, and of one prompt the end before the beginning (vLLM and SGLang alike). The index repeats that with whole marks.
It takes a prompt in when it is placed, so that siblings of a burst see each other, and it is corrected by the cached tokens
that an answer reports. An index that believes too much costs a prefill now and then; one that believes too little
scatters every session, so its capacity errs upward.
"""

from collections import OrderedDict
from typing import Final

from millgate.core.events import PrefixMarks
from millgate.core.measure import ALIKE

MOST_HOLDERS: Final = 4
"""Of one prompt; beside the cheapest other engine, so that an arrival costs the same before any number of engines."""
MOST_MARKS: Final = 200_000
"""Over all engines: 50 MB at 250 bytes a mark."""
# What an engine is believed to keep, as a multiple of what may be reserved of its memory (0.9 of it): an entry too
# many costs a prefill now and then, and one too few scatters a session.
_BELIEVED_SHARE: Final = 1.2
# An answer that found less than was believed takes a twentieth off, and 25 that found all add it again: so many beliefs are wrong in the long
# run. (With a hundredth, a sixth of them: agents at twice the memory finished 187 turns a minute for 193.)
_SHRINK, _GROW, _LEAST_BELIEVED, _MOST_BELIEVED = 0.95, 1.002, 0.2, 4.0
LEAST_PREFIX_TOKENS: Final = 512
"""A shorter prompt is read within tens of milliseconds wherever it goes: looking for its prefix saves nothing that is felt."""
BLOCK_TOKENS: Final = 128
"""Engines keep and tell whole blocks: of 16 tokens on a GPU, of 128 on a CPU. Less than one is nothing."""
# Two numbers in one: the tokens that a mark adds to those before it, and the tokens up to it.
_ADDED: Final = 1 << 24


Held = dict[int, int]
"""Engines by their numbers, and how many tokens of a prompt each is believed to hold, the deepest first."""


class HeldPrefixes:
    """What one engine is believed to hold, in marks; least recently used first."""

    __slots__ = ("_believed", "_has_told", "kv_tokens", "marks", "tokens")

    def __init__(self) -> None:
        self.marks: OrderedDict[int, int] = OrderedDict()
        self.tokens = 0
        self.kv_tokens: int | None = None
        self._believed = _BELIEVED_SHARE
        self._has_told = False

    @property
    def most_tokens(self) -> float:
        """How many tokens it is believed to keep; infinite while its memory is unknown."""
        return float("inf") if self.kv_tokens is None else self._believed * self.kv_tokens

    def reserves(self, kv_tokens: int | None) -> None:
        """Take note of its memory."""
        self.kv_tokens = kv_tokens

    def tells(self, cached_tokens: int | None) -> bool:
        """Return whether the engine tells cached tokens: vLLM leaves a 0 out, so after the first an answer without any says 0."""
        self._has_told = self._has_told or cached_tokens is not None
        return self._has_told

    def found(self, *, all_of_it: bool) -> None:
        """Learn from an answer whether the engine keeps as much as is believed."""
        believed = self._believed * (_GROW if all_of_it else _SHRINK)
        self._believed = min(max(believed, _LEAST_BELIEVED), _MOST_BELIEVED)

    def put(self, key: int, tokens: int, before: int) -> bool:
        """Take a mark in as the one used last; return whether it is new. `before` are the tokens up to the mark before it."""
        if key in self.marks:
            self.marks.move_to_end(key)
            return False
        added = max(0, tokens - before)
        self.marks[key] = added * _ADDED + tokens
        self.tokens += added
        return True

    def holds(self, key: int) -> int:
        """Return how many tokens of the prompt up to this mark it holds; 0 where it holds none."""
        return self.marks.get(key, 0) % _ADDED

    def deepened(self, key: int, tokens: int) -> None:
        """Correct how many tokens there are up to this mark."""
        packed = self.marks.get(key)
        if packed is not None:
            self.marks[key] = packed - packed % _ADDED + min(tokens, _ADDED - 1)

    def drop(self, key: int) -> None:
        """Forget one mark."""
        self.tokens -= self.marks.pop(key) // _ADDED

    def oldest(self) -> int:
        """Return the mark that was used least recently."""
        return next(iter(self.marks))


class PrefixIndex:
    """What all engines hold, each under a number of its own; at most `most_marks` over all."""

    __slots__ = (
        "_engines",
        "_holders",
        "_most_marks",
        "_numbers",
        "found_tokens",
        "predicted_tokens",
        "regret_tokens",
    )

    def __init__(self, most_marks: int = MOST_MARKS) -> None:
        self.predicted_tokens = self.found_tokens = 0
        """Of prompts that engines have answered which tell it: what was believed to be held of them, and what was found."""
        self.regret_tokens = 0
        """Tokens of prompts that were read although another engine held them."""
        self._most_marks = most_marks
        self._numbers: dict[str, int] = {}
        self._engines: dict[int, HeldPrefixes] = {}
        self._holders: dict[int, int] = {}

    @property
    def marks(self) -> int:
        """How many marks are held, each counted once an engine."""
        return sum([len(engine.marks) for engine in self._engines.values()])

    def enrol(self, name: str, kv_tokens: int | None) -> int:
        """Return the number of the engine of this name; with another memory than before it has begun anew."""
        number = self._numbers.get(name)
        if number is None:
            taken = set(self._numbers.values())
            number = next(free for free in range(len(taken) + 1) if free not in taken)
            self._numbers[name] = number
            self._engines[number] = HeldPrefixes()
        engine = self._engines[number]
        if engine.kv_tokens not in {None, kv_tokens}:
            self.forget(number)
        engine.reserves(kv_tokens)
        return number

    def retire(self, name: str) -> None:
        """This engine is gone: its number is free for another."""
        number = self._numbers.pop(name)
        self.forget(number)
        del self._engines[number]

    def forget(self, number: int) -> None:
        """This engine has lost all that it held."""
        engine = self._engines[number]
        for key in list(engine.marks):
            self._drop(engine, number, key)

    def deepest(self, marks: PrefixMarks, most: int = MOST_HOLDERS) -> Held:
        """Return the engines that hold most of this prompt, the deepest first, at most so many; changes nothing."""
        found: Held = {}
        seen = 0
        for position in range(len(marks) - 1, -1, -1):
            key, _ = marks[position]
            new = self._holders.get(key, 0) & ~seen
            seen |= new
            while new:
                number = (new & -new).bit_length() - 1
                new &= new - 1
                found[number] = self._held(number, marks, position)
                if len(found) == most:
                    return found
        return found

    def held_by(self, number: int, marks: PrefixMarks) -> int:
        """Return how many tokens of this prompt the engine is believed to hold; changes nothing."""
        engine = self._engines[number]
        for position in range(len(marks) - 1, -1, -1):
            if marks[position][0] in engine.marks:
                return self._held(number, marks, position)
        return 0

    def placed(self, number: int, marks: PrefixMarks, regret_tokens: int = 0) -> None:
        """This prompt goes to this engine: from now on it holds it, its beginning longest.

        Another engine holds `regret_tokens` more of it than this one.
        """
        self.regret_tokens += regret_tokens
        engine = self._engines[number]
        bit = 1 << number
        for position in range(len(marks) - 1, -1, -1):
            key, tokens = marks[position]
            before = marks[position - 1][1] if position else 0
            if engine.put(key, tokens, before):
                self._holders[key] = self._holders.get(key, 0) | bit
        self._evict(engine, number)

    def answered(
        self,
        number: int,
        marks: PrefixMarks,
        believed_tokens: int,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int | None,
    ) -> float | None:
        """The engine has answered this prompt and counted its tokens: the answer lies behind the last mark.

        It had `cached_tokens` of it where so many were believed; None where it does not say. Far fewer mean that it keeps
        less than is believed. Return which share of what was believed it had, None where that is not known.
        """
        engine = self._engines[number]
        engine.deepened(marks[-1][0], prompt_tokens + output_tokens)
        if not engine.tells(cached_tokens):
            return None
        self.predicted_tokens += believed_tokens
        self.found_tokens += cached_tokens or 0
        if not believed_tokens:
            return None
        lost_tokens = believed_tokens - (cached_tokens or 0)
        is_lost = lost_tokens > BLOCK_TOKENS + ALIKE * believed_tokens
        engine.found(all_of_it=not is_lost)
        self._evict(engine, number)
        return min(1.0, (cached_tokens or 0) / believed_tokens)

    def _held(self, number: int, marks: PrefixMarks, position: int) -> int:
        """Return the tokens that this engine holds up to this mark and of the answer behind it, within the prompt."""
        after = min(position + 1, len(marks) - 1)
        return min(self._engines[number].holds(marks[position][0]), marks[after][1])

    def _evict(self, engine: HeldPrefixes, number: int) -> None:
        """Forget what the engine has no room for, and what the index has none for."""
        most_marks = self._most_marks // len(self._engines)
        while engine.marks and (engine.tokens > engine.most_tokens or len(engine.marks) > most_marks):
            self._drop(engine, number, engine.oldest())

    def _drop(self, engine: HeldPrefixes, number: int, key: int) -> None:
        engine.drop(key)
        holders = self._holders[key] & ~(1 << number)
        if holders:
            self._holders[key] = holders
        else:
            del self._holders[key]


def sized(marks: PrefixMarks, prompt_tokens: int) -> PrefixMarks:
    """Return marks whose sizes are parts of a prompt, in tokens of this prompt: each has its part of them."""
    whole = marks[-1][1] if marks else 0
    if whole <= 0:
        return ()
    return tuple([(key, round(prompt_tokens * size / whole)) for key, size in marks])
