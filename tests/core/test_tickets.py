"""Who was told to come back when, and who is that now coming back: the rules of recognition, and their bounds."""

from itertools import count
from random import Random

import pytest
from hypothesis import given, settings, strategies as some

from headgate.core.tickets import EARLY_S, SOONEST_RETURN_S, Entry, Places

NUMBERS = count(1)


def _entry(
    first_seen: float = 0.0,
    due_at: float | None = 10.0,
    *,
    tenant: str = "t",
    body: int = 7,
    known_until: float = 20.0,
    place_until: float = 12.0,
) -> Entry:
    until = 0.0 if due_at is None else place_until
    known_from = first_seen + SOONEST_RETURN_S
    return Entry(tenant, body, first_seen, next(NUMBERS), known_from, known_until, due_at, until)


def _places(*entries: Entry, bound: int = 100) -> Places:
    places = Places(bound)
    for entry in entries:
        assert places.leave(entry)
    return places


def test_only_the_same_tenant_and_the_same_body_match() -> None:
    entry = _entry()
    places = _places(entry)
    assert places.match("t", 7, 10.0, None) is entry
    assert places.match("t", 8, 10.0, None) is None
    assert places.match("u", 7, 10.0, None) is None
    assert places.knows("t")
    assert not places.knows("u")


def test_equal_bodies_at_once_are_not_retries() -> None:
    """Nobody who was told to wait is back within the shortest hint."""
    places = _places(_entry(first_seen=5.0))
    assert places.match("t", 7, 5.0, 1) is None
    assert places.match("t", 7, 5.0 + SOONEST_RETURN_S / 2, None) is None
    assert places.match("t", 7, 5.0 + SOONEST_RETURN_S, None) is not None


@pytest.mark.parametrize(
    ("label", "now", "matches"),
    [
        (None, 5.0, True),
        (1, 5.0, True),
        (0, 5.0, False),
        (0, 10.0 - EARLY_S, True),
        (0, 10.0, True),
        (0, 19.9, True),
        (1, 20.0, False),
    ],
)
def test_a_label_of_zero_is_believed_until_shortly_before_the_hint(
    label: int | None, now: float, matches: bool
) -> None:
    assert (_places(_entry()).match("t", 7, now, label) is not None) is matches


def test_an_entry_without_a_place_matches_any_label_and_is_never_due() -> None:
    """Somebody who hung up and presses refresh comes with a first attempt's label, and was promised nothing."""
    entry = _entry(due_at=None)
    places = _places(entry)
    assert places.match("t", 7, 1.0, 0) is entry
    assert not entry.is_due(19.0)
    assert (places.places, places.entries, places.tenants) == (0, 1, 0)


@pytest.mark.parametrize(("now", "due"), [(8.9, False), (9.0, True), (10.0, True), (11.9, True)])
def test_due_is_from_one_second_before_the_hint_on(now: float, due: bool) -> None:
    assert _entry().is_due(now) is due


def test_of_a_short_hint_only_the_second_half_is_early_enough() -> None:
    """A crowd of equal first attempts that arrives over 0.3 s is not taken for the first of them coming back."""
    places = _places(_entry(first_seen=0.0, due_at=0.75))

    assert not any(places.match("t", 7, ms / 1000.0, 0) for ms in range(0, 400, 20))
    assert places.match("t", 7, 0.5, 0) is not None


def test_among_equal_bodies_the_first_due_is_taken_and_only_once() -> None:
    late, soon = _entry(first_seen=1.0, due_at=11.0), _entry(first_seen=0.0, due_at=10.0)
    places = _places(late, soon)
    assert places.match("t", 7, 11.0, None) is soon
    places.take(soon)
    assert places.match("t", 7, 11.0, None) is late
    places.take(late)
    places.take(late)
    assert places.match("t", 7, 11.0, None) is None
    assert (places.places, places.entries) == (0, 0)


def test_one_refused_just_now_does_not_hide_an_equal_one_that_may_match() -> None:
    just_now, old = _entry(first_seen=9.95, due_at=10.05), _entry(first_seen=0.0, due_at=10.1)
    assert _places(just_now, old).match("t", 7, 10.0, None) is old


def test_a_place_is_the_age_in_the_own_line_times_the_tenants_in_line() -> None:
    mine = [_entry(float(age), tenant="a") for age in range(4)]
    places = _places(*mine)
    assert places.rank("a", 99.0, 10**9, 4.0) == 5
    assert places.rank("a", 1.5, 10**9, 4.0) == 3
    assert places.rank("b", 0.0, 10**9, 4.0) == 2
    _places_more = _entry(0.0, tenant="b")
    places.leave(_places_more)
    assert places.rank("a", 0.5, 10**9, 4.0) == 4
    assert places.rank("b", 99.0, 10**9, 4.0) == 4
    assert places.rank("c", 0.0, 10**9, 4.0) == 3
    # Nobody is behind more than everybody.
    assert places.rank("a", 99.0, 10**9, 4.0) == 6


