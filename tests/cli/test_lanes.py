"""What a configuration says of lanes and only the doors can judge."""

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
