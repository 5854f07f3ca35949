"""Which engine holds which prefix: what is found, what is forgotten, and what an answer teaches."""

from random import Random
from zlib import crc32

from hypothesis import given, strategies as st

from millgate.core.events import PrefixMarks
from millgate.core.routing.prefix_index import MOST_HOLDERS, Held, PrefixIndex


class _Index:
    """An index of prompts that have one token a byte."""

    def __init__(self, most_marks: int) -> None:
        self._index = PrefixIndex(most_marks)
        self.enrol, self.retire, self.forget = self._index.enrol, self._index.retire, self._index.forget
        self.answered = self._index.answered

    @property
    def marks(self) -> int:
        return self._index.marks

    def placed(self, number: int, marks: PrefixMarks) -> None:
        self._index.placed(number, marks, _size_of(marks))

    def refused(self, number: int, marks: PrefixMarks, held_tokens: int) -> None:
        self._index.refused(number, marks, _size_of(marks), held_tokens)

    def deepest(self, marks: PrefixMarks, most: int = MOST_HOLDERS) -> Held:
        return self._index.deepest(marks, _size_of(marks), most)

    def held_by(self, number: int, marks: PrefixMarks) -> int:
        return self._index.held_by(number, marks, _size_of(marks))


def _size_of(marks: PrefixMarks) -> int:
    return marks[-1][1] if marks else 0


def _index(*kv_tokens: int | None, most_marks: int = 1_000) -> _Index:
    index = _Index(most_marks)
    for number, tokens in enumerate(kv_tokens):
        assert index.enrol(f"engine {number}", tokens) == number
    return index


def _chat(name: str, turns: int, tokens: int = 100) -> PrefixMarks:
    """Return the marks of a conversation of so many messages of equal size."""
    return tuple((crc32(f"{name} {turn}".encode()), tokens * (turn + 1)) for turn in range(turns))


def test_the_next_turn_finds_the_engine_of_the_last_one_and_its_answer() -> None:
    index = _index(None, None)
    index.placed(1, _chat("a", 3))
    assert index.deepest(_chat("a", 5), 2) == {1: 300}

    index.answered(1, _chat("a", 3), 0, 310, 80, None)
    assert index.deepest(_chat("a", 5), 2) == {1: 390}, "310 tokens as counted, and the answer's 80"


def test_an_answer_counts_only_as_far_as_the_next_turn_repeats_it() -> None:
    index = _index(None)
    index.placed(0, _chat("a", 3))
    index.answered(0, _chat("a", 3), 0, 300, 5_000, None)

    assert index.held_by(0, _chat("a", 4)) == 400
    assert index.held_by(0, _chat("a", 3)) == 300, "the same prompt again has no answer in it"


def test_the_deepest_holder_comes_first_and_a_common_beginning_is_held_by_all() -> None:
    index = _index(None, None, None)
    for number, turns in ((0, 1), (1, 4), (2, 2)):
        index.placed(number, _chat("a", turns))

    assert index.deepest(_chat("a", 6), 2) == {1: 400, 2: 200}
    assert list(index.deepest(_chat("a", 6), 9).items())[-1] == (0, 100)
    assert index.held_by(2, _chat("a", 6)) == 200
    assert index.deepest(_chat("b", 6), 2) == {}
    assert index.deepest((), 2) == {}


def test_what_was_used_last_is_kept_and_ends_go_before_beginnings() -> None:
    index = _index(1_000)
    for name in ("a", "b"):
        index.placed(0, _chat(name, 6))
    assert index.held_by(0, _chat("a", 6)) == 600, "1,200 tokens are what 1,000 are believed to keep"

    index.placed(0, _chat("a", 6))
    index.placed(0, _chat("c", 2))
    assert index.held_by(0, _chat("b", 6)) == 400
    assert index.held_by(0, _chat("a", 6)) == 600


