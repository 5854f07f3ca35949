"""Which engine still has which prompt prefix in its cache, as far as the gate placed it there.

A prompt is known by its *marks*: a chained key at the end of each of its messages, with the prompt tokens up to there. Equal
prefixes have equal keys. An engine keeps the blocks of what it has read until it needs the memory for something else. The
least recently used goes first, and of one prompt the end before the beginning (vLLM and SGLang alike). The index repeats that with whole marks.
It takes a prompt in when it is placed, so that siblings of a burst see each other, and it is corrected by the cached tokens
that an answer reports. An index that believes too much costs a prefill now and then; one that believes too little
scatters every session, so its capacity errs upward.
"""

from collections import OrderedDict
from math import inf
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


Held = dict[int, int]
"""Engines by their numbers, and how many tokens of a prompt each is believed to hold, the deepest first."""


class _Mark:
    """A mark that an engine holds, the last of at most `depth` in a row; it `added` some of its `tokens` to the one `before`, and so many `follow` it."""

    __slots__ = ("added", "before", "depth", "follow", "key", "tokens")

    def __init__(self, key: int, tokens: int, added: int, before: "_Mark | None") -> None:
        self.key, self.tokens, self.added, self.before = key, tokens, added, before
        self.depth: int = 1 if before is None else before.depth + 1
        self.follow = 0


