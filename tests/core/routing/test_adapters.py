"""Which adapters an engine has loaded, and what a request for another one adds."""

from millgate.core.routing.adapters import AdapterPlaces, Adapters

SERVICE_S = 4.0


def _use(adapters: Adapters, number: int, name: str, now: float, *, ended: bool = True) -> None:
    """A request for this one runs there, and may have ended at once."""
    slots = adapters.of(number)
    assert slots is not None
    slots.use(name, "tenant", 1, now)
    if ended:
        slots.done(name, 1, now)


def _two_slots() -> Adapters:
    adapters = Adapters()
    adapters.enrol(1, ("a", "b", "c"), 2, 0.5)
    return adapters


def _slots(slots: int | None = 2) -> AdapterPlaces:
    adapters = AdapterPlaces()
    adapters.configured(("a", "b", "c"), slots, 0.5)
    return adapters


def test_an_adapter_has_a_slot_where_one_is_free_or_holds_one_that_no_request_uses() -> None:
    slots = _slots()
    slots.use("a", "tenant", 1, 0.0)
    slots.use("b", "tenant", 2, 0.0)
    assert [slots.takes(name) for name in "abc"] == [True, True, False]

    slots.done("a", 1, 1.0)

    assert [slots.takes(name) for name in "abc"] == [True, True, True]
    slots.use("c", "tenant", 3, 1.0)
    assert list(slots.loaded) == ["b", "c"]
    assert not slots.takes("a")


def test_a_slot_that_is_kept_for_another_takes_nothing_new_of_the_one_that_has_it() -> None:
    slots = _slots(1)
    slots.use("a", "tenant", 1, 0.0)
    slots.kept["b"] = "a"
    assert [slots.takes(name) for name in "abc"] == [False, False, False]

    slots.done("a", 1, 1.0)

    assert [slots.takes(name) for name in "abc"] == [False, True, False]


def test_an_adapter_stays_in_use_until_the_last_of_its_requests_ends() -> None:
    slots = _slots(1)
    slots.use("a", "tenant", 1, 0.0)
    slots.use("a", "tenant", 2, 0.0)

    assert not slots.done("a", 1, 1.0)
    assert not slots.takes("b")
    assert not slots.done("a", 1, 1.0), "it has ended before"
    assert slots.done("a", 2, 2.0)
    assert slots.takes("b")


def test_an_engine_whose_slots_are_not_known_takes_any() -> None:
    slots = _slots(None)
    slots.use("a", "tenant", 1, 0.0)

    assert slots.takes("b")


def _costs_s(adapters: Adapters, names: str, now: float) -> list[float]:
    return [adapters.cost_s(1, name, SERVICE_S, now) for name in names]


def test_the_first_use_loads_an_adapter_and_later_ones_find_it() -> None:
    adapters = _two_slots()

    assert _costs_s(adapters, "a", 0.0) == [0.5]
    _use(adapters, 1, "a", 0.0)
    _use(adapters, 1, "a", 1.0)

    assert _costs_s(adapters, "a", 1.0) == [0.0]
    assert adapters.loads(1) == 1


def test_one_more_than_fits_takes_the_place_of_the_one_that_was_used_least_recently() -> None:
    adapters = _two_slots()
    for now, name in enumerate("aba"):
        _use(adapters, 1, name, float(now))

    assert _costs_s(adapters, "c", 10.0) == [1.0], "b is to be loaded again"
    _use(adapters, 1, "c", 10.0)

    assert _costs_s(adapters, "abc", 20.0) == [0.0, 1.0, 0.0]
    assert adapters.loads(1) == 3


def test_an_adapter_that_is_in_use_is_waited_for() -> None:
    adapters = _two_slots()
    _use(adapters, 1, "a", 10.0, ended=False)
    _use(adapters, 1, "b", 11.0, ended=False)

    assert _costs_s(adapters, "c", 11.0) == [1.0 + 3.0]
    assert _costs_s(adapters, "c", 10.0 + SERVICE_S) == [1.0]


def test_a_model_and_an_engine_without_adapters_load_nothing() -> None:
    adapters = _two_slots()

    assert "a" in adapters.names
    assert "model" not in adapters.names
    assert adapters.cost_s(1, "model", SERVICE_S, 0.0) == adapters.cost_s(2, "a", SERVICE_S, 0.0) == 0.0
    assert adapters.of(2) is None
    assert adapters.loads(2) == 0


def test_an_engine_that_begins_anew_has_nothing_loaded() -> None:
    adapters = _two_slots()
    _use(adapters, 1, "a", 0.0)

    adapters.forget(1)

    assert _costs_s(adapters, "a", 1.0) == [0.5]


def test_new_settings_keep_what_is_loaded_and_still_served() -> None:
    adapters = _two_slots()
    _use(adapters, 1, "a", 0.0)
    _use(adapters, 1, "b", 1.0)

    adapters.enrol(1, ("b", "d"), 1, 0.5)

    assert _costs_s(adapters, "bd", 10.0) == [0.0, 1.0]
    assert "a" not in adapters.names
    adapters.enrol(1, (), 1, 0.5)
    assert "b" not in adapters.names


def test_an_engine_that_is_gone_leaves_nothing_to_the_next_one_with_its_number() -> None:
    adapters = _two_slots()
    _use(adapters, 1, "a", 0.0)

    adapters.retire(1)
    assert "a" not in adapters.names
    adapters.enrol(1, ("a",), 1, 0.5)

    assert _costs_s(adapters, "a", 1.0) == [0.5]
    assert adapters.loads(1) == 0
