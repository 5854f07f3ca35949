"""What a configuration says of paths and only the doors can judge."""

from pathlib import Path

import pytest

from millgate.cli.compose import gateway_settings
from millgate.config.load import load_config
from millgate.config.problems import ConfigError


def test_a_path_that_no_door_serves_has_no_lane(tmp_path: Path) -> None:
    """A slip in a path was valid, and its requests were for the first lane."""
    file = tmp_path / "gate.yaml"
    lanes = "[{name: people}, {name: batch, paths: [/v1/embeddings, /v1/embedings]}]"
    file.write_text(f"engines: [{{url: 'http://127.0.0.1:1'}}]\nlanes: {lanes}\n")
    with pytest.raises(ConfigError, match=r"lanes\[1\]\.paths\[1\]: allowed: .*, /v1/embeddings, "):
        gateway_settings(load_config(file))


def test_a_sign_of_life_for_a_path_that_no_door_serves_is_refused(tmp_path: Path) -> None:
    """A slip in a path was valid, and its clients got none."""
    file = tmp_path / "gate.yaml"
    kept = "{/v1/chat/completions: 15s, /v1/chat/completion: 15s}"
    file.write_text(f"engines: [{{url: 'http://127.0.0.1:1'}}]\nlimits: {{keep_alive: {kept}}}\n")
    with pytest.raises(
        ConfigError, match=r"2:50: limits\.keep_alive\./v1/chat/completion: allowed: /classify"
    ):
        gateway_settings(load_config(file))


def test_signs_of_life_without_a_pause_are_refused(tmp_path: Path) -> None:
    """`0s`, which looks like none, wrote a client 1 MB of comments a second."""
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://127.0.0.1:1'}]\nlimits: {keep_alive: {/v1/messages: 0s}}\n")
    with pytest.raises(ConfigError, match=r"keep_alive\./v1/messages: must be at least 100ms, not '0s'"):
        load_config(file)
