"""What is shipped beside the program: it parses, it is pinned, and the program accepts it."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from millgate.config.load import load_config

CONTRIB = Path(__file__).parents[2] / "contrib"


def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((CONTRIB / "compose.yaml").read_text(encoding="utf-8"))
    return data


def pinned(image: str) -> bool:
    name, _colon, tag = image.rpartition(":")
    return bool(name) and tag != "latest" and any(character.isdigit() for character in tag)


def test_every_image_has_a_version() -> None:
    images = [service["image"] for service in compose()["services"].values()]
    lines = (CONTRIB / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]

    assert len(bases) == 2
    assert [image for image in images + bases if not pinned(image)] == []


def test_only_the_gate_is_published_and_only_on_the_hosts_loopback() -> None:
    services = compose()["services"]

    assert [name for name, service in services.items() if "ports" in service] == ["gate"]
    assert all(port.startswith("127.0.0.1:") for port in services["gate"]["ports"])


def test_compose_names_only_files_volumes_and_networks_that_there_are() -> None:
    data = compose()
    gate, engine = data["services"]["gate"], data["services"]["vllm"]

    assert (CONTRIB / gate["build"]["context"] / gate["build"]["dockerfile"]).is_file()
    assert (CONTRIB / gate["volumes"][0].split(":")[0]).is_file()
    assert (CONTRIB / f"{gate['env_file'][0]}.example").is_file()
    assert {engine["volumes"][0].split(":")[0]} == set(data["volumes"])
    assert {*gate["networks"], *engine["networks"]} == set(data["networks"])


def test_the_gate_is_stopped_later_than_its_own_grace() -> None:
    grace_s = load_config(CONTRIB / "gate.yaml", {"ENGINE_KEY": "x"}).config.limits.drain_grace

    assert int(compose()["services"]["gate"]["stop_grace_period"].removesuffix("s")) > grace_s
    assert int(unit()["Service"]["TimeoutStopSec"]) > grace_s


def test_the_configuration_is_valid_and_reaches_the_engine_of_compose() -> None:
    config = load_config(CONTRIB / "gate.yaml", {"ENGINE_KEY": "x"}).config

    assert config.engines[0].url == "http://vllm:8000"
    assert "8000" in compose()["services"]["vllm"]["command"]


def test_every_file_that_the_container_copies_is_in_the_repository() -> None:
    lines = (CONTRIB / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]

    assert copied
    assert [name for name in copied if not (CONTRIB.parent / name).exists()] == []
    assert any(line.startswith("USER ") for line in lines)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(CONTRIB / "millgate.service", encoding="utf-8")
    return parser


def test_the_unit_waits_for_readiness_reloads_by_signal_and_is_watched() -> None:
    service = unit()["Service"]

    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["WatchdogSec"]) > 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (CONTRIB / "millgate.service").read_text(encoding="utf-8")
    file = tmp_path / "millgate.service"
    file.write_text(text.replace("/opt/millgate/bin/millgate", "/bin/true"), encoding="utf-8")

    result = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )

    assert "millgate.service" not in result.stderr, result.stderr
