"""The parts of the poison demo that need no process: its options."""

import pytest
from lab.demos.poison import PoisonOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loads": ()}, "loads: name at least one"),
        ({"loads": (0.0,)}, "loads: must be from 0.05 to 10, got 0"),
        ({"refreshes": -1}, "refreshes: must be from 0 to 20"),
        ({"run_patiences": 0.5}, "run_patiences: must be from 1"),
        ({"profile": "abacus"}, "profile: 'abacus' is not one of"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoisonOptions(**options)  # type: ignore[arg-type]  # one wrong value at a time
