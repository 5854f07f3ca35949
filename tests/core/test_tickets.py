"""Which clients were told to return when, and whether an arrival is one of them: the rules of recognition."""

from random import Random

import pytest
from hypothesis import example, given, settings, strategies as some

from core.return_records import NUMBERS, book_of, found_by, new_record, rank_of, refused_again
from millgate.core.tickets import SOONEST_RETURN_S
from millgate.core.tickets.appointments import Appointments


def test_only_the_same_tenant_and_the_same_body_match() -> None:
    record = new_record()
    appointments = book_of(record)
    found = appointments.match("t", 7, 10.0, None)
    assert found is not None
    assert found.number == record.number
    assert appointments.match("t", 8, 10.0, None) is None
    assert appointments.match("u", 7, 10.0, None) is None
    assert appointments.knows("t")
    assert not appointments.knows("u")


def test_a_body_that_is_found_by_the_same_number_as_one_of_another_tenant_is_no_return_of_it() -> None:
    appointments = book_of(new_record(tenant="t"), new_record(tenant="u", body=1))
    slots = appointments._slots
    t, u = (line for line in slots.line if line is not None)
    theirs = t.body_key(7) ^ u.body_key(0)
    assert u.body_key(theirs) == t.body_key(7)
    assert appointments.match("u", theirs, 10.0, None) is None
    appointments.withdraw("u", theirs)
    assert appointments.open == 2
    assert found_by(appointments, new_record(tenant="t")).tenant == "t"


def test_equal_bodies_at_once_are_not_retries() -> None:
    """Nobody who was told to wait is back within the shortest hint."""
    appointments = book_of(new_record(first_seen=5.0))
    assert appointments.match("t", 7, 5.0, 1) is None
    assert appointments.match("t", 7, 5.0 + SOONEST_RETURN_S / 2, None) is None
    assert appointments.match("t", 7, 5.0 + SOONEST_RETURN_S, None) is not None


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
    assert (book_of(new_record()).match("t", 7, now, label) is not None) is matches


def test_an_entry_without_a_place_matches_any_label_and_is_never_due() -> None:
    """Somebody who hung up and presses refresh comes with a first attempt's label, and was promised nothing."""
    record = new_record(due_at=None)
    appointments = book_of(record)
    found = appointments.match("t", 7, 1.0, 0)
    assert found is not None
    assert (found.number, found.due_at) == (record.number, None)
    assert not found.is_due(19.0)
    assert not found.is_early(1.0)
    assert (appointments.open, appointments.records, appointments.tenants) == (0, 1, 0)


@pytest.mark.parametrize(("now", "due"), [(8.9, False), (9.0, True), (10.0, True), (11.9, True)])
def test_due_is_from_one_second_before_the_hint_on(now: float, due: bool) -> None:
    assert new_record().is_due(now) is due


def test_of_a_short_hint_only_the_second_half_is_early_enough() -> None:
    """A crowd of equal first attempts that arrives over 0.3 s is not taken for the first of them coming back."""
    appointments = book_of(new_record(first_seen=0.0, due_at=0.75))

    assert not any(appointments.match("t", 7, ms / 1000.0, 0) for ms in range(0, 400, 20))
    assert appointments.match("t", 7, 0.5, 0) is not None


def test_among_equal_bodies_the_first_due_is_taken_and_only_once() -> None:
    late, soon = new_record(first_seen=1.0, due_at=11.0), new_record(first_seen=0.0, due_at=10.0)
    appointments = book_of(late, soon)
    first = found_by(appointments, soon, 11.0)
    assert first.number == soon.number
    appointments.take(first)
    second = found_by(appointments, late, 11.0)
    assert second.number == late.number
    appointments.take(second)
    appointments.take(second)
    assert appointments.match("t", 7, 11.0, None) is None
    assert (appointments.open, appointments.records) == (0, 0)


def test_one_refused_just_now_does_not_hide_an_equal_one_that_may_match() -> None:
    just_now, old = new_record(first_seen=9.95, due_at=10.05), new_record(first_seen=0.0, due_at=10.1)
    assert found_by(book_of(just_now, old), old, 10.0).number == old.number


def test_a_tenant_alone_has_the_whole_line() -> None:
    appointments = book_of(*[new_record(float(age), tenant="a") for age in range(4)])
    assert rank_of(appointments, "a", 99.0, 10**6, 4.0) == 5
    assert rank_of(appointments, "a", 1.5, 0, 4.0) == 3


