"""Ends of appointments: the earliest tick first, within it the oldest, and nothing is lost or taken twice."""

from hypothesis import given, strategies as st

from millgate.core.tickets.appointments import Ends

_LAST = 9


def _all_of(ends: Ends) -> list[int]:
    taken = []
    while (slot := ends.pop(_LAST)) is not None:
        taken.append(slot)
    return taken


def test_those_that_end_together_end_oldest_first() -> None:
    ends = Ends([(5, 1), (5, 2), (3, 3), (5, 4)])
    assert _all_of(ends) == [3, 1, 2, 4]
    assert not len(ends)


def test_an_earlier_tick_that_is_noted_meanwhile_goes_first() -> None:
    ends = Ends([(5, 1), (5, 2), (5, 3)])
    assert ends.pop(5) == 1
    ends.add(3, 4)
    assert list(ends.upcoming(_LAST)) == [4, 2, 3]
    assert _all_of(ends) == [4, 2, 3]


@given(st.lists(st.one_of(st.none(), st.integers(0, _LAST)), max_size=60))
def test_every_note_is_taken_once_in_the_order_that_was_foretold(steps: list[int | None]) -> None:
    ends, kept = Ends(), []
    for slot, tick in enumerate(steps):
        if tick is not None:
            ends.add(tick, slot)
            kept.append((tick, slot))
        elif kept:
            kept.remove(first := min(kept))
            assert ends.pop(_LAST) == first[1]
        assert len(ends) == len(kept)
        assert list(ends.upcoming(_LAST)) == [slot for _tick, slot in sorted(kept)]
