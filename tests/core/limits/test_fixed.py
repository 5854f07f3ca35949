"""The hard cap itself."""

from core.limits.readings import SOUND
from millgate.core.limits.gate import FixedLimit


def test_it_learns_nothing_and_is_what_it_is_told_to_be() -> None:
    limit = FixedLimit(7)
    limit.observe(SOUND._replace(tpot_s=99.0, failures=100))
    assert limit.current() == 7
    limit.adopt(9)
    assert limit.current() == 9
