"""Which lane is this."""

import pytest

from headgate.core.lanes import choose_lane


@pytest.mark.parametrize(("hint", "lane"), [(None, 1), ("fast", 2), ("gone", 1)])
def test_the_named_lane_or_the_default(hint: str | None, lane: int) -> None:
    assert choose_lane({"fast": 2}, hint, 1) == lane
