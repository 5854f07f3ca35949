"""The sizing calculator says what Little, Erlang and the rules of thumb say."""

import pytest

from millgate.engine.profile import find_profile
from millgate.sim.calculator import advise, streams_for
from millgate.sim.truths.formulas import erlang_c


@pytest.mark.parametrize("load", [5.0, 10.0, 20.0, 50.0, 100.0])
def test_hardly_anybody_waits_with_the_advised_streams(load: float) -> None:
    assert erlang_c(streams_for(load), load) < 0.045


def test_every_number_comes_with_its_reason() -> None:
    advice = {each.name: each for each in advise(50.0, 4.0, 10.0, find_profile("llama3-8b_h100_tp1"))}

    assert advice["mean streams"].value == "200.0"
    assert advice["max_inflight, all engines"].value == "229"
    assert advice["max_queue"].value == "573"
    assert advice["engines"].value == "3"
    assert all(each.why for each in advice.values())
