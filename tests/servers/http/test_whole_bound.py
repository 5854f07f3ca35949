"""Which bound is named when a whole answer is given up."""

import asyncio

import pytest

from millgate.core.decisions import Admit, Leg
from millgate.dialects.contract import RequestFacts
from millgate.servers.http.whole_bound import (
    LONGEST_ANSWER,
    MAX_TOKENS,
    SILENCE,
    GivenUp,
    WholeBound,
)


@pytest.mark.parametrize(
    ("max_tokens", "later_s", "setting"),
    [(None, 0.0, LONGEST_ANSWER), (20, 0.0, MAX_TOKENS), (None, 60.0, SILENCE)],
)
def test_the_setting_is_the_one_that_acted(max_tokens: int | None, later_s: float, setting: str) -> None:
    """The longest answer that the request allows, where that time is over; before it, silence in mid-answer."""

    async def body() -> GivenUp:
        heard: list[GivenUp] = []
        began_at = asyncio.get_running_loop().time()
        ends_at = began_at + later_s
        admit = Admit(7, (Leg("gpu-0", 1, 100, 50),), 0.0, 0.1, ends_at)
        facts = RequestFacts("m", stream=False, max_tokens=max_tokens, answers=1, include_usage=None)
        bound = WholeBound(heard.append, admit, began_at, ends_at, None, facts)
        bound.acted(b"seen-by-the-client", "why it ended")
        return heard[0]

    given_up = asyncio.run(body())
    assert given_up[:3] == ("seen-by-the-client", "gpu-0", setting)
    assert given_up.bound_s == (None if setting == SILENCE else pytest.approx(0.0, abs=0.01))
    assert given_up.why == "why it ended"


def test_an_answer_that_is_passed_on_is_given_up_for_silence_alone() -> None:
    async def body() -> GivenUp:
        heard: list[GivenUp] = []
        now = asyncio.get_running_loop().time()
        admit = Admit(7, (Leg("gpu-0", 1, 100, 50),), 0.0, 0.1, now)
        facts = RequestFacts("m", stream=False, max_tokens=20, answers=1, include_usage=None)
        bound = WholeBound(heard.append, admit, now, now, None, facts)
        bound.begun()
        bound.acted(b"id", "why it ended")
        return heard[0]

    given_up = asyncio.run(body())
    assert (given_up.setting, given_up.bound_s) == (SILENCE, None)
