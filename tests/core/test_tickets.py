"""Who was told to come back when, and who is that now coming back: the rules of recognition, and their bounds."""

import tracemalloc
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings, strategies as some

from millgate.core.tickets import FORGOTTEN_PER_EVENT, MOST_PLACES, SOONEST_RETURN_S, Entry, Places

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


def _found(places: Places, entry: Entry, now: float | None = None) -> Entry:
    """Return the record as `match` returns it to a labelled retry of its own body at its own time."""
    at = (entry.due_at or entry.known_from) if now is None else now
    found = places.match(entry.tenant, entry.fingerprint, at, 1)
    assert found is not None
    return found


def _refused_again(found: Entry, **change: float) -> Entry:
    """Return the record that a request leaves that was found and is refused again, but for these fields."""
    names = (
        "tenant fingerprint first_seen number known_from known_until due_at place_until lined_up_at "
        "early_returns turn"
    )
    return Entry(**{name: getattr(found, name) for name in names.split()} | change)


def _places(*entries: Entry, bound: int = 100) -> Places:
    places = Places(bound)
    for entry in entries:
        assert places.leave(entry)
    return places


def _rank(places: Places, tenant: str, lined_up_at: float, number: int, now: float) -> int:
    """Return the fair place (1 is next) of a request of this age among those who are expected back."""
    return places.stand(tenant, lined_up_at, number, now).place


def test_only_the_same_tenant_and_the_same_body_match() -> None:
    entry = _entry()
    places = _places(entry)
    found = places.match("t", 7, 10.0, None)
    assert found is not None
    assert found.number == entry.number
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
        (0, 9.0, True),
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
    found = places.match("t", 7, 1.0, 0)
    assert found is not None
    assert (found.number, found.due_at) == (entry.number, None)
    assert not found.is_due(19.0)
    assert not found.is_early(1.0)
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
    first = _found(places, soon, 11.0)
    assert first.number == soon.number
    places.take(first)
    second = _found(places, late, 11.0)
    assert second.number == late.number
    places.take(second)
    places.take(second)
    assert places.match("t", 7, 11.0, None) is None
    assert (places.places, places.entries) == (0, 0)


def test_one_refused_just_now_does_not_hide_an_equal_one_that_may_match() -> None:
    just_now, old = _entry(first_seen=9.95, due_at=10.05), _entry(first_seen=0.0, due_at=10.1)
    assert _found(_places(just_now, old), old, 10.0).number == old.number


def test_a_tenant_alone_has_the_whole_line() -> None:
    places = _places(*[_entry(float(age), tenant="a") for age in range(4)])
    assert _rank(places, "a", 99.0, 10**6, 4.0) == 5
    assert _rank(places, "a", 1.5, 0, 4.0) == 3


def test_a_newcomer_of_another_tenant_is_behind_those_whose_turn_it_is_and_no_more() -> None:
    places = _places(*[_entry(float(age), tenant="a") for age in range(4)])
    assert _rank(places, "b", 9.0, 10**6, 4.0) == 2
    places.leave(_entry(9.0, tenant="b"))
    assert _rank(places, "b", 9.5, 10**6, 4.0) == 4
    assert _rank(places, "c", 9.5, 10**6, 4.0) == 3
    # The long line waits for the short one's one place, not for as many as its own.
    assert _rank(places, "a", 99.0, 10**6, 4.0) == 6


@pytest.mark.parametrize("tenants", [2, 3, 7])
def test_with_equal_lines_each_tenant_is_promised_its_share(tenants: int) -> None:
    """Weights of one: one tenant's k-th place is the k times as many as there are tenants, whoever came first."""
    places = Places(1_000)
    for tenant in range(tenants):
        for age in range(20):
            places.leave(_entry(tenant * 20.0 + age, tenant=str(tenant), due_at=900.0, place_until=999.0))
    for tenant in range(tenants):
        ranks = [_rank(places, str(tenant), tenant * 20.0 + age + 0.5, 0, 300.0) for age in range(19)]
        # Just behind its (age + 1)-th place, and so in its (age + 2)-th turn.
        assert all((age + 1) * tenants < rank <= (age + 2) * tenants for age, rank in enumerate(ranks))


def test_no_two_are_promised_the_same_place_and_none_is_left_out() -> None:
    """A line without gaps is an engine that never idles, however uneven the tenants' shares of it are."""
    dice, places, promised = Random(2), Places(1_000), []
    for age in range(300):
        tenant = str(min(int(dice.expovariate(1.0)), 4))
        entry = _entry(float(age), tenant=tenant, body=age, due_at=900.0, place_until=999.0)
        places.leave(entry)
        promised.append(entry)
    ranks = [_rank(places, entry.tenant, entry.first_seen, entry.number, 300.0) for entry in promised]
    assert sorted(ranks) == list(range(1, 301))


