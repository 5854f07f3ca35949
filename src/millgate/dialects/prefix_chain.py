"""Marks of a conversation's prefixes: a chained hash at the ends of its messages, and how much content lies before each.

Two conversations that begin alike have equal marks as far as that goes, whatever follows. So the marks under which an
engine was sent a prompt say how much of another prompt it has in its cache. They are no engine's own block hashes:
those need its tokenizer, its template and its seed.

Each piece is hashed with the hash before it as its seed (XXH3, https://xxhash.com), so one changed byte changes every later
mark. The hash is no secure one: a forged collision misplaces the request that forged it and reveals nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from msgspec import Raw
from xxhash import xxh3_64_intdigest

from millgate.core.events import PrefixMarks

MOST_MARKS: Final = 32
"""Of one conversation; the index of an engine's cache keeps as many entries for it."""
_FIRST_ENDS: Final = 5
"""Tools, blocks of a system prompt, the first message: what conversations of one program have in common, and what tells
them apart."""
_LAST_ENDS: Final = 16
"""A turn adds an answer and the results of its tools, which may be a message each; and clients change the newest messages."""
_ASKED_ENDS: Final = 6
"""Ends that an answer of the model follows are those of earlier requests, however many results of tools came after them."""
_LONG_PIECE_BYTES: Final = 4096
"""A longer text has marks inside: two requests may begin with one document and end with two questions."""
_GRID: Final = tuple([int(4096 * 2 ** (step / 4)) for step in range(1, 60)])
"""Places of further marks, in bytes of content, a fifth apart, up to more than the largest body. Absolute, so that the marks
of a conversation are among those that it had when it was shorter."""
_TURN_BYTES: Final = 16
"""What a template writes around a message: four or five tokens (ChatML: `<|im_start|>`, a role, two line ends, `<|im_end|>`)."""
# So many bits fit in what CPython computes with without an allocation.
_MASK: Final = (1 << 60) - 1
# Compiled, a name from elsewhere is looked up each time it is used, and a constant is not.
_digest: Final = xxh3_64_intdigest


def mark_seed(secret: bytes) -> int:
    """Return the seed of all chains that are made with this secret: gates that share it make the same marks."""
    return int.from_bytes(blake2b(secret, digest_size=8, person=b"prefix marks").digest(), "big") & _MASK


def seed_of(role: str) -> int:
    """Return the number by which the messages of this role differ from the same words of others."""
    return _digest(role.encode(errors="replace")) & _MASK


