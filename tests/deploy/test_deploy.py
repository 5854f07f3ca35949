"""What is shipped beside the program: it parses, it is pinned, and the program accepts it."""

import configparser
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from millgate.config.doors import AdminConfig
from millgate.config.load import load_config
from millgate.config.schema import Config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINER, COMPOSE, SYSTEMD = DEPLOY / "container", DEPLOY / "compose", DEPLOY / "systemd"
SECRETS = {"ENGINE_KEY": "x", "MILLGATE_ADMIN_TOKEN": "sixteen-characters"}


def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    return data


def gate_config() -> Config:
    return load_config(COMPOSE / "gate.yaml", SECRETS).config


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the container file: the word, and the rest on one line."""
    text = (CONTAINER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found: list[list[tuple[str, str]]] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, " ".join(rest.split())))
    return found


def copied() -> list[str]:
    """Return what the container file takes from the repository."""
    copies = [rest for stage in stages() for word, rest in stage if word == "COPY" and "--from" not in rest]
    return [name for rest in copies for name in rest.split()[:-1]]


def locked(name: str) -> dict[str, str]:
    text = (CONTAINER / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def pinned(image: str) -> bool:
    name, _colon, tag = image.rpartition(":")
    return bool(name) and tag != "latest" and any(character.isdigit() for character in tag)


def test_every_image_has_a_version() -> None:
    images = [service["image"] for service in compose()["services"].values()]
    bases = [stage[0][1].split()[0] for stage in stages()]

    assert len(bases) == 2
    assert [image for image in images + bases if not pinned(image)] == []


def test_only_the_gate_is_published_and_only_on_the_hosts_loopback() -> None:
    services = compose()["services"]

    assert [name for name, service in services.items() if "ports" in service] == ["gate"]
    assert all(port.startswith("127.0.0.1:") for port in services["gate"]["ports"])


def test_compose_names_only_files_volumes_and_networks_that_there_are() -> None:
    data = compose()
    gate, engine = data["services"]["gate"], data["services"]["vllm"]

    assert (COMPOSE / gate["build"]["context"] / gate["build"]["dockerfile"]).is_file()
    assert (COMPOSE / gate["volumes"][0].split(":")[0]).is_file()
    assert {engine["volumes"][0].split(":")[0]} == set(data["volumes"])
    assert {*gate["networks"], *engine["networks"]} == set(data["networks"])


def test_every_secret_that_compose_asks_for_stands_in_the_example_and_is_the_one_that_the_gate_reads() -> (
    None
):
    asked = re.findall(r"\$\{(\w+):\?", (COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    example = re.findall(
        r"^(\w+)=", (COMPOSE / "secrets.env.example").read_text(encoding="utf-8"), re.MULTILINE
    )
    config = gate_config()

    assert set(asked) == set(example) == set(SECRETS)
    assert config.engines[0].api_key_env == "ENGINE_KEY"
    assert config.admin.token_env == "MILLGATE_ADMIN_TOKEN"
    assert set(compose()["services"]["gate"]["environment"]) == set(SECRETS)


def test_the_gate_starts_when_the_engine_is_ready() -> None:
    services = compose()["services"]
    engine = gate_config().engines[0]
    (probe,) = re.findall(r"http://[^']+", services["vllm"]["healthcheck"]["test"][-1])

    assert services["gate"]["depends_on"] == {"vllm": {"condition": "service_healthy"}}
    assert urlsplit(probe).port == urlsplit(engine.url).port
    assert urlsplit(probe).path == engine.health


def test_probes_and_prometheus_reach_the_admin_door_from_outside_the_container() -> None:
    admin = gate_config().admin

    assert admin.host == "0.0.0.0"
    assert "gate" in admin.hosts
    assert f"127.0.0.1:{admin.port}:{admin.port}" in compose()["services"]["gate"]["ports"]


def test_the_gate_is_stopped_later_than_its_own_grace() -> None:
    grace_s = gate_config().limits.drain_grace

    assert int(compose()["services"]["gate"]["stop_grace_period"].removesuffix("s")) > grace_s
    assert int(unit()["Service"]["TimeoutStopSec"]) > grace_s


def test_the_configuration_is_valid_and_reaches_the_engine_of_compose() -> None:
    config = gate_config()

    assert config.engines[0].url == "http://vllm:8000"
    assert "8000" in compose()["services"]["vllm"]["command"]


def ignored(name: str) -> bool:
    """Return whether the builder never gets this file: the last pattern that fits it, or a folder above it, decides."""
    is_out = False
    parts = Path(name).parts
    above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if not line or line.startswith("#"):
            continue
        shapes = [pattern, pattern.removeprefix("**/")]
        if any(
            fnmatch(each, shape) and each.count("/") >= shape.count("/") for each in above for shape in shapes
        ):
            is_out = not line.startswith("!")
    return is_out


def test_every_file_that_the_container_copies_is_in_the_repository_and_reaches_the_builder() -> None:
    assert copied()
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    assert [name for name in copied() if ignored(name)] == []
    assert not ignored("src/millgate/core/words.py")


@pytest.mark.parametrize(
    "name",
    [".git/config", ".venv/bin/python", "tests/conftest.py", "docs/README.md", "deploy/compose/secrets.env"],
)
def test_what_the_container_does_not_copy_stays_here(name: str) -> None:
    assert ignored(name)


def test_what_was_compiled_here_stays_here() -> None:
    assert ignored("src/millgate/core/words.cpython-311-x86_64-linux-gnu.so")
    assert ignored("src/millgate/__pycache__/__init__.cpython-311.pyc")


def test_the_image_that_runs_builds_nothing_and_is_not_root() -> None:
    _build, runs = stages()
    words = [word for word, _ in runs]
    users = [rest for word, rest in runs if word == "USER"]

    assert "RUN" not in words
    assert [rest for word, rest in runs if word == "COPY"] == ["--from=build /opt/millgate /opt/millgate"]
    assert len(users) == 1
    assert all(part.isdigit() and int(part) > 0 for part in users[0].split(":"))


def test_the_image_takes_what_its_locks_name_and_refuses_a_wheel_that_is_not_compiled() -> None:
    runs = [rest for word, rest in stages()[0] if word == "RUN"]
    installs = [step for rest in runs for step in rest.split(" && ") if " install " in step and "pip" in step]

    assert installs
    assert all("--require-hashes" in step or "--no-index" in step for step in installs)
    assert "grep -F '(compiled,'" in runs[-1]


def test_the_health_check_asks_the_admin_door_of_the_default_port_whether_the_process_lives() -> None:
    (check,) = (rest for word, rest in stages()[1] if word == "HEALTHCHECK")
    (probe,) = re.findall(r"http://[^']+", check)

    assert urlsplit(probe).port == AdminConfig().port
    assert urlsplit(probe).path == "/healthz"


def test_the_full_lock_has_the_libraries_of_the_extras_and_of_every_gate() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name in ("redis", "extproc") for each in project["optional-dependencies"][name]]

    assert locked("runtime.lock").items() <= locked("full.lock").items()
    assert {re.split(r"[>=\[]", each)[0].lower() for each in extras} <= set(locked("full.lock"))


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [("runtime.lock", "dependencies"), ("full.lock", "dependencies"), ("build.lock", "requires")],
)
def test_a_lock_of_the_container_names_the_versions_that_are_tested_and_no_tools(
    lock: str, wanted: str
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {**project["project"], **project["build-system"]}[wanted]
    tested = dict(
        re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    )

    assert {re.split(r"[>=]", each)[0].lower() for each in named} <= set(locked(lock))
    assert locked(lock).items() <= tested.items()
    assert not set(locked(lock)) & {"pytest", "ruff", "pyright", "openai", "plotly", "hypothesis"}
    assert len(re.findall(r"--hash=sha256:", (CONTAINER / lock).read_text("utf-8"))) >= len(locked(lock))


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / "millgate.service", encoding="utf-8")
    return parser


def test_the_unit_waits_for_readiness_reloads_by_signal_and_is_watched() -> None:
    service = unit()["Service"]

    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["WatchdogSec"]) > 0


def test_the_unit_may_write_where_the_how_to_puts_the_log_and_logrotate_reloads_it() -> None:
    folder = f"/var/log/{unit()['Service']['LogsDirectory']}"
    rotation = (SYSTEMD / "millgate.logrotate").read_text(encoding="utf-8")
    (log,) = re.findall(r"^(/\S+) \{$", rotation, re.MULTILINE)
    page = (ROOT / "docs/how-to/logs-and-why.md").read_text(encoding="utf-8")

    assert Path(log).parent == Path(folder)
    assert f"log_attempts: {log}" in page
    assert "systemctl reload millgate.service" in rotation
    assert "systemctl reload millgate.service" in page


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (SYSTEMD / "millgate.service").read_text(encoding="utf-8")
    file = tmp_path / "millgate.service"
    file.write_text(text.replace("/opt/millgate/bin/millgate", "/bin/true"), encoding="utf-8")

    result = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )

    assert "millgate.service" not in result.stderr, result.stderr
