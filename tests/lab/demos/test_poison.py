"""The parts of the poison demo that need no process: its options."""

import pytest
from lab.demos.poison import PoisonOptions, grace_s

from millgate.demos.stage import EngineSetup
from millgate.demos.users import Mix


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


@pytest.mark.parametrize("patience_s", [0.1, 15.0])
def test_the_last_users_have_time_for_the_longest_answer_however_short_their_patience_is(
    patience_s: float,
) -> None:
    engine = EngineSetup("llama3-70b_h100_tp4", time_scale=5.0, max_num_seqs=16)
    after_looks_s = grace_s(PoisonOptions(patience_s=patience_s), engine, Mix()) - 4 * patience_s / 5.0

    assert after_looks_s >= max(2 * patience_s / 5.0, 1_000 * 0.014 / 5.0)