class PrefixChain:
    """One conversation, piece by piece in the order in which a template writes it: root, tools, system prompt, messages.

    The `kind` of a piece is part of its hash: a name is not a text.
    """

    def __init__(self, seed: int) -> None:
        self.pieces = 0
        """Its messages and their parts, counted by what reads them."""
        self._hash = seed
        self._size_bytes = 0
        self._begun_at = -1
        self._asked: list[int] = []
        self._ends: list[tuple[int, int]] = []
        self._inside: dict[int, tuple[int, int]] = {}

    def root(self, kind: int, piece: bytes | Raw) -> None:
        """Hash what changes every token after it and is no content: the model, a salt, arguments of the template."""
        self._hash = _digest(piece, self._hash ^ kind) & _MASK

    def begin(self, role: int) -> None:
        """Begin a message; one that turns out to have no piece has a hash of its own all the same."""
        self._hash ^= role
        self._begun_at = self._size_bytes

    def add(self, kind: int, piece: bytes | Raw) -> None:
        """Hash a piece of content."""
        size_bytes = len(piece)
        if size_bytes > _LONG_PIECE_BYTES:
            self._add_long(kind, piece)
        else:
            self._hash = _digest(piece, self._hash ^ kind) & _MASK
            self._size_bytes += size_bytes

    def _add_long(self, kind: int, piece: bytes | Raw) -> None:
        """Hash it from one place of the grid to the next, with a mark at each."""
        view = memoryview(piece)
        link, begin, base = self._hash ^ kind, 0, self._size_bytes
        for number in range(bisect_right(_GRID, base), bisect_left(_GRID, base + len(piece))):
            place = _GRID[number]
            link = _digest(view[begin : place - base], link) & _MASK
            self._inside[number] = (link, place)
            begin = place - base
        self._hash = _digest(view[begin:], link) & _MASK
        self._size_bytes = base + len(piece)

    def add_message(self, role: int, text: bytes) -> None:
        """Hash a message that is nothing but text, as most are, and mark its end: as `begin`, `add` with kind 0, and `end`."""
        if len(text) > _LONG_PIECE_BYTES:
            self._add_long(role, text)
            self.end()
            return
        self._hash = link = _digest(text, self._hash ^ role) & _MASK
        self._size_bytes = size_bytes = self._size_bytes + len(text) + _TURN_BYTES
        self._ends.append((link, size_bytes))

    def add_sized(self, kind: int, piece: bytes | Raw, size_bytes: int) -> None:
        """Hash a piece that counts as so many bytes of text, such as an image."""
        self._hash = _digest(piece, self._hash ^ kind) & _MASK
        self._size_bytes += size_bytes

    @property
    def is_long(self) -> bool:
        """Whether there may be too many ends to keep them all."""
        return len(self._ends) > _FIRST_ENDS + _LAST_ENDS

    def note_answers(self, answers: list[bool]) -> None:
        """Take note which of the last messages are the model's: before each answer an earlier request has ended."""
        first = len(self._ends) - len(answers)
        self._asked = [first + at - 1 for at in range(1, len(answers)) if answers[at] and not answers[at - 1]]

    def end(self) -> None:
        """Mark the end of a message, or of what stands before the first."""
        if self._size_bytes == self._begun_at:
            self._hash = _digest(b"", self._hash) & _MASK
        self._size_bytes += _TURN_BYTES
        self._ends.append((self._hash, self._size_bytes))

    def marks(self) -> PrefixMarks:
        """Return the marks that are kept, the shortest prefix first; the last one is the whole conversation's.

        Of too many are kept the first and the last ends, those that answers of the model follow, and of the others those next
        to places of a grid, of which a longer conversation keeps fewer: the marks of a continuation, as far as the conversation
        had gone before, are among those that it had then.
        """
        ends = self._ends
        if not self._inside and len(ends) <= MOST_MARKS:
            return tuple(ends)
        if self.is_long:
            return self._thinned(ends)
        return tuple(sorted([*ends, *_sample(self._inside, MOST_MARKS - len(ends))], key=_size_of))

    def _thinned(self, ends: list[tuple[int, int]]) -> PrefixMarks:
        sizes = [size_bytes for _, size_bytes in ends]
        last = len(ends) - _LAST_ENDS
        samples = dict(self._inside)
        for number in range(bisect_right(_GRID, self._size_bytes)):
            end = bisect_left(sizes, _GRID[number])
            if number not in samples and _FIRST_ENDS <= end < last:
                samples[number] = ends[end]
        asked = [ends[end] for end in self._asked if _FIRST_ENDS <= end < last]
        kept = ends[:_FIRST_ENDS] + asked[-_ASKED_ENDS:] + ends[last:]
        kept += _sample(samples, MOST_MARKS - len(kept))
        return tuple(sorted(dict.fromkeys(kept), key=_size_of))


def _sample(samples: dict[int, tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return at most so many: places of the coarser grids first, and of one grid the deepest."""
    return [samples[number] for number in sorted(samples, key=_rank)[-most:]]


def _size_of(mark: tuple[int, int]) -> int:
    return mark[1]


def _rank(number: int) -> tuple[int, int]:
    """Rank the places of a grid: those of each twice as coarse grid above the others."""
    place = number + 1
    return place & -place, place


ConversationReader = Callable[[bytes, PrefixChain], None]
"""Reads the conversation of a good JSON body into a chain; raises what decoding raises."""
