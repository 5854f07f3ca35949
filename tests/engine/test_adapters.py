"""Adapters of an engine: loaded on demand, kept while there is room, waited for when there is none."""

import pytest

from millgate.engine.adapters import AdapterSlots, AdapterStart


def test_an_adapter_is_loaded_once_and_then_there() -> None:
    slots = AdapterSlots(2, load_s=0.5)

    assert slots.ask("a", 1, 10.0) == (1, 10.5)
    assert slots.ask("a", 2, 10.2) == (2, 10.5)
    assert slots.ask("a", 3, 11.0) == (3, 11.0)
    assert slots.loads == 1


def test_an_unused_one_stays_until_its_place_is_needed_the_least_recently_used_goes_first() -> None:
    slots = AdapterSlots(2, load_s=0.5)
    for key, adapter in enumerate(("a", "b", "a", "c")):
        slots.ask(adapter, key, float(key))
        slots.leave(key, key + 0.9)

    assert slots.ask("a", 10, 10.0) == (10, 10.0)
    assert slots.ask("b", 11, 11.0) == (11, 11.5)
    assert slots.loads == 4


def test_one_more_than_fit_waits_for_a_place_and_others_pass_it() -> None:
    slots = AdapterSlots(1, load_s=0.5)
    slots.ask("a", 1, 0.0)

    assert slots.ask("b", 2, 1.0) is None
    assert slots.ask("a", 3, 2.0) == (3, 2.0)
    assert (slots.running, slots.waiting) == (("a",), ("b",))
    assert slots.leave(1, 3.0) == []
    assert slots.leave(3, 4.0) == [AdapterStart(2, 4.5)]
    assert (slots.running, slots.waiting) == (("b",), ())


def test_all_that_wait_for_one_adapter_begin_together() -> None:
    slots = AdapterSlots(1, load_s=0.5)
    slots.ask("a", 1, 0.0)
    for key in (2, 3):
        slots.ask("b", key, 1.0)
    slots.ask("c", 4, 1.0)

    assert slots.leave(1, 2.0) == [AdapterStart(2, 2.5), AdapterStart(3, 2.5)]
    assert slots.waiting == ("c",)


def test_who_leaves_while_waiting_is_not_named_later() -> None:
    slots = AdapterSlots(1, load_s=0.5)
    slots.ask("a", 1, 0.0)
    slots.ask("b", 2, 1.0)

    assert slots.leave(2, 2.0) == []
    assert slots.leave(1, 3.0) == []
    assert slots.leave(1, 4.0) == []


def test_there_must_be_a_place() -> None:
    with pytest.raises(ValueError, match="max_loras: must be at least 1, got 0"):
        AdapterSlots(0, 0.5)
