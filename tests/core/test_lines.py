"""A tenant's line answers as a sorted list would, while it is short, when it gets long, and when it is short again."""

from random import Random

from hypothesis import given, strategies as some

from millgate.core.tickets.appointment import ReturnRecord, Slots, TenantRecords, age_key

KNOWN = 0.0, 20.0, 10.0, 12.0


def _join(slots: Slots, line: TenantRecords, number: int, at: float) -> tuple[int, int]:
    key = age_key(at, number)
    slot = slots.put(ReturnRecord("t", number, at, number, *KNOWN), line, 1, key, at, 1.0)
    line.add(key, slot)
    return key, slot


def _answers(line: TenantRecords, places: list[tuple[int, int]], asked: int) -> bool:
    """Return whether it says of its last, of what is after this key, and of its length what these places say."""
    behind = [slot for key, slot in sorted(places) if key >= asked]
    last = max(places)[1] if places else None
    return (line.after(asked), line.last(), line.length()) == (
        behind[0] if behind else None,
        last,
        len(places),
    )


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
        assert all(_answers(line, places, asked) for asked in [0, 1 << 60, *[key for key, _ in places[::5]]])
        gone = places[::3]
        copy = line.without([slot for _, slot in gone])
        assert _answers(copy, [each for each in places if each not in gone], age_key(500.0, 0))
        assert _answers(line, places, age_key(500.0, 0))
