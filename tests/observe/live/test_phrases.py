"""Numbers in sentences have one unit and no more figures than anybody reads."""

import pytest

from headgate.core.decisions import Admit, Cancel, Decision, Ended, Hold, Leg, Yield
from headgate.core.words import Outcome, Reason, Stage
from headgate.observe.live.phrases import decision_words, percent, seconds


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0 s"),
        (0.0004, "0 s"),
        (0.042, "42 ms"),
        (0.0999, "0.1 s"),
        (1.24, "1.2 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (7200.0, "2 h"),
    ],
)
def test_times_change_their_unit_as_they_grow(value: float, said: str) -> None:
    assert seconds(value) == said


def test_a_share_that_is_there_is_never_nothing() -> None:
    shares = (0.0, 0.001, 0.006, 0.414, 1.0)

    assert [percent(share) for share in shares] == ["0 %", "under 1 %", "1 %", "41 %", "100 %"]


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (
            Admit(1, (Leg("gpu", 1, 500, 400),), 0.0, 0.2, 10.0),
            "runs at once, first token expected in 0.2 s (500 KV tokens)",
        ),
        (
            Admit(1, (Leg("gpu", 1, 0, 400),), 1.5, 0.2, 10.0, Reason.SATURATED),
            (
                "runs after 1.5 s, first token expected in 0.2 s (400 prompt tokens); "
                "a protecting gate would have refused: saturated"
            ),
        ),
        (Hold(1, 3, 1.2), "waits at place 3, about 1.2 s"),
        (
            Yield(1, Reason.TOO_LATE, 3.2, True, 12.3, 10.0),
            "would take 12 s, 10 s left; come back in 3.2 s",
        ),
        (Yield(1, Reason.QUEUE_FULL, 3.2, False, 64.0, 64.0), "64 against 64; no use coming back"),
        (Yield(1, Reason.DRAINING, 1.0, True), "come back in 1.0 s"),
        (Cancel(1, Reason.DRAINING, 1.0), "stopped while running; told to come back in 1.0 s"),
        (
            Ended(1, Outcome.GOOD, "interactive", "gpu", 0.0, 4.1, 0.3, 400, 120, None),
            "4.1 s in all, first token at 0.3 s; 400 tokens read, 120 written",
        ),
        (
            Ended(1, Outcome.CLIENT_GONE, "interactive", None, 2.0, 2.0, None, 400, 0, Stage.HELD),
            "2.0 s in all (held); 400 tokens read, 0 written",
        ),
    ],
)
def test_a_decision_says_the_numbers_that_made_it(decision: Decision, said: str) -> None:
    assert decision_words(decision) == said