def test_an_engine_that_began_anew_holds_nothing() -> None:
    index = _index(1_000, None)
    index.placed(0, _chat("a", 3))
    index.placed(1, _chat("a", 3))

    assert index.enrol("engine 0", 500) == 0, "with another memory it was restarted"
    assert index.deepest(_chat("a", 3), 2) == {1: 300}
    index.forget(1)
    assert index.deepest(_chat("a", 3), 2) == {}
    assert index.marks == 0


def test_the_number_of_a_retired_engine_is_given_again_without_its_marks() -> None:
    index = _index(None, None)
    index.placed(0, _chat("a", 3))
    index.retire("engine 0")

    assert index.enrol("another", None) == 0
    assert index.held_by(0, _chat("a", 3)) == 0


def test_far_fewer_cached_tokens_than_believed_shrink_what_is_believed() -> None:
    index = _index(1_000)
    index.placed(0, _chat("a", 6))
    for _ in range(12):
        index.placed(0, _chat("b", 4))
        index.answered(0, _chat("b", 4), 400, 400, 0, 16)

    assert index.held_by(0, _chat("b", 4)) == 400, "it has just been read there"
    assert index.held_by(0, _chat("a", 6)) == 200, "0.95 ** 12 of 1,200 tokens are 648"


def test_an_engine_that_never_tells_teaches_nothing_and_one_that_leaves_a_zero_out_does() -> None:
    silent, telling = _index(1_000), _index(1_000)
    for index, first in ((silent, None), (telling, 400)):
        index.placed(0, _chat("a", 6))
        index.placed(0, _chat("b", 4))
        for cached in (first, *[None] * 12):
            index.answered(0, _chat("b", 4), 400, 400, 0, cached)

    assert silent.held_by(0, _chat("a", 6)) == 600
    assert telling.held_by(0, _chat("a", 6)) == 200


def test_a_difference_of_a_block_is_no_loss() -> None:
    index = _index(1_000)
    index.placed(0, _chat("a", 11))
    for _ in range(300):
        index.answered(0, _chat("a", 11), 1_100, 1_100, 0, 990)
    index.placed(0, _chat("b", 6))

    assert index.held_by(0, _chat("a", 11)) == 1_100, "a five-hundredth more each time: 1,700 tokens fit"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 8)), max_size=60),
    st.integers(3, 40),
)
def test_marks_are_bounded_and_both_sides_of_the_index_agree(
    placed: list[tuple[int, int, int]], most_marks: int
) -> None:
    index = _index(900, 2_000, None, most_marks=most_marks)
    for number, name, turns in placed:
        index.placed(number, _chat(str(name), turns))
        assert index.marks <= most_marks
    for name in range(10):
        chat = _chat(str(name), 8)
        by_engine = {(number, tokens) for number in range(3) if (tokens := index.held_by(number, chat))}
        assert set(index.deepest(chat, 3).items()) == by_engine


class _Plain:
    """What one engine holds where every mark of a prompt is noted as used, the last one first."""

    def __init__(self, most_tokens: float, most_marks: int) -> None:
        self.held: dict[int, int] = {}
        self._most_tokens, self._most_marks = most_tokens, most_marks

    def placed(self, marks: PrefixMarks) -> None:
        before = (0, *(tokens for _, tokens in marks))
        for position in range(len(marks) - 1, -1, -1):
            key, tokens = marks[position]
            self.held[key] = self.held.pop(key, tokens - before[position])
        while sum(self.held.values()) > self._most_tokens or len(self.held) > self._most_marks:
            del self.held[next(iter(self.held))]


_TREE = st.lists(st.tuples(st.integers(0, 1), st.text("ab", min_size=1, max_size=9)), max_size=40)
"""An engine and a prompt each, a letter a message: they branch off from each other anywhere, go on, and come again."""


def _branch(letters: str) -> PrefixMarks:
    return tuple((crc32(letters[: turn + 1].encode()), 100 * (turn + 1)) for turn in range(len(letters)))


