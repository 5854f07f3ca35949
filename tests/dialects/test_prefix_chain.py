"""Marks of prefixes: equal as far as two conversations begin alike, different from the first changed byte on, and few."""

from itertools import pairwise

from hypothesis import given, strategies as some

from millgate.core.events import PrefixMarks
from millgate.dialects.prefix_chain import MOST_MARKS, PrefixChain, mark_seed, seed_of

_SEED = mark_seed(b"a secret")
_USER = seed_of("user")
_text = some.binary(min_size=1, max_size=40) | some.integers(1, 60_000).map(bytes)
_texts = some.lists(_text, max_size=80)


def _marks(texts: list[bytes], seed: int = _SEED, answers: list[bool] | None = None) -> PrefixMarks:
    chain = PrefixChain(seed)
    for text in texts:
        chain.add_message(_USER, text)
    if answers is not None:
        chain.note_answers(answers)
    return chain.marks()


@given(some.lists(some.tuples(_text, some.booleans()), max_size=120), some.integers(0, 120))
def test_an_engine_that_had_a_conversation_has_every_mark_of_its_continuation(
    messages: list[tuple[bytes, bool]], cut: int
) -> None:
    texts, answers = [text for text, _ in messages], [answer for _, answer in messages]
    had, has = _marks(texts[:cut], answers=answers[:cut]), _marks(texts, answers=answers)
    end = had[-1][1] if had else 0
    assert {mark for mark in has if mark[1] <= end} <= set(had)


@given(_texts.filter(len), some.lists(some.just(b"ok"), max_size=15))
def test_the_end_of_a_conversation_is_found_sixteen_messages_later(
    before: list[bytes], added: list[bytes]
) -> None:
    assert _marks(before)[-1] in _marks(before + added)


def test_the_end_of_a_request_is_found_behind_any_number_of_results_of_tools() -> None:
    before, added = [b"x" * 3000] * 40, [b"calls"] + [b"y" * 3000] * 200
    answers = [False, True] * 19 + [False, False]
    end = _marks(before, answers=answers)[-1]
    assert end in _marks(before + added, answers=answers + [True] + [False] * 200)
    assert end not in _marks(before + added)


@given(_texts.filter(len), some.data())
def test_one_changed_byte_changes_all_later_marks_and_no_earlier_one(
    texts: list[bytes], data: some.DataObject
) -> None:
    at = data.draw(some.integers(0, len(texts) - 1))
    text = bytearray(texts[at])
    byte = data.draw(some.integers(0, len(text) - 1))
    text[byte] ^= data.draw(some.integers(1, 255))
    one, other = _marks(texts), _marks([*texts[:at], bytes(text), *texts[at + 1 :]])
    changed = sum(len(earlier) + 16 for earlier in texts[:at]) + byte
    assert [size for _, size in one] == [size for _, size in other]
    for (mark, size), (other_mark, _) in zip(one, other, strict=True):
        assert (mark == other_mark) == (size <= changed)


@given(_texts)
def test_marks_are_few_rise_and_end_with_the_whole_conversation(texts: list[bytes]) -> None:
    marks = _marks(texts)
    sizes = [size for _, size in marks]
    assert len(marks) <= MOST_MARKS
    assert sizes == sorted(set(sizes))
    assert sizes[-1:] == [sum(len(text) + 16 for text in texts)][: len(texts)]
    assert all(0 <= mark < 2**60 for mark, _ in marks)


@given(some.integers(33, 400), some.integers(500, 3000))
def test_of_a_long_conversation_no_part_is_without_marks(messages: int, size: int) -> None:
    message = size + 16
    places = [place for _, place in _marks([b"x" * size] * messages)]
    for before, after in pairwise(places[5:]):
        assert after <= max(2 * before, 8192) + message


def test_two_requests_with_one_document_have_marks_inside_it() -> None:
    document = bytes(range(256)) * 400
    one, other = _marks([document + b"What?"]), _marks([document + b"Why?"])
    common = set(one) & set(other)
    assert max(size for _, size in common) > 0.8 * len(document)
    assert one[-1][0] != other[-1][0]


def test_a_message_is_known_by_its_role_its_pieces_and_their_kinds() -> None:
    def ends(role: str, *pieces: tuple[int, bytes]) -> int:
        chain = PrefixChain(_SEED)
        chain.begin(seed_of(role))
        for kind, piece in pieces:
            chain.add(kind, piece)
        chain.end()
        return chain.marks()[-1][0]

    told = [
        ends("user", (0, b"ab")),
        ends("tool", (0, b"ab")),
        ends("user", (1, b"ab")),
        ends("user", (0, b"a"), (0, b"b")),
        ends("user", (0, b"b"), (0, b"a")),
        ends("user"),
    ]
    assert len(set(told)) == len(told)
    assert _marks([b"ab"])[-1][0] == told[0]


def test_messages_without_a_word_count() -> None:
    def empty(times: int) -> PrefixMarks:
        chain = PrefixChain(_SEED)
        for _ in range(times):
            chain.begin(_USER)
            chain.end()
        return chain.marks()

    assert empty(4)[:2] == empty(2)
    assert len({mark for mark, _ in empty(4)}) == 4


def test_another_secret_makes_other_marks_and_the_same_one_the_same() -> None:
    assert _marks([b"a"], mark_seed(b"1")) == _marks([b"a"], mark_seed(b"1"))
    assert _marks([b"a"], mark_seed(b"1")) != _marks([b"a"], mark_seed(b"2"))
