"""Numbers in sentences have one unit and no more figures than anybody reads."""

import re
from importlib import resources

import pytest

from millgate.core.words import Reason
from millgate.observe.live.banner import REFUSED_BECAUSE, percent, seconds


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


def test_every_reason_has_words_and_the_page_has_the_same() -> None:
    script = resources.files("millgate.observe.live").joinpath("page", "words.js").read_text(encoding="utf-8")
    table = script.split("const BECAUSE = {")[1].split("}")[0]
    assert dict(re.findall(r'(\w+): "([^"]+)"', table)) == {
        reason.value: words for reason, words in REFUSED_BECAUSE.items()
    }
    assert set(REFUSED_BECAUSE) == set(Reason)
