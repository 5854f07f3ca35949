"""Virtual time: what happens when, and in which order."""

from hypothesis import given, strategies as st

from millgate.sim.loop import CLIENTS, ENGINES, WATCHES, Loop


def test_things_happen_in_order_of_time_then_priority_then_asking() -> None:
    loop, seen = Loop(), list[str]()
    loop.at(2.0, seen.append, "later")
    loop.at(1.0, seen.append, "watch", WATCHES)
    loop.at(1.0, seen.append, "first client", CLIENTS)
    loop.at(1.0, seen.append, "second client", CLIENTS)
    loop.at(1.0, seen.append, "engine", ENGINES)
    loop.run()

    assert seen == ["engine", "first client", "second client", "watch", "later"]


@given(st.lists(st.floats(0.0, 100.0)))
def test_time_never_goes_backward(times: list[float]) -> None:
    loop, seen = Loop(), list[float]()
    for at in times:
        loop.at(at, lambda _: seen.append(loop.now), None)
    loop.run()

    assert seen == sorted(times)


def test_what_is_asked_for_in_the_past_happens_now() -> None:
    loop, seen = Loop(), list[float]()
    loop.run(5.0)
    loop.at(1.0, lambda _: seen.append(loop.now), None)
    loop.run()

    assert seen == [5.0]


def test_a_run_ends_at_its_end_and_leaves_the_rest() -> None:
    loop, seen = Loop(), list[str]()
    loop.at(1.0, seen.append, "in time")
    loop.at(3.0, seen.append, "too late")
    loop.run(2.0)

    assert (seen, loop.now) == (["in time"], 2.0)
    loop.run()
    assert seen == ["in time", "too late"]