def test_a_newcomer_of_another_tenant_is_behind_those_whose_turn_it_is_and_no_more() -> None:
    appointments = book_of(*[new_record(float(age), tenant="a") for age in range(4)])
    assert rank_of(appointments, "b", 9.0, 10**6, 4.0) == 2
    appointments.leave(new_record(9.0, tenant="b"))
    assert rank_of(appointments, "b", 9.5, 10**6, 4.0) == 4
    assert rank_of(appointments, "c", 9.5, 10**6, 4.0) == 3
    # The long line waits for the short one's one place, not for as many as its own.
    assert rank_of(appointments, "a", 99.0, 10**6, 4.0) == 6


@pytest.mark.parametrize("tenants", [2, 3, 7])
def test_with_equal_lines_each_tenant_is_promised_its_share(tenants: int) -> None:
    """Weights of one: one tenant's k-th place is the k times as many as there are tenants, whoever came first."""
    appointments = Appointments(1_000)
    for tenant in range(tenants):
        for age in range(20):
            appointments.leave(
                new_record(tenant * 20.0 + age, tenant=str(tenant), due_at=900.0, open_until=999.0)
            )
    for tenant in range(tenants):
        ranks = [rank_of(appointments, str(tenant), tenant * 20.0 + age + 0.5, 0, 300.0) for age in range(19)]
        # Just behind its (age + 1)-th place, and so in its (age + 2)-th turn.
        assert all((age + 1) * tenants < rank <= (age + 2) * tenants for age, rank in enumerate(ranks))


def test_no_two_are_promised_the_same_place_and_none_is_left_out() -> None:
    """A line without gaps is an engine that never idles, however uneven the tenants' shares of it are."""
    dice, appointments, promised = Random(2), Appointments(1_000), []
    for age in range(300):
        tenant = str(min(int(dice.expovariate(1.0)), 4))
        record = new_record(float(age), tenant=tenant, body=age, due_at=900.0, open_until=999.0)
        appointments.leave(record)
        promised.append(record)
    ranks = [
        rank_of(appointments, record.tenant, record.first_seen, record.number, 300.0) for record in promised
    ]
    assert sorted(ranks) == list(range(1, 301))


def test_when_the_others_have_gone_the_rest_of_a_line_moves_up() -> None:
    mine, theirs = [new_record(float(age), tenant="a") for age in range(4)], []
    appointments = book_of(*mine)
    for age in range(4):
        theirs.append(new_record(age + 10.0, tenant="b", body=age, due_at=20.0))
        appointments.leave(theirs[-1])
    assert rank_of(appointments, "a", mine[3].first_seen, mine[3].number, 10.0) == 7
    for record in theirs:
        appointments.take(found_by(appointments, record, 19.5))
    assert rank_of(appointments, "a", mine[3].first_seen, mine[3].number, 10.0) == 4


def test_a_request_that_is_refused_again_keeps_its_turn() -> None:
    ours = [new_record(float(age), tenant="a", body=age) for age in range(3)]
    appointments = book_of(*ours, *[new_record(float(age), tenant="b", body=age) for age in range(3)])
    first, number = ours[0].first_seen, ours[0].number
    before = rank_of(appointments, "a", first, number, 10.0)
    for _ in range(5):
        found = found_by(appointments, ours[0], 10.0)
        appointments.take(found)
        appointments.leave(refused_again(found, known_from=9.0, due_at=10.0, open_until=12.0))
        assert rank_of(appointments, "a", first, number, 10.0) == before == 1


def test_a_request_that_has_lost_its_place_is_known_by_its_age_and_stands_last() -> None:
    ours = [new_record(float(age), body=age) for age in range(3)]
    appointments = book_of(*ours)
    found = found_by(appointments, ours[0], 5.0)
    appointments.take(found)
    lost = refused_again(found, number=10**6, lined_up_at=5.0, early_returns=3, turn=0, open_until=12.0)
    appointments.leave(lost)
    again = found_by(appointments, ours[0], 10.0)
    assert (again.first_seen, again.early_returns, again.number) == (0.0, 3, 10**6)
    assert rank_of(appointments, "t", 5.0, 10**6, 10.0) == 3


@pytest.mark.parametrize(("now", "early"), [(1.0, True), (8.9, True), (9.0, False), (12.0, False)])
def test_early_is_before_due(now: float, early: bool) -> None:
    assert new_record().is_early(now) is early


def test_inv_7_equal_ages_keep_their_numbers_order() -> None:
    """INV-7: who arrived in the same instant as everybody else stands where its number says."""
    same = [new_record(0.0) for _ in range(5)]
    appointments = book_of(*same)
    assert [rank_of(appointments, "t", 0.0, record.number, 1.0) for record in same] == [1, 2, 3, 4, 5]


