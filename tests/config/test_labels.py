"""Labels of engines in a configuration: they reach the core, and what is no label is refused by name."""

from pathlib import Path

import pytest

from millgate.config.load import load_config
from millgate.config.problems import ConfigError
from millgate.core.settings import Labels
from millgate.wiring.settings import build_settings

TEXT = """
engines:
  - {url: "http://a:1", name: a, labels: {rack: r1, zone: eu-1a}}
  - {url: "http://b:1", name: b}
"""


def test_labels_arrive_in_the_core(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT)

    a, b = build_settings(load_config(path, {}, {}).config).settings.engines

    assert a.labels == Labels(rack="r1", zone="eu-1a")
    assert b.labels == Labels()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("region: eu", r"engines\[0\]\.labels\.region"),
        ('rack: ""', r"engines\[0\]\.labels\.rack"),
        ("rack: a b", r"engines\[0\]\.labels\.rack"),
    ],
)
def test_what_is_no_label_is_refused_by_name(tmp_path: Path, wrong: str, message: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT.replace("rack: r1", wrong))

    with pytest.raises(ConfigError, match=message):
        load_config(path, {}, {})


ROLES = """
engines:
  - {url: "http://a:1", name: a, role: prefill, labels: {%s}}
  - {url: "http://b:1", name: b, role: decode, labels: {zone: eu-1a}}
"""


def test_a_required_place_arrives_in_the_core(tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(ROLES % "zone: eu-1a, required: zone")

    settings = build_settings(load_config(file, {}, {}).config).settings

    assert settings.engines[0].labels == Labels(zone="eu-1a", required="zone")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("required: zone", "needs the label `zone`"),
        ("zone: eu-1b, required: zone", "no engine with `role: decode` has `zone: eu-1b`"),
        ("zone: eu-1a, required: region", "required"),
    ],
)
def test_a_required_place_that_cannot_be_is_refused_by_name(
    tmp_path: Path, labels: str, message: str
) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(ROLES % labels)

    with pytest.raises(ConfigError, match=r"engines\[0\]\.labels\.required") as raised:
        load_config(file, {}, {})
    assert message in str(raised.value)
