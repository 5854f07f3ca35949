"""The engine where the first token will come soonest."""

from headgate.core.routing.base import Candidate
from headgate.core.routing.least_work import LeastWork


def test_the_soonest_first_token_wins_then_the_faster_decode_then_the_first_named() -> None:
    router = LeastWork()
    slow, soon, same, faster = (
        Candidate(0, 0.5, 0.01),
        Candidate(1, 0.2, 0.02),
        Candidate(2, 0.2, 0.02),
        Candidate(3, 0.2, 0.01),
    )
    assert router.choose([slow, soon]) is soon
    assert router.choose([slow, soon, same, faster]) is faster
    assert router.choose([same, soon]) is soon
    assert router.choose([slow]) is slow
