"""A tenant's line answers as a sorted list would, while it is short, when it gets long, and when it is short again."""

from random import Random

from hypothesis import given, strategies as some

from millgate.core.tickets.appointment import (
    NUMBER_BITS,
    ReturnRecord,
    Slots,
    TenantRecords,
    age_key,
    turn_key,
)

KNOWN = 0.0, 20.0, 10.0, 12.0


def _join(slots: Slots, line: TenantRecords, number: int, at: float) -> tuple[int, int]:
    key, turn = age_key(at, number), turn_key(number, number)
    slot = slots.put(ReturnRecord("t", number, at, number, *KNOWN), line, turn, key, at, 1.0)
    line.add(key, slot, turn)
    return key, slot


def _answers(slots: Slots, line: TenantRecords, places: list[tuple[int, int]], asked: int) -> bool:
    """Return whether it says of its last, of a turn at this key, and of its length what these places say."""
    behind = [slot for key, slot in sorted(places) if key >= asked]
    last = max(places)[1] if places else None
    if last is not None:
        turn = slots.turn_key(behind[0] if behind else last) >> NUMBER_BITS
        assert line.turn_at(asked) == (turn if behind else turn + 1)
    return (line.last(), line.length()) == (last, len(places))


@given(some.lists(some.integers(0, 100), max_size=6), some.randoms(use_true_random=False))
def test_it_agrees_with_a_sorted_list_of_any_length(lengths: list[int], dice: Random) -> None:
    slots, places, number = Slots(), list[tuple[int, int]](), 0
    line = TenantRecords("t", 1, slots)
    for length in lengths:
        while len(places) < length:
            number += 1
            places.append(_join(slots, line, number, dice.random() * 1e3))
        while len(places) > length:
            line.remove(*places.pop(dice.randrange(len(places))))
        assert all(
            _answers(slots, line, places, asked) for asked in [0, 1 << 60, *[key for key, _ in places[::5]]]
        )
        gone = places[::3]
        copy = line.without([slot for _, slot in gone])
        assert _answers(slots, copy, [each for each in places if each not in gone], age_key(500.0, 0))
        assert _answers(slots, line, places, age_key(500.0, 0))
