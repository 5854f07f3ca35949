"""Which engine still has which prompt prefix in its cache, as far as the gate placed it there.

A prompt is known by its *marks*: a chained key at the end of each of its messages, with the bytes up to there. Equal
prefixes have equal keys. An engine keeps the blocks of what it has read until it needs the memory for something else.
The least recently used goes first, and of one prompt the end before the beginning (vLLM and SGLang alike). The index
repeats that with whole marks. It takes a prompt in when it is placed, so that siblings of a burst see each other, and
it is corrected by the cached tokens that an answer reports. An index that believes too much costs a prefill now and
then; one that believes too little scatters every session, so its capacity errs upward.

The marks of a prompt are one *run*, and a prompt that goes on from it makes it longer. It is divided where another
prompt branches off, or ends before it. A run is found by its first and its last key, so that a prompt of twenty
messages costs two entries and not twenty. What an engine holds of a run is its *copy*.
"""

from collections import OrderedDict
from math import inf
from typing import Final

from millgate.core.events import PrefixMarks
from millgate.core.measure import ALIKE, Ewma

MOST_HOLDERS: Final = 4
"""Of one prompt; beside the cheapest other engine, so that an arrival costs the same before any number of engines."""
MOST_MARKS: Final = 200_000
"""Over all engines: 32 MB where prompts have twenty marks, 151 MB where each has one (`bench.placing`)."""
# What an engine is believed to keep, as a multiple of what may be reserved of its memory (0.9 of it): an entry too
# many costs a prefill now and then, and one too few scatters a session.
_BELIEVED_SHARE: Final = 1.2
# An answer that found less than was believed takes a twentieth off, and 25 that found all add it again: so many beliefs
# are wrong in the long run. (With a hundredth, a sixth of them: agents at twice the memory finished 187 turns a minute
# for 193.)
_SHRINK, _GROW, _LEAST_BELIEVED, _MOST_BELIEVED = 0.95, 1.002, 0.2, 4.0
LEAST_PREFIX_TOKENS: Final = 512
"""A shorter prompt is read within tens of milliseconds wherever it goes: looking for its prefix saves nothing that is felt."""
BLOCK_TOKENS: Final = 128
"""Engines keep and tell whole blocks: of 16 tokens on a GPU, of 128 on a CPU. Less than one is nothing."""


Held = dict[int, int]
"""Engines by their numbers, and how many tokens of a prompt each is believed to hold, those that hold of its deepest run first."""


class _Run:
    """Marks that follow each other, after `before_bytes` of the prompt; `copies` are what engines hold of it, by their numbers."""

    def __init__(self, marks: PrefixMarks, before_bytes: int, tokens_per_byte: float) -> None:
        self.marks, self.before_bytes, self.tokens_per_byte = marks, before_bytes, tokens_per_byte
        self.copies: dict[int, _Copy] = {}

    def tokens(self, first: int, last: int) -> int:
        """Return how many tokens its marks from the first to before the last one add."""
        before = self.marks[first - 1][1] if first else self.before_bytes
        each = self.tokens_per_byte
        return int(each * self.marks[last - 1][1] + 0.5) - int(each * before + 0.5)

    def common(self, marks: PrefixMarks, position: int) -> tuple[int, int]:
        """Return the last position of these marks that is in it, and how many of its marks there are up to there; one at `position` is."""
        own, key = self.marks, marks[position][0]
        if own[-1][0] == key:
            return position, len(own)
        found, count, at = position, 1, 1
        position += 1
        # A longer conversation may have fewer marks than it had when it was shorter.
        while position < len(marks) and at < len(own):
            if own[at][0] == marks[position][0]:
                found, count = position, at + 1
                position += 1
                at += 1
            elif own[at][1] < marks[position][1]:
                at += 1
            else:
                position += 1
        return found, count

    def before(self) -> "_Run | None":
        """Return the run that it goes on from; None where it begins a prompt."""
        for copy in self.copies.values():
            return None if copy.before is None else copy.before.run
        return None

    def begins_with(self, count: int) -> "_Run":
        """Part with its first marks, and return them as a run before it."""
        head = _Run(self.marks[:count], self.before_bytes, self.tokens_per_byte)
        for number, copy in list(self.copies.items()):
            if copy.held <= count:
                copy.run = head
                head.copies[number] = self.copies.pop(number)
            else:
                head.copies[number] = copy.begins_with(head, count)
        self.marks, self.before_bytes = self.marks[count:], self.marks[count - 1][1]
        return head


