"""Engines with adapters: a request waits for the place and for the loading of its own."""

import pytest
from lab.engines.adapted import AdapterStation

from millgate.engine.adapters import AdapterSlots
from millgate.engine.profile import find_profile
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop
from sim.engines.heard import Heard

PROFILE = find_profile("llama3-8b_h100_tp1")


def engine(max_loras: int) -> tuple[Loop, Heard, AdapterStation]:
    loop = Loop()
    heard = Heard(loop)
    slots = AdapterSlots(max_loras, load_s=0.5)
    return loop, heard, AdapterStation("engine", loop, heard, PROFILE, slots, 0.0)


def adapted(adapter: str, tokens: int = 40) -> Job:
    return Job(0.0, 500, tokens, adapter=adapter)


def test_an_adapter_is_loaded_before_its_first_request_begins() -> None:
    loop, heard, station = engine(max_loras=2)
    for attempt, adapter in enumerate(("", "a", "a")):
        station.start(attempt, adapted(adapter))
    assert station.read()[:2] == (1, 2)
    loop.run()

    assert heard.firsts[0] < 0.5 < heard.firsts[1] <= heard.firsts[2] < 0.6


def test_one_adapter_too_many_waits_until_no_request_uses_the_other() -> None:
    loop, heard, station = engine(max_loras=1)
    station.start(1, adapted("a", 200))
    station.start(2, adapted("b"))
    loop.run()

    assert heard.firsts[2] > heard.ends[1] + 0.5


@pytest.mark.parametrize("left_at", [0.1, 1.0])
def test_a_client_that_leaves_gives_the_place_of_its_adapter_back(left_at: float) -> None:
    loop, heard, station = engine(max_loras=1)
    station.start(1, adapted("a", 5000))
    station.start(2, adapted("b"))
    loop.run(left_at)
    station.hang_up(1)
    loop.run()

    assert list(heard.ends) == [2]
    assert heard.firsts[2] == pytest.approx(left_at + 0.5, abs=0.1)
    assert station.read()[:2] == (0, 0)


def test_a_prompt_that_never_fits_holds_no_adapter() -> None:
    loop, heard, station = engine(max_loras=1)
    station.start(1, Job(0.0, PROFILE.kv_tokens + 1, 1, adapter="a"))
    station.start(2, adapted("b"))
    loop.run()

    assert [attempt for attempt, _ in heard.failures] == [1]
    assert list(heard.ends) == [2]