def test_a_place_ends_before_its_entry() -> None:
    appointments = book_of(new_record())
    appointments.expire(11.9)
    assert (appointments.open, appointments.records, appointments.tenants) == (1, 1, 1)
    appointments.expire(12.0)
    assert (appointments.open, appointments.records, appointments.tenants) == (0, 1, 0)
    assert appointments.match("t", 7, 13.0, None) is not None
    appointments.expire(20.0)
    assert (appointments.open, appointments.records) == (0, 0)
    assert not appointments.knows("t")


def test_a_client_that_is_later_than_all_of_late_is_expected_no_more() -> None:
    prompt = book_of(new_record(body=1))
    for _ in range(40):
        prompt.was_late(0.0)
    prompt.leave(new_record(body=2))
    prompt.was_late(0.5)
    prompt.leave(new_record(body=3))

    open_at = {}
    for now in (10.0, 10.2, 10.4, 10.6, 12.0):
        prompt.expire(now)
        open_at[now] = prompt.open

    assert open_at == {10.0: 3, 10.2: 2, 10.4: 2, 10.6: 1, 12.0: 0}
    assert prompt.records == 3


def test_a_look_ahead_sees_what_will_be_over_and_changes_nothing() -> None:
    appointments = book_of(new_record(), new_record(tenant="u", open_until=15.0))
    assert appointments.standing(13.0) == (1, 2)
    assert rank_of(appointments, "t", 99.0, 10**6, 13.0) == 2
    assert rank_of(appointments, "t", 99.0, 10**6, 25.0) == 1
    assert appointments.standing(25.0) == (0, 0)
    assert appointments.standing(5.0) == (2, 2)


def test_who_is_back_after_its_place_has_ended_is_found_without_it_swept_or_not() -> None:
    appointments = book_of(new_record(9.0, body=8), new_record(5.0, 12.0, open_until=13.0, known_until=30.0))
    late = new_record(5.0, 12.0)
    seen = found_by(appointments, late, 13.5)
    appointments.expire(13.5)
    swept = found_by(appointments, late, 13.5)

    assert (seen.turn, seen.as_old_as) == (swept.turn, swept.as_old_as) == (0, 5.0)


def test_at_the_bound_the_longest_line_loses_its_newest_place() -> None:
    long = [new_record(float(age), tenant="long", body=age) for age in range(3)]
    appointments = book_of(*long, new_record(tenant="short"), bound=4)
    assert appointments.has_room_for("short", 4.0)
    assert appointments.leave(new_record(9.0, tenant="short", body=8))
    assert [appointments.match("long", age, 10.0, 1) is not None for age in range(3)] == [True, True, False]
    assert (appointments.records, appointments.dropped) == (4, 1)


def test_at_the_bound_a_newcomer_of_the_longest_line_gets_no_place() -> None:
    appointments = book_of(
        new_record(tenant="long"), new_record(tenant="long"), new_record(tenant="short"), bound=3
    )
    assert not appointments.has_room_for("long", 1.0)
    assert not appointments.leave(new_record(tenant="long"))
    assert (appointments.records, appointments.dropped) == (3, 1)


def test_the_longest_line_is_known_after_it_has_shrunk() -> None:
    once_long = [new_record(tenant="once") for _ in range(4)]
    other = [new_record(tenant="other") for _ in range(3)]
    appointments = book_of(*once_long, *other, bound=7)
    for record in once_long:
        appointments.take(found_by(appointments, record))
    for _ in range(4):
        appointments.leave(new_record(tenant="new"))
    assert appointments.leave(new_record(tenant="third"))
    # The line of four is the longest now: it has lost one, and the line of three has lost none.
    assert (
        rank_of(appointments, "other", 99.0, 10**6, 1.0)
        == rank_of(appointments, "new", 99.0, 10**6, 1.0)
        == 8
    )
    assert appointments.records == 7


Step = tuple[int, int, int, bool]