class _Copy:
    """What one engine holds of a run: its first `held` marks, of so many `tokens`, and `follow` of its copies go on from it.

    It goes on from the one `before`. With the last answer to it there are `answered_tokens`, 0 where none has come.
    """

    def __init__(self, run: _Run, before: "_Copy | None") -> None:
        self.run, self.before = run, before
        self.held = self.tokens = self.follow = self.answered_tokens = 0

    def is_followed(self) -> None:
        self.follow += 1

    def begins_with(self, head: _Run, count: int) -> "_Copy":
        """Part with its first marks, which are a run before its own now; return the copy of that."""
        first = _Copy(head, self.before)
        self.held -= count
        first.held, first.follow = count, 1
        tail_tokens = self.run.tokens(count, count + self.held)
        first.tokens, self.tokens = self.tokens - tail_tokens, tail_tokens
        self.before = first
        return first


class HeldPrefixes:
    """What one engine is believed to hold: each copy goes on from the one before it, and is kept as long as one that goes on from it.

    So of a prompt that is used again its end alone is noted: `_ends` are the last copies of prompts, least recently used first.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._ends: OrderedDict[_Copy, None] = OrderedDict()
        self.marks = self._tokens = 0
        self.kv_tokens: int | None = None
        self._believed = _BELIEVED_SHARE
        self._has_told = False
        self.told_share = Ewma(0.0, prior_samples=0.0)

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

    def takes(self, run: _Run, before: _Copy | None) -> _Copy:
        """Hold the whole of a run, after the copy before it."""
        copy = run.copies.get(self._number)
        if copy is not None:
            self._ends.pop(copy, None)
        else:
            copy = run.copies[self._number] = _Copy(run, before)
            if before is not None:
                before.is_followed()
        more, whole = len(run.marks) - copy.held, len(run.marks)
        if more:
            tokens = run.tokens(copy.held, whole)
            copy.held, copy.tokens = whole, copy.tokens + tokens
            self.marks, self._tokens = self.marks + more, self._tokens + tokens
        return copy

    def goes_on(self, copy: _Copy, marks: PrefixMarks) -> None:
        """This prompt goes on from a copy that no other does, of a run that no other engine holds: its marks take the place of that one's.

        A conversation that has become too long for marks at all its ends has fewer where it was shorter, and never asks
        for the others again.
        """
        first, tokens = len(marks) - 1, copy.tokens
        while first > 0 and marks[first - 1][1] > copy.run.before_bytes:
            first -= 1
        copy.run.marks = marks[first:]
        self.marks += len(copy.run.marks) - copy.held
        copy.held, copy.answered_tokens = len(copy.run.marks), 0
        copy.tokens = copy.run.tokens(0, copy.held)
        self._tokens += copy.tokens - tokens

    def ends_with(self, copy: _Copy) -> None:
        """The prompt that is used last ends there."""
        self._ends[copy] = None

    def lets_go(self) -> list[_Run]:
        """It holds nothing any more; return the runs of which it held a copy."""
        gone: list[_Run] = []
        for end in self._ends:
            copy: _Copy | None = end
            while copy is not None and copy.held:
                copy.held = 0
                gone.append(copy.run)
                copy = copy.before
        self.marks, self._tokens, self._ends = 0, 0, OrderedDict()
        return gone

    def shrink(self, most_marks: int) -> list[_Run]:
        """Forget what it has no room for: the prompts that were used least recently, of each the end before the beginning; return the runs that are gone."""
        gone: list[_Run] = []
        while self._ends and self._exceeds(most_marks):
            gone += self._forget_from(self._ends.popitem(last=False)[0], most_marks, last=False)
        return gone

    def forgets(self, end: _Copy, count: int) -> list[_Run]:
        """Forget so many of the last marks of a prompt, as far as no other needs them; return the runs that are gone."""
        if not count or end not in self._ends:
            return []
        del self._ends[end]
        return self._forget_from(end, self.marks - count, last=True)

    def _forget_from(self, end: _Copy, most_marks: int, *, last: bool) -> list[_Run]:
        """Forget this prompt from its end on, as far as no other needs it; what stays is used `last` of all, or first to go."""
        gone: list[_Run] = []
        copy: _Copy | None = end
        while copy is not None and not copy.follow:
            self._trim(copy, most_marks)
            if copy.held:
                self._ends[copy] = None
                self._ends.move_to_end(copy, last=last)
                break
            gone.append(copy.run)
            before = copy.before
            if before is not None:
                before.follow -= 1
            copy = None if before is None or before in self._ends else before
        return gone

    def _exceeds(self, most_marks: int) -> bool:
        return self.marks > most_marks or self._tokens > self.most_tokens

    def _trim(self, copy: _Copy, most_marks: int) -> None:
        """Forget as many of its last marks as there is no room for."""
        while copy.held and self._exceeds(most_marks):
            lost, tokens = copy.held, copy.tokens
            if self.marks - most_marks < lost and self._tokens - tokens < self.most_tokens:
                lost = 1
                if copy.held > 1:
                    tokens = copy.run.tokens(copy.held - 1, copy.held)
            copy.held, copy.tokens, copy.answered_tokens = copy.held - lost, copy.tokens - tokens, 0
            self.marks, self._tokens = self.marks - lost, self._tokens - tokens


class PrefixIndex:
    """What all engines hold, each under a number of its own; at most `most_marks` over all."""

    def __init__(self, most_marks: int = MOST_MARKS) -> None:
        self.predicted_tokens = self.found_tokens = 0
        """Of prompts that engines have answered which tell it: what was believed to be held of them, and what was found."""
        self.regret_tokens = 0
        """Tokens of prompts that were read although another engine held them."""
        self._most_marks = most_marks
        self._numbers: dict[str, int] = {}
        self._engines: dict[int, HeldPrefixes] = {}
        self._runs: dict[int, _Run] = {}
        # What was found of the prompt that was asked for last: a decision asks for it several times.
        self._asked: PrefixMarks = ()
        self._run: _Run | None = None
        self._position, self._common = -1, 0

    @property
    def marks(self) -> int:
        """How many marks are held, each counted once an engine."""
        return sum([engine.marks for engine in self._engines.values()])

    def enrol(self, name: str, kv_tokens: int | None) -> int:
        """Return the number of the engine of this name; with another memory than before it has begun anew."""
        number = self._numbers.get(name)
        if number is None:
            taken = set(self._numbers.values())
            number = next(free for free in range(len(taken) + 1) if free not in taken)
            self._numbers[name] = number
            self._engines[number] = HeldPrefixes(number)
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
        self._lost(number, self._engines[number].lets_go())

    def deepest(self, marks: PrefixMarks, prompt_tokens: int, most: int = MOST_HOLDERS) -> Held:
        """Return the engines that hold most of this prompt, those of its deepest run first, at most so many; changes nothing."""
        found: Held = {}
        run, common = self._find(marks), self._common
        while run is not None:
            for number, copy in run.copies.items():
                if number not in found:
                    found[number] = _held_tokens(copy, marks, prompt_tokens, min(common, copy.held))
                    if len(found) == most:
                        return found
            run = run.before()
            common = 0 if run is None else len(run.marks)
        return found

    def held_by(self, number: int, marks: PrefixMarks, prompt_tokens: int) -> int:
        """Return how many tokens of this prompt the engine is believed to hold; changes nothing."""
        run, common = self._find(marks), self._common
        while run is not None:
            copy = run.copies.get(number)
            if copy is not None:
                return _held_tokens(copy, marks, prompt_tokens, min(common, copy.held))
            run = run.before()
            common = 0 if run is None else len(run.marks)
        return 0

    def told_tokens(self, held: Held) -> int:
        """Return how much of what they hold of a prompt one of these engines will tell, as far as it has told such before."""
        return int(max([tokens * self._engines[number].told_share.mean for number, tokens in held.items()]))

    def placed(self, number: int, marks: PrefixMarks, prompt_tokens: int, regret_tokens: int = 0) -> None:
        """This prompt goes to this engine: from now on it holds it, its beginning longest.

        Another engine holds `regret_tokens` more of it than this one.
        """
        self.regret_tokens += regret_tokens
        if not marks:
            return
        engine, copy = self._engines[number], None
        run, known = self._find(marks), self._position + 1
        if run is not None:
            if self._common < len(run.marks):
                run = self._split(run, self._common)
            copy = _whole_copy(engine, number, run)
        if known < len(marks):
            if run is not None and copy is not None and len(run.copies) == 1 and not copy.follow:
                self._forget_keys(run)
                engine.goes_on(copy, marks)
            else:
                before_bytes = marks[known - 1][1] if known else 0
                run = _Run(marks[known:], before_bytes, prompt_tokens / marks[-1][1])
                copy = engine.takes(run, copy)
            self._runs[run.marks[0][0]] = self._runs[marks[-1][0]] = run
        assert copy is not None
        engine.ends_with(copy)
        self._evict(number)

    def refused(self, number: int, marks: PrefixMarks, prompt_tokens: int, held_tokens: int) -> None:
        """The engine has not read this prompt, of which it was believed to hold so many tokens when it was placed."""
        run = self._find(marks) if marks else None
        if run is not None and (copy := run.copies.get(number)) is not None:
            count = sum([mark[1] * prompt_tokens > held_tokens * marks[-1][1] for mark in marks])
            self._lost(number, self._engines[number].forgets(copy, count))

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
        engine, run = self._engines[number], self._runs.get(marks[-1][0])
        copy = None if run is None else run.copies.get(number)
        if copy is not None:
            copy.answered_tokens = prompt_tokens + output_tokens
        if not engine.tells(cached_tokens):
            return None
        self.predicted_tokens += believed_tokens
        self.found_tokens += cached_tokens or 0
        if not believed_tokens:
            return None
        lost_tokens = believed_tokens - (cached_tokens or 0)
        engine.found(all_of_it=lost_tokens <= BLOCK_TOKENS + ALIKE * believed_tokens)
        self._evict(number)
        share = min(1.0, (cached_tokens or 0) / believed_tokens)
        engine.told_share.add(share)
        return share

    def _find(self, marks: PrefixMarks) -> _Run | None:
        """Return the run that has the deepest known mark of this prompt; note its position there and how many marks of the run they have in common."""
        if marks is self._asked:
            return self._run
        self._asked, self._run, position = marks, None, len(marks)
        while self._run is None and position > 0:
            position -= 1
            self._run = self._runs.get(marks[position][0])
        if self._run is None:
            self._position = -1
        else:
            self._position, self._common = self._run.common(marks, position)
        return self._run

    def _split(self, run: _Run, count: int) -> _Run:
        """Divide a run after so many marks: a prompt ends or branches off there. Return the first of the two."""
        head = run.begins_with(count)
        runs = self._runs
        runs[head.marks[0][0]] = runs[head.marks[-1][0]] = head
        if run.copies:
            runs[run.marks[0][0]] = run
        else:
            self._forget_keys(run)
        return head

    def _evict(self, number: int) -> None:
        """Forget what the engine has no room for, and what the index has none for."""
        self._lost(number, self._engines[number].shrink(self._most_marks // len(self._engines)))

    def _lost(self, number: int, gone: list[_Run]) -> None:
        """This engine holds these runs no more."""
        self._asked, self._run, self._position = (), None, -1
        for run in gone:
            run.copies.pop(number, None)
            if not run.copies:
                self._forget_keys(run)

    def _forget_keys(self, run: _Run) -> None:
        for key in (run.marks[0][0], run.marks[-1][0]):
            if self._runs.get(key) is run:
                del self._runs[key]


def _whole_copy(engine: HeldPrefixes, number: int, run: _Run) -> _Copy:
    """Let this engine hold this run, and all that comes before it; return its copy."""
    above = None if number in run.copies else run.before()
    return engine.takes(run, None if above is None else _whole_copy(engine, number, above))


def _held_tokens(copy: _Copy, marks: PrefixMarks, prompt_tokens: int, common: int) -> int:
    """Return the tokens of this prompt up to so many marks of a run, and of the answer behind its last one."""
    own, whole_bytes = copy.run.marks, marks[-1][1]
    held_bytes, after = own[common - 1][1], len(marks) - 1
    tokens = int(prompt_tokens * held_bytes / whole_bytes + 0.5)
    if not copy.answered_tokens or common < len(own):
        return tokens
    while after > 0 and marks[after - 1][1] > held_bytes:
        after -= 1
    return min(copy.answered_tokens, int(prompt_tokens * marks[after][1] / whole_bytes + 0.5))