@given(_TREE, st.integers(1, 30), st.sampled_from((None, 300, 1_000)))
def test_to_note_runs_and_the_ends_of_prompts_keeps_what_noting_every_mark_would(
    prompts: list[tuple[int, str]], most_marks: int, kv_tokens: int | None
) -> None:
    index = _index(kv_tokens, kv_tokens, most_marks=2 * most_marks)
    most_tokens = float("inf") if kv_tokens is None else 1.2 * kv_tokens
    plain = [_Plain(most_tokens, most_marks) for _ in range(2)]
    for number, letters in prompts:
        index.placed(number, _branch(letters))
        plain[number].placed(_branch(letters))
        for _, asked in prompts:
            for engine in range(2):
                held = [tokens for key, tokens in _branch(asked) if key in plain[engine].held]
                assert index.held_by(engine, _branch(asked)) == max(held, default=0), asked
        assert index.marks == len(plain[0].held) + len(plain[1].held)


@given(_TREE, st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_prompt_that_was_refused_leaves_what_was_held_before(
    prompts: list[tuple[int, str]], refused: list[bool]
) -> None:
    index = _index(None, None)

    def held() -> list[int]:
        return [index.held_by(engine, _branch(asked)) for _, asked in prompts for engine in range(2)]

    for (number, letters), is_refused in zip(prompts, refused, strict=False):
        before, held_tokens = held(), index.held_by(number, _branch(letters))
        index.placed(number, _branch(letters))
        if is_refused:
            index.refused(number, _branch(letters), held_tokens)
            assert held() == before
    for number in range(2):
        index.forget(number)
    assert index.marks == 0


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.booleans()), max_size=40),
    st.integers(1, 12),
)
def test_marks_that_come_twice_and_in_any_order_break_nothing(
    prompts: list[tuple[list[int], bool]], most_marks: int
) -> None:
    index = _index(500, None, most_marks=2 * most_marks)
    for number, (keys, is_refused) in enumerate(prompts):
        marks = tuple((key, 100 * (turn + 1)) for turn, key in enumerate(keys))
        index.placed(number % 2, marks)
        if is_refused:
            index.refused(number % 2, marks, 100)
        assert index.marks <= 2 * most_marks
    for number in range(2):
        index.forget(number)
    assert index.marks == 0
    assert index.deepest(((1, 1), (2, 2)), 2) == {}


def test_a_long_conversation_keeps_no_more_marks_than_it_asks_for() -> None:
    """It has marks at its first two and its last three ends alone; where others branch off one stays."""
    index, ends = _index(None, None, most_marks=24), _chat("a", 40)
    for turns in range(3, 41):
        index.placed(0, ends[:2] + ends[max(2, turns - 3) : turns])
    branch = ends[:2] + ends[37:39] + tuple((key, 3_900 + size) for key, size in _chat("b", 1))
    index.placed(0, branch)
    whole = ends[:2] + ends[37:40]
    index.placed(0, whole)
    assert index.held_by(0, whole) == 4_000
    assert index.held_by(0, branch) == 4_000
    assert index.marks <= 12


def test_sizes_of_marks_are_parts_of_the_prompt() -> None:
    index = PrefixIndex()
    index.enrol("engine", None)
    index.placed(0, ((1, 500), (2, 1_500)), 300)
    assert index.held_by(0, ((1, 500), (2, 1_500), (3, 2_000)), 400) == 300
    assert index.held_by(0, ((1, 500), (2, 1_500), (3, 2_000)), 800) == 600, (
        "now there are more tokens a byte"
    )


def test_a_full_index_of_64_engines_stays_full() -> None:
    dice, index = Random(1), _Index(6_400)
    for number in range(64):
        index.enrol(f"{number}", None)
    for _ in range(2_000):
        index.placed(dice.randrange(64), _chat(str(dice.randrange(500)), 12))

    assert 6_000 < index.marks <= 6_400