def test_when_the_others_have_gone_the_rest_of_a_line_moves_up() -> None:
    mine, theirs = [_entry(float(age), tenant="a") for age in range(4)], []
    places = _places(*mine)
    for age in range(4):
        theirs.append(_entry(age + 10.0, tenant="b", body=age, due_at=20.0))
        places.leave(theirs[-1])
    assert _rank(places, "a", mine[3].first_seen, mine[3].number, 10.0) == 7
    for entry in theirs:
        places.take(_found(places, entry, 19.5))
    assert _rank(places, "a", mine[3].first_seen, mine[3].number, 10.0) == 4


def test_a_request_that_is_refused_again_keeps_its_turn() -> None:
    ours = [_entry(float(age), tenant="a", body=age) for age in range(3)]
    places = _places(*ours, *[_entry(float(age), tenant="b", body=age) for age in range(3)])
    first, number = ours[0].first_seen, ours[0].number
    before = _rank(places, "a", first, number, 10.0)
    for _ in range(5):
        found = _found(places, ours[0], 10.0)
        places.take(found)
        places.leave(_refused_again(found, known_from=9.0, due_at=10.0, place_until=12.0))
        assert _rank(places, "a", first, number, 10.0) == before == 1


def test_a_request_that_has_lost_its_place_is_known_by_its_age_and_stands_last() -> None:
    ours = [_entry(float(age), body=age) for age in range(3)]
    places = _places(*ours)
    found = _found(places, ours[0], 5.0)
    places.take(found)
    lost = _refused_again(found, number=10**6, lined_up_at=5.0, early_returns=3, turn=0, place_until=12.0)
    places.leave(lost)
    again = _found(places, ours[0], 10.0)
    assert (again.first_seen, again.early_returns, again.number) == (0.0, 3, 10**6)
    assert _rank(places, "t", 5.0, 10**6, 10.0) == 3


@pytest.mark.parametrize(("now", "early"), [(1.0, True), (8.9, True), (9.0, False), (12.0, False)])
def test_early_is_before_due(now: float, early: bool) -> None:
    assert _entry().is_early(now) is early


def test_inv_7_equal_ages_keep_their_numbers_order() -> None:
    """INV-7: who arrived in the same instant as everybody else stands where its number says."""
    same = [_entry(0.0) for _ in range(5)]
    places = _places(*same)
    assert [_rank(places, "t", 0.0, entry.number, 1.0) for entry in same] == [1, 2, 3, 4, 5]


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
    assert _rank(places, "t", 99.0, 10**6, 13.0) == 2
    assert _rank(places, "t", 99.0, 10**6, 25.0) == 1
    assert places.standing(25.0) == (0, 0)
    assert places.standing(5.0) == (2, 2)


def test_who_is_back_after_its_place_has_ended_is_found_without_it_swept_or_not() -> None:
    places = _places(_entry(9.0, body=8), _entry(5.0, 12.0, place_until=13.0, known_until=30.0))
    late = _entry(5.0, 12.0)
    seen = _found(places, late, 13.5)
    places.expire(13.5)
    swept = _found(places, late, 13.5)

    assert (seen.turn, seen.as_old_as) == (swept.turn, swept.as_old_as) == (0, 5.0)


def test_at_the_bound_the_longest_line_loses_its_newest_place() -> None:
    long = [_entry(float(age), tenant="long", body=age) for age in range(3)]
    places = _places(*long, _entry(tenant="short"), bound=4)
    assert places.has_room_for("short", 4.0)
    assert places.leave(_entry(9.0, tenant="short", body=8))
    assert [places.match("long", age, 10.0, 1) is not None for age in range(3)] == [True, True, False]
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
        places.take(_found(places, entry))
    for _ in range(4):
        places.leave(_entry(tenant="new"))
    assert places.leave(_entry(tenant="third"))
    # The line of four is the longest now: it has lost one, and the line of three has lost none.
    assert _rank(places, "other", 99.0, 10**6, 1.0) == _rank(places, "new", 99.0, 10**6, 1.0) == 8
    assert places.entries == 7


Step = tuple[int, int, int, bool]


