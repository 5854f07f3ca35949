"""Counts over a rolling span."""

from hypothesis import given, strategies as st

from millgate.core.measure import Window


def test_what_is_older_than_the_span_is_forgotten() -> None:
    window = Window(10.0, 6, counters=2)
    window.add(5.0, (1, 0))
    window.add(25.0, (1, 1))
    assert window.read(25.0, 6) == (2, 1)
    assert window.read(59.9, 6) == (2, 1)
    assert window.read(60.0, 6) == (1, 1)
    assert window.read(500.0, 6) == (0, 0)


def test_a_shorter_span_is_read_from_the_same_counts() -> None:
    window = Window(10.0, 6, counters=1)
    for second in range(60):
        window.add(float(second), (1,))
    assert window.read(59.0, 6) == (60,)
    assert window.read(59.0, 2) == (20,)


@given(st.lists(st.floats(0.0, 500.0), max_size=60))
def test_it_counts_what_a_list_would(gaps: list[float]) -> None:
    window, now, seen = Window(10.0, 6, counters=1), 0.0, list[float]()
    for gap in gaps:
        now += gap
        seen.append(now)
        window.add(now, (1,))
        assert window.read(now, 6) == (sum(int(now / 10.0) - int(at / 10.0) < 6 for at in seen),)


def test_what_is_added_to_a_part_that_is_forgotten_changes_nothing() -> None:
    window = Window(1.0, 3, counters=1)
    window.add(0.5, (1,))
    window.add(3.5, (2,))
    window.add(0.5, (-1,))
    assert window.read(3.5, 3) == (2,)
    window.add(3.2, (-1,))
    assert window.read(3.5, 3) == (1,)
