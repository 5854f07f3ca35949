"""Settings of the embedded engine: what is wrong is named before anything starts."""

import pytest

from millgate.engine.profile import find_profile, scaled
from millgate.servers.emulator.settings import EmulatorSettings


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"port": 70_000}, "port"),
        ({"time_scale": 10.5}, "time_scale"),
        ({"time_scale": 0.0}, "time_scale"),
        ({"tokens_per_event": 0}, "tokens_per_event"),
        ({"profile": "nope"}, "profile"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs"),
        ({"max_model_len": 1}, "max_model_len"),
    ],
)
def test_a_wrong_setting_is_named(fields: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        EmulatorSettings(**fields)  # type: ignore[arg-type]


def test_the_profile_runs_scaled_and_with_the_sequences_asked_for() -> None:
    profile = EmulatorSettings(profile="demo", time_scale=4.0, max_num_seqs=3).engine_profile()

    assert profile.max_num_seqs == 3
    assert profile.decode_base_ms == scaled(find_profile("demo"), 4.0).decode_base_ms