class _Watched:
    """Places, and what is in them by an outsider's count: `last` is when a record's place and its memory end."""

    def __init__(self, bound: int) -> None:
        self.places = Places(bound)
        self.inside: dict[int, tuple[str, int, float, float]] = {}
        self.now = 0.0

    def step(self, what: int, who: int, size: int, promised: bool) -> None:
        self.now += size / 4
        self.places.expire(self.now)
        if what:
            self._leave(str(who), size, promised)
        else:
            found = self.places.match(str(who), size, self.now, 1)
            if found is not None:
                self.places.take(found)
                del self.inside[found.number]

    def _leave(self, tenant: str, size: int, promised: bool) -> None:
        due_at = self.now + size if promised else None
        place_until, known_until = self.now + size + 1.0, self.now + size + 3.0
        entry = _entry(
            self.now, due_at, tenant=tenant, body=size, known_until=known_until, place_until=place_until
        )
        room, before = self.places.has_room_for(tenant, self.now), self.places.dropped
        assert self.places.leave(entry) is room
        if room:
            self.inside[entry.number] = (tenant, size, place_until if promised else 0.0, known_until)
        if room and self.places.dropped > before:
            self._drop_the_newest_of_a_longest_line(entry.number)

    def _drop_the_newest_of_a_longest_line(self, newcomer: int) -> None:
        lines: dict[str, list[int]] = {}
        for number, (tenant, _, place_until, _) in self.inside.items():
            if place_until > self.now and number != newcomer:
                lines.setdefault(tenant, []).append(number)
        longest = max(len(line) for line in lines.values())
        slots = self.places._slots
        kept = {slots.entry(slot, line).number for slot, line in enumerate(slots.line) if line}
        newest = [line[-1] for line in lines.values() if len(line) == longest and line[-1] not in kept]
        assert len(newest) == 1
        del self.inside[newest[0]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    some.lists(
        some.tuples(some.integers(0, 2), some.integers(0, 2), some.integers(0, 5), some.booleans()),
        max_size=60,
    )
)
def test_inv_3_and_inv_5_whatever_happens_the_counts_are_true_and_everything_ends(steps: list[Step]) -> None:
    """INV-3 and INV-5: leave, take and expire in any order; counts equal a recount, and nothing is left at the end."""
    watched = _Watched(8)
    places = watched.places
    for step in steps:
        watched.step(*step)
        live = [each for each in watched.inside.values() if each[3] > watched.now]
        placed = [each for each in live if each[2] > watched.now]
        watched.inside = {n: each for n, each in watched.inside.items() if each in live}
        assert places.entries == len(live) <= 8
        assert places.places == len(placed)
        assert places.tenants == len({each[0] for each in placed})
        assert places.standing(watched.now) == (len(placed), len(live))
    places.expire(watched.now + 100.0)
    assert (places.entries, places.places, places.tenants) == (0, 0, 0)
    assert not any(places.knows(str(who)) for who in range(3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    some.lists(some.tuples(some.integers(0, 2), some.floats(0.1, 30.0)), min_size=1, max_size=100),
    some.floats(0.0, 40.0),
    some.integers(0, 2),
)
def test_a_look_ahead_tells_what_the_next_event_will_find(
    records: list[tuple[int, float]], later: float, who: int
) -> None:
    """Also when more has run out than one event forgets."""
    places = Places(len(records))
    for who_else, hint in records:
        places.leave(_entry(0.0, hint, tenant=str(who_else), known_until=hint + 2.0, place_until=hint + 1.0))
    foreseen = [_rank(places, str(who), at, 10**6, later) for at in (-1.0, 0.0, 1.0)]
    room, standing = places.has_room_for(str(who), later), places.standing(later)
    several = places.has_several(later)
    places.expire(later)

    assert [_rank(places, str(who), at, 10**6, later) for at in (-1.0, 0.0, 1.0)] == foreseen
    assert places.has_room_for(str(who), later) is room
    assert places.standing(later) == standing
    assert several is places.has_several(later) is (places.tenants > 1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    some.lists(
        some.tuples(some.integers(0, 2), some.floats(0.1, 5.0), some.floats(0.0, 1.0), some.booleans()),
        max_size=60,
    )
)
def test_where_somebody_stands_is_the_same_however_often_it_was_asked(
    steps: list[tuple[int, float, float, bool]],
) -> None:
    """One is asked about every newcomer and about one of old, the other only at the end."""
    asked, silent = Places(1_000), Places(1_000)
    now = 0.0
    for who, hint, later, stays in steps:
        now += later
        entry = _entry(
            now, now + hint, tenant=str(who), known_until=now + hint + 2.0, place_until=now + hint + 1.0
        )
        told = [asked.stand(each, now, entry.number, now, 3) for each in (entry.tenant, "0", entry.tenant)]
        asked.stand(entry.tenant, now - 1.0, entry.number, now, 3)
        for places in (asked, silent) if stays else ():
            places.expire(now)
            places.leave(entry)
        assert told[0] == told[2]
    number = next(NUMBERS)
    for tenant, age in (("0", now), ("1", now), ("2", now - 1.0), ("0", now + 1.0)):
        assert asked.stand(tenant, age, number, now, 3) == silent.stand(tenant, age, number, now, 3)


def test_inv_5_a_burst_that_runs_out_together_is_forgotten_a_few_per_event() -> None:
    places = Places(10_000)
    for number in range(10_000):
        places.leave(_entry(body=number))
    left: list[int] = []
    while places.entries:
        places.expire(100.0 + len(left))
        left.append(places.entries)
    assert left[0] == 10_000 - FORGOTTEN_PER_EVENT
    assert len(left) == -(-10_000 // FORGOTTEN_PER_EVENT)


@pytest.mark.parametrize("tenants", [1, 100, 1_000])
def test_inv_5_a_hundred_thousand_waiting_clients_take_less_than_30_mb(tenants: int) -> None:
    """A tenth of them, by a tenth of the tenants, in a tenth of the memory; no body is there twice."""
    dice = Random(1)
    entries = [
        (f"t{number % tenants}", dice.getrandbits(64), number * 1e-4, 10.0 + dice.random())
        for number in range(10_000)
    ]
    tracemalloc.start()
    try:
        places = Places(10_000)
        for tenant, body, at, due_at in entries:
            assert places.leave(_entry(at, due_at, tenant=tenant, body=body, place_until=due_at + 1.0))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 3_000_000


def test_inv_5_a_crowd_of_equal_bodies_costs_a_few_looks_and_the_memory_of_ends_stays_in_proportion() -> None:
    places = Places(20_000)
    for number in range(20_000):
        assert places.leave(_entry(number * 1e-4, 10.0 + number * 1e-4, body=0))
    assert places.match("t", 0, 25.0, 1) is None
    for _ in range(50_000):
        found = _found(places, _entry(body=0), 10.0)
        places.take(found)
        assert places.leave(_refused_again(found, known_until=20.0, due_at=11.0, place_until=12.0))
    assert places.entries == 20_000
    assert len(places._ends) <= 2 * (20_000 + 1_000) + 1


def test_more_places_than_slots_can_be_numbered_are_refused() -> None:
    with pytest.raises(ValueError, match="max_entries is 1048577, the most is 1048576"):
        Places(MOST_PLACES + 1)


def test_a_place_before_an_older_one_is_ranked_as_old_as_that() -> None:
    """So a queue in which both wait keeps their turns."""
    long = [_entry(float(at), tenant="long", body=at) for at in (1, 2, 3)]
    places = _places(*long)
    short = _entry(4.0, tenant="short")
    places.leave(short)
    assert [_found(places, each).as_old_as for each in (*long, short)] == [1.0, 2.0, 3.0, 2.0]
    later = _entry(5.0, tenant="third")
    places.leave(later)
    assert _found(places, later).as_old_as == 2.0


def test_it_is_ranked_no_older_than_it_is_told() -> None:
    places = _places(*[_entry(float(at), tenant="long", body=at) for at in (1, 2, 3)])
    short = _entry(4.0, tenant="short")
    known = short.known_from, short.known_until, short.due_at, short.place_until
    places.leave(Entry("short", 7, 4.0, short.number, *known, as_old_as=2.5))
    assert _found(places, short).as_old_as == 2.5


def test_who_stands_behind_everybody_or_has_no_place_is_ranked_by_its_own_age() -> None:
    first, second, gone = _entry(1.0, body=1), _entry(2.0, body=2), _entry(3.0, None, tenant="gone")
    places = _places(first, second, gone)
    assert [_found(places, each).as_old_as for each in (first, second, gone)] == [1.0, 2.0, 3.0]


def test_whose_place_has_ended_is_ranked_by_its_own_age() -> None:
    places = _places(*[_entry(float(at), tenant="long", body=at, place_until=30.0) for at in (1, 2)])
    short = _entry(4.0, tenant="short", place_until=12.0)
    places.leave(short)
    assert _found(places, short).as_old_as == 2.0
    places.expire(13.0)
    assert _found(places, short, 13.5).as_old_as == 4.0
