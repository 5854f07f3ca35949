"""Numbers in sentences have one unit and no more figures than anybody reads."""

import pytest

from millgate.observe.live.phrases import percent, seconds


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