def test_inv_7_equal_ages_keep_their_numbers_order() -> None:
    """INV-7: who arrived in the same instant as everybody else stands where its number says."""
    same = [_entry(0.0) for _ in range(5)]
    places = _places(*same)
    assert [places.rank("t", 0.0, entry.number, 1.0) for entry in same] == [1, 2, 3, 4, 5]


def test_a_place_ends_before_its_entry() -> None:
    places = _places(_entry())
    places.expire(11.9)
    assert (places.places, places.entries, places.tenants) == (1, 1, 1)
    places.expire(12.0)
    assert (places.places, places.entries, places.tenants) == (0, 1, 0)
    assert places.match("t", 7, 13.0, None) is not None
    places.expire(20.0)
    assert (places.places, places.entries) == (0, 0)
    assert not places.knows("t")


def test_a_look_ahead_sees_what_will_be_over_and_changes_nothing() -> None:
    places = _places(_entry(), _entry(tenant="u", place_until=15.0))
    assert places.standing(13.0) == (1, 2)
    assert places.rank("t", 99.0, 10**9, 13.0) == 2
    assert places.rank("t", 99.0, 10**9, 25.0) == 1
    assert places.standing(25.0) == (0, 0)
    assert places.standing(5.0) == (2, 2)


def test_at_the_bound_the_longest_line_loses_its_newest_place() -> None:
    long = [_entry(float(age), tenant="long") for age in range(3)]
    places = _places(*long, _entry(tenant="short"), bound=4)
    assert places.has_room_for("short", 4.0)
    assert places.leave(_entry(9.0, tenant="short", body=8))
    assert [entry.live for entry in long] == [True, True, False]
    assert (places.entries, places.dropped) == (4, 1)


def test_at_the_bound_a_newcomer_of_the_longest_line_gets_no_place() -> None:
    places = _places(_entry(tenant="long"), _entry(tenant="long"), _entry(tenant="short"), bound=3)
    assert not places.has_room_for("long", 1.0)
    assert not places.leave(_entry(tenant="long"))
    assert (places.entries, places.dropped) == (3, 1)


def test_the_longest_line_is_known_after_it_has_shrunk() -> None:
    once_long = [_entry(tenant="once") for _ in range(4)]
    other = [_entry(tenant="other") for _ in range(3)]
    places = _places(*once_long, *other, bound=7)
    for entry in once_long:
        places.take(entry)
    for _ in range(4):
        places.leave(_entry(tenant="new"))
    assert places.leave(_entry(tenant="third"))
    assert not all(entry.live for entry in [*other, *once_long])
    assert places.entries == 7


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    some.lists(
        some.tuples(some.integers(0, 2), some.integers(0, 3), some.integers(0, 5), some.booleans()),
        max_size=40,
    )
)
def test_inv_3_and_inv_5_whatever_happens_the_counts_are_true_and_everything_ends(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """INV-3 and INV-5: leave, take and expire in any order; counts equal a recount, and nothing is left at the end."""
    places, entries, now = Places(8), [], 0.0
    for what, who, size, promised in steps:
        now += size / 3
        places.expire(now)
        if what:
            due_at = now + size if promised else None
            entry = _entry(
                now,
                due_at,
                tenant=str(who),
                body=size,
                known_until=now + size + 3,
                place_until=now + size + 1,
            )
            if places.leave(entry):
                entries.append(entry)
        elif entries:
            places.take(entries[size % len(entries)])
        live = [entry for entry in entries if entry.live]
        placed = [entry for entry in live if entry.place_until > 0.0]
        assert places.entries == len(live) <= 8
        assert places.places == len(placed)
        assert places.tenants == len({entry.tenant for entry in placed})
        assert places.standing(now) == (len(placed), len(live))
    places.expire(now + 100.0)
    assert (places.entries, places.places, places.tenants) == (0, 0, 0)
    assert not any(places.knows(str(who)) for who in range(4))


def test_inv_5_a_hundred_thousand_entries_are_kept_and_no_search_walks_them() -> None:
    """INV-5: one bound over all; the heap of ends stays in proportion; equal bodies cost a few looks each."""
    places, dice = Places(100_000), Random(1)
    entries = []
    for number in range(100_000):
        tenant, body = ("crowd", 0) if number % 5 == 0 else (f"t{number % 1_000}", number)
        entries.append(_entry(number * 1e-4, 10.0 + dice.random(), tenant=tenant, body=body))
        assert places.leave(entries[-1])
    looked = 0

    class Looked(int):
        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    assert places.match("crowd", Looked(0), 20.5, None) is None
    assert looked < 20
    assert places.rank("crowd", 5.0, 10**9, 5.0) > 10_000
    for entry in entries[:25_000:5]:
        places.take(entry)
        assert places.leave(_entry(entry.first_seen, 11.0, tenant="crowd", body=0))
    assert places.entries == 100_000
    assert len(places._by_end) <= 2 * (100_000 + 1_000) + 1
    places.expire(1_000.0)
    assert (places.entries, places.places, places.tenants, len(places._by_end)) == (0, 0, 0, 0)