class _Watched:
    """Appointments, and what is in them by an outsider's count: `last` is when a record's place and its memory end."""

    def __init__(self, bound: int) -> None:
        self.appointments = Appointments(bound)
        self.inside: dict[int, tuple[str, int, float, float]] = {}
        self.now = 0.0

    def step(self, what: int, who: int, size: int, promised: bool) -> None:
        self.now += size / 4
        self.appointments.expire(self.now)
        if what:
            self._leave(str(who), size, promised)
        else:
            found = self.appointments.match(str(who), size, self.now, 1)
            if found is not None:
                self.appointments.take(found)
                del self.inside[found.number]

    def _leave(self, tenant: str, size: int, promised: bool) -> None:
        due_at = self.now + size if promised else None
        open_until, known_until = self.now + size + 1.0, self.now + size + 3.0
        record = new_record(
            self.now, due_at, tenant=tenant, body=size, known_until=known_until, open_until=open_until
        )
        room, before = self.appointments.has_room_for(tenant, self.now), self.appointments.dropped
        left = self.appointments.leave(record)
        assert (
            left is room if promised else left <= room
        )  # of the room, those without an appointment have a half
        if left:
            self.inside[record.number] = (tenant, size, open_until if promised else 0.0, known_until)
        if left and self.appointments.dropped > before:
            self._drop_the_newest_of_a_longest_line(record.number)

    def _drop_the_newest_of_a_longest_line(self, newcomer: int) -> None:
        lines: dict[str, list[int]] = {}
        for number, (tenant, _, open_until, _) in self.inside.items():
            if open_until > self.now and number != newcomer:
                lines.setdefault(tenant, []).append(number)
        longest = max(len(line) for line in lines.values())
        slots = self.appointments._slots
        kept = {slots.record_of(slot, line).number for slot, line in enumerate(slots.line) if line}
        newest = [line[-1] for line in lines.values() if len(line) == longest and line[-1] not in kept]
        assert len(newest) == 1
        del self.inside[newest[0]]


@settings(max_examples=60)
@example([(1, 0, 0, True)] * 8 + [(1, 1, 0, True)])  # one is dropped for another tenant's
@given(
    some.lists(
        some.tuples(some.integers(0, 2), some.integers(0, 2), some.integers(0, 5), some.booleans()),
        max_size=60,
    )
)
def test_inv_3_and_inv_5_whatever_happens_the_counts_are_true_and_everything_ends(steps: list[Step]) -> None:
    """INV-3 and INV-5: leave, take and expire in any order; counts equal a recount, and nothing is left at the end."""
    watched = _Watched(8)
    appointments = watched.appointments
    for step in steps:
        watched.step(*step)
        live = [each for each in watched.inside.values() if each[3] > watched.now]
        placed = [each for each in live if each[2] > watched.now]
        watched.inside = {n: each for n, each in watched.inside.items() if each in live}
        assert appointments.records == len(live) <= 8
        assert appointments.open == len(placed)
        assert appointments.tenants == len({each[0] for each in placed})
        assert appointments.standing(watched.now) == (len(placed), len(live))
    appointments.expire(watched.now + 100.0)
    assert (appointments.records, appointments.open, appointments.tenants) == (0, 0, 0)
    assert not any(appointments.knows(str(who)) for who in range(3))


@settings(max_examples=60)
@given(
    some.lists(some.tuples(some.integers(0, 2), some.floats(0.1, 30.0)), min_size=1, max_size=100),
    some.floats(0.0, 40.0),
    some.integers(0, 2),
)
def test_a_look_ahead_tells_what_the_next_event_will_find(
    records: list[tuple[int, float]], later: float, who: int
) -> None:
    """Also when more has run out than one event forgets."""
    appointments = Appointments(len(records))
    for who_else, hint in records:
        appointments.leave(
            new_record(0.0, hint, tenant=str(who_else), known_until=hint + 2.0, open_until=hint + 1.0)
        )
    foreseen = [rank_of(appointments, str(who), at, 10**6, later) for at in (-1.0, 0.0, 1.0)]
    room, standing = appointments.has_room_for(str(who), later), appointments.standing(later)
    several = appointments.has_several(later)
    appointments.expire(later)

    assert [rank_of(appointments, str(who), at, 10**6, later) for at in (-1.0, 0.0, 1.0)] == foreseen
    assert appointments.has_room_for(str(who), later) is room
    assert appointments.standing(later) == standing
    assert several is appointments.has_several(later) is (appointments.tenants > 1)


@settings(max_examples=100)
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
    asked, silent = Appointments(1_000), Appointments(1_000)
    now = 0.0
    for who, hint, later, stays in steps:
        now += later
        record = new_record(
            now, now + hint, tenant=str(who), known_until=now + hint + 2.0, open_until=now + hint + 1.0
        )
        told = [_stand(asked, each, now, record.number, now) for each in (record.tenant, "0", record.tenant)]
        asked.stand(record.tenant, now - 1.0, record.number, now, 3)
        for appointments in (asked, silent) if stays else ():
            appointments.expire(now)
            appointments.leave(record)
        assert told[0] == told[2]
    number = next(NUMBERS)
    for tenant, age in (("0", now), ("1", now), ("2", now - 1.0), ("0", now + 1.0)):
        assert _stand(asked, tenant, age, number, now) == _stand(silent, tenant, age, number, now)


def _stand(
    appointments: Appointments, tenant: str, age: float, number: int, now: float
) -> tuple[int, float, list[int], float]:
    stand = appointments.stand(tenant, age, number, now, 3)
    return stand.place, stand.work_s, list(stand.first), stand.share