class HeldPrefixes:
    """What one engine is believed to hold, in marks: each goes on from the one before it, and is kept as long as one that goes on from it.

    So of a prompt that is used again its end alone is noted: `_ends` are the last marks of prompts, least recently used first.
    """

    __slots__ = ("_believed", "_ends", "_has_told", "kv_tokens", "marks", "tokens")

    def __init__(self) -> None:
        self.marks: dict[int, _Mark] = {}
        self._ends: OrderedDict[int, None] = OrderedDict()
        self.tokens = 0
        self.kv_tokens: int | None = None
        self._believed = _BELIEVED_SHARE
        self._has_told = False

    @property
    def most_tokens(self) -> float:
        """How many tokens it is believed to keep; infinite while its memory is unknown."""
        return inf if self.kv_tokens is None else self._believed * self.kv_tokens

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

    def deepest(self, marks: PrefixMarks) -> int:
        """Return the position of the last of these marks that it holds, -1 where it holds none."""
        position = len(marks) - 1
        while position >= 0 and marks[position][0] not in self.marks:
            position -= 1
        return position

    def put(self, marks: PrefixMarks) -> PrefixMarks:
        """Take a prompt in as the one used last; return those of its marks that are new."""
        known = self.deepest(marks)
        mark, before = None, 0
        if known >= 0:
            key, before = marks[known]
            mark = self.marks[key]
            self._ends.pop(key, None)
        new = marks[known + 1 :]
        for key, tokens in new:
            if mark is not None:
                mark.follow += 1
            mark = self.marks[key] = _Mark(key, tokens, max(0, tokens - before), mark)
            self.tokens += mark.added
            before = tokens
        self._ends[marks[-1][0]] = None
        return new

    def forget(self) -> None:
        """It holds nothing any more."""
        self.marks, self._ends, self.tokens = {}, OrderedDict(), 0

    def deepened(self, key: int, tokens: int) -> None:
        """Correct how many tokens there are up to this mark."""
        mark = self.marks.get(key)
        if mark is not None:
            mark.tokens = tokens

    def thin(self, marks: PrefixMarks) -> list[int]:
        """Forget what lies between the marks of this prompt and no other goes on from; return it.

        A conversation that has become too long for marks at all its ends never asks for those again.
        """
        gone: list[int] = []
        end = mark = self.marks[marks[-1][0]]
        if end.depth <= len(marks):
            return gone
        kept, end.depth = {key for key, _ in marks}, 1
        while (before := mark.before) is not None:
            if before.key in kept or before.follow > 1:
                mark = before
                end.depth += 1
            else:
                mark.before, mark.added = before.before, mark.added + before.added
                del self.marks[before.key]
                self._ends.pop(before.key, None)
                gone.append(before.key)
        return gone

    def shrink(self, most_marks: int) -> list[int]:
        """Forget what it has no room for, and return it: the prompts that were used least recently, of each the end before the beginning."""
        gone: list[int] = []
        while self._ends and self._exceeds(most_marks):
            mark = self.marks.get(self._ends.popitem(last=False)[0])
            while mark is not None and not mark.follow:
                if not self._exceeds(most_marks):
                    self._ends[mark.key] = None
                    self._ends.move_to_end(mark.key, last=False)
                    break
                gone.append(mark.key)
                mark = self._drop(mark)
        return gone

    def _exceeds(self, most_marks: int) -> bool:
        return len(self.marks) > most_marks or self.tokens > self.most_tokens

    def _drop(self, mark: _Mark) -> _Mark | None:
        """Forget a mark that none follows; return the one before it where nothing else keeps that."""
        self.marks.pop(mark.key, None)
        self.tokens -= mark.added
        before = mark.before
        if before is None:
            return None
        before.follow -= 1
        return None if before.follow or before.key in self._ends else before


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
        self._lost(number, list(self._engines[number].marks))
        self._engines[number].forget()

    def deepest(self, marks: PrefixMarks, most: int = MOST_HOLDERS) -> Held:
        """Return the engines that hold most of this prompt, the deepest first, at most so many; changes nothing."""
        found: Held = {}
        seen, position = 0, len(marks) - 1
        while position >= 0:
            new = self._holders.get(marks[position][0], 0) & ~seen
            seen |= new
            while new:
                number = (new & -new).bit_length() - 1
                new &= new - 1
                found[number] = self._held(number, marks, position)
                if len(found) == most:
                    return found
            position = self._last_held(marks, position, ~seen) if seen else position - 1
        return found

    def held_by(self, number: int, marks: PrefixMarks) -> int:
        """Return how many tokens of this prompt the engine is believed to hold; changes nothing."""
        position = self._last_held(marks, len(marks), 1 << number)
        return self._held(number, marks, position) if position >= 0 else 0

    def placed(self, number: int, marks: PrefixMarks, regret_tokens: int = 0) -> None:
        """This prompt goes to this engine: from now on it holds it, its beginning longest.

        Another engine holds `regret_tokens` more of it than this one.
        """
        self.regret_tokens += regret_tokens
        if not marks:
            return
        engine = self._engines[number]
        bit = 1 << number
        for key, _ in engine.put(marks):
            self._holders[key] = self._holders.get(key, 0) | bit
        if len(engine.marks) > self._most_marks // len(self._engines):
            self._lost(number, engine.thin(marks))
        self._evict(number)

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
        self._evict(number)
        return min(1.0, (cached_tokens or 0) / believed_tokens)

    def _last_held(self, marks: PrefixMarks, before: int, engines: int) -> int:
        """Return the last position before this one whose mark one of these engines holds, -1 for none: who holds a mark holds those before it."""
        first = 0
        while first < before:
            middle = (first + before) // 2
            if self._holders.get(marks[middle][0], 0) & engines:
                first = middle + 1
            else:
                before = middle
        return first - 1

    def _held(self, number: int, marks: PrefixMarks, position: int) -> int:
        """Return the tokens that this engine holds up to this mark and of the answer behind it, within the prompt."""
        after = min(position + 1, len(marks) - 1)
        return min(self._engines[number].marks[marks[position][0]].tokens, marks[after][1])

    def _evict(self, number: int) -> None:
        """Forget what the engine has no room for, and what the index has none for."""
        self._lost(number, self._engines[number].shrink(self._most_marks // len(self._engines)))

    def _lost(self, number: int, keys: list[int]) -> None:
        """This engine holds these marks no more."""
        bit = 1 << number
        for key in keys:
            holders = self._holders.pop(key, 0) & ~bit
            if holders:
                self._holders[key] = holders


def sized(marks: PrefixMarks, prompt_tokens: int) -> PrefixMarks:
    """Return marks whose sizes are parts of a prompt, in tokens of this prompt: each has its part of them."""
    whole = marks[-1][1] if marks else 0
    if whole <= 0:
        return ()
    return tuple([(key, int(prompt_tokens * size / whole + 0.5)) for key, size in marks])
