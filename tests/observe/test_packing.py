"""Whatever the core decided about whatever was asked comes back from bytes as it went in."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from millgate.core.decisions import (
    Admit,
    Cancel,
    Candidate,
    Classed,
    Decision,
    Ended,
    Leg,
    Queue,
    QuotaState,
    Reshaped,
    Yield,
)
from millgate.core.events import Arrived
from millgate.core.words import ClassedBy, Counted, FailureKind, Outcome, QuotaKind, Reason, Stage
from millgate.observe.packing import may_name, pack, unpack, unpack_decision
from millgate.observe.ring import Kept, Ring, arrival_of, facts_of

Fields = dict[str, st.SearchStrategy[Any]]

NUMBERS = st.integers()
TIMES = st.floats(allow_nan=False)
TRUTHS = st.booleans()
TEXTS = st.text(st.characters(exclude_categories=[]))
"""Every string that Python has, halves of surrogate pairs included."""
ATTEMPTS = st.integers(0, 2**63 - 1)
REASONS = st.sampled_from(Reason)

ARRIVAL: Fields = {
    "attempt": ATTEMPTS,
    "tenant": TEXTS,
    "lane": st.none() | TEXTS,
    "model": TEXTS,
    "prompt_bytes": NUMBERS,
    "body_bytes": NUMBERS,
    "max_tokens": st.none() | NUMBERS,
    "answers": NUMBERS,
    "stream": TRUTHS,
    "time_allowed_s": st.none() | TIMES,
    "retry_count": st.none() | NUMBERS,
    "first_seen": st.none() | TIMES,
    "max_wait_s": st.none() | TIMES,
    "due_at": st.none() | TIMES,
    "caps_sleep": TRUTHS,
    "min_tokens": NUMBERS,
    "fixed_tokens": NUMBERS,
    "engine": st.none() | TEXTS,
    "may_clip": TRUTHS,
    "hint_s": TIMES,
    "seen_late": TRUTHS,
    "hands_over": TRUTHS,
    "bootstraps": TRUTHS,
    "of_agent": TRUTHS,
    "prompt_shape": st.none() | st.tuples(*[NUMBERS] * 7),
    "fingerprint": st.just(len),
    "marks": st.just(tuple),
    "session": st.just(5),
}
CANDIDATE: Fields = {"engine": TEXTS, "cached_tokens": NUMBERS, "prompt_tokens": NUMBERS, "cost_s": TIMES}
LEG: Fields = {"engine": TEXTS, "streams": NUMBERS, "kv_tokens": NUMBERS, "prompt_tokens": NUMBERS}
QUOTA: Fields = {
    "rule": TEXTS,
    "kind": st.sampled_from(QuotaKind),
    "limit": TIMES,
    "remaining": TIMES,
    "reset_s": TIMES,
}
CLASSED: Fields = {
    "lane": TEXTS,
    "by": st.sampled_from(ClassedBy),
    "prompt_tokens": NUMBERS,
    "value_s": TIMES,
    "bound_s": TIMES,
}
MAYBE_CLASSED = st.none() | st.builds(Classed, **CLASSED)
RESHAPED: Fields = {"lane": st.none() | TEXTS, "max_tokens": st.none() | NUMBERS}


def several(kind: type[Leg | QuotaState | Candidate], fields: Fields) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.builds(kind, **fields), max_size=3).map(tuple)


ADMIT: Fields = {
    "attempt": ATTEMPTS,
    "legs": several(Leg, LEG),
    "waited_s": TIMES,
    "expected_ttft_s": TIMES,
    "first_event_by": TIMES,
    "would": st.none() | REASONS,
    "reshaped": st.none() | st.builds(Reshaped, **RESHAPED),
    "quota": several(QuotaState, QUOTA),
    "due_at": st.none() | TIMES,
    "window_s": TIMES,
    "classed": MAYBE_CLASSED,
    "candidates": several(Candidate, CANDIDATE),
    "first_seen": TIMES,
    "beyond_others": TRUTHS,
}
HOLD: Fields = {
    "attempt": ATTEMPTS,
    "place": NUMBERS,
    "expected_wait_s": TIMES,
    "classed": MAYBE_CLASSED,
    "candidates": several(Candidate, CANDIDATE),
    "better_until": TIMES,
    "counted": st.none() | st.sampled_from(Counted),
}
YIELD: Fields = {
    "attempt": ATTEMPTS,
    "reason": REASONS,
    "retry_after_s": TIMES,
    "retry": TRUTHS,
    "value": TIMES | NUMBERS,
    "bound": TIMES | NUMBERS,
    "first_seen": TIMES,
    "quota": several(QuotaState, QUOTA),
    "counted": st.none() | st.sampled_from(Counted),
    "promised": TIMES | NUMBERS,
    "classed": MAYBE_CLASSED,
}
CANCEL: Fields = {"attempt": ATTEMPTS, "reason": REASONS, "retry_after_s": TIMES}
ENDED: Fields = {
    "attempt": ATTEMPTS,
    "outcome": st.sampled_from(Outcome),
    "lane": TEXTS,
    "engine": st.none() | TEXTS,
    "waited_s": TIMES,
    "total_s": TIMES,
    "ttft_s": st.none() | TIMES,
    "prompt_tokens": NUMBERS,
    "output_tokens": NUMBERS,
    "cause": st.none() | REASONS | st.sampled_from(Stage) | st.sampled_from(FailureKind),
    "cached_tokens": st.none() | NUMBERS,
}
RECORDS = [
    (Arrived, ARRIVAL),
    (Leg, LEG),
    (QuotaState, QUOTA),
    (Reshaped, RESHAPED),
    (Classed, CLASSED),
    (Admit, ADMIT),
    (Queue, HOLD),
    (Yield, YIELD),
    (Cancel, CANCEL),
    (Ended, ENDED),
]
ARRIVALS = st.builds(Arrived, **ARRIVAL)
DECISIONS: st.SearchStrategy[Decision] = st.one_of(
    st.builds(Admit, **ADMIT),
    st.builds(Queue, **HOLD),
    st.builds(Yield, **YIELD),
    st.builds(Cancel, **CANCEL),
    st.builds(Ended, **ENDED),
)


def joined(value: Any) -> Any:
    """Return the same where two halves of a pair in a row are the one character that they are halves of."""
    if type(value) is str:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return tuple([joined(each) for each in value]) if isinstance(value, tuple) else value


def kinds(value: Any) -> Any:
    """Return the type of a value and those of everything in it."""
    return type(value), [kinds(each) for each in value] if isinstance(value, tuple) else None


@pytest.mark.parametrize(("record", "fields"), RECORDS)
def test_every_field_of_every_record_is_tried(record: Any, fields: Fields) -> None:
    assert tuple(fields) == record._fields


@settings(max_examples=150)
@given(st.floats(), st.none() | ARRIVALS, st.lists(DECISIONS, max_size=4))
def test_every_step_comes_back_as_it_was(
    at: float, arrival: Arrived | None, decisions: list[Decision]
) -> None:
    facts = None if arrival is None else facts_of(arrival)
    ((again_at, again_facts, again),) = unpack(pack([(at, facts, tuple(decisions))]))

    made = [unpack_decision(fields) for fields in again]
    assert repr(again_at) == repr(at)
    assert made == [joined(decision) for decision in decisions]
    assert [kinds(each) for each in made] == [kinds(each) for each in decisions]
    if arrival is None:
        assert again_facts is None
    else:
        assert arrival_of(tuple(again_facts)) == joined(
            arrival._replace(prompt_shape=None, fingerprint=None, marks=None, session=None)
        )


@given(st.lists(st.tuples(st.none() | ARRIVALS, DECISIONS), max_size=4))
def test_an_attempt_that_is_in_a_batch_is_never_overlooked(asked: list[tuple[Any, Decision]]) -> None:
    packed = pack([(0.0, None if each is None else facts_of(each), (made,)) for each, made in asked])

    assert all(may_name(packed, made.attempt) for _, made in asked)
    assert all(may_name(packed, each.attempt) for each, _ in asked if each is not None)


@pytest.mark.parametrize("strange", [2**63, 2**64, 10**4000])
def test_a_batch_without_an_attempt_is_passed_over_whatever_else_is_in_it(strange: int) -> None:
    packed = pack([(0.0, facts_of(Arrived(70_000, max_tokens=strange)), (Queue(70_000, 1, 2.5),))])

    assert may_name(packed, 70_000)
    assert not may_name(packed, 80_000)


@pytest.mark.parametrize("strange", [2**64, -(2**63) - 1, 10**4000])
def test_a_number_that_no_door_lets_in_loses_nothing(strange: int) -> None:
    ring = Ring()
    hold = Queue(2, 1, 0.5)
    steps: list[Kept] = [
        (1.0, facts_of(Arrived(1, "acme\udcff", max_tokens=strange)), (Queue(1, 1, float("inf")),)),
        (2.0, None, (hold,)),
    ]
    ring.extend(steps)

    assert [step for _, step in ring.newest(9)] == steps[::-1]
    assert ring.find("2")[0].steps[0].decisions == (hold,)
    arrival = ring.find("1")[0].steps[0].arrival
    assert arrival is not None
    assert arrival.max_tokens == strange


def test_words_of_closed_lists_say_alone_what_they_are() -> None:
    causes = [word.value for words in (Stage, FailureKind, Reason) for word in words]
    assert len(set(causes)) == len(causes)
    assert not {word.value for word in Outcome} & {word.value for word in Reason}
    assert len(Cancel._fields) != len(Yield._fields)
