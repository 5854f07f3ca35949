"""The wheel in an empty environment, outside the checkout: `make dist` builds it, names it in MILLGATE_WHEEL, and runs this."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

WHEEL = os.environ.get("MILLGATE_WHEEL", "")
MOST_MB = 100
"""Of the whole environment: Millgate, its libraries and the environment's own files."""
SERVES_WITHIN_S = 30.0
CHAT = b'{"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}'

pytestmark = pytest.mark.skipif(not WHEEL, reason="MILLGATE_WHEEL names no wheel: make dist")


@pytest.fixture(scope="module")
def wheel() -> Path:
    return Path(WHEEL).resolve()


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment that holds the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    uv = Path(sys.executable).with_name("uv")
    for arguments in (
        ["venv", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(folder), "--compile-bytecode", str(wheel)],
    ):
        subprocess.run([uv, "--quiet", *arguments], check=True)
    return folder / "bin"


def run(bin_folder: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_folder / "millgate", *arguments], cwd=folder, env={}, capture_output=True, text=True, check=False
    )


def test_the_wheel_is_compiled_for_this_interpreter_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    extensions = [name for name in names if name.endswith(".so")]
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}-"

    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    assert re.search(r"-(manylinux_2_\d+|linux)_\w+\.whl$", wheel.name)
    assert extensions
    assert [name for name in extensions if tag not in name] == []
    assert {name.split("/")[0] for name in names if not name.endswith(".so")} == {
        "millgate",
        "-".join(wheel.name.split("-")[:2]) + ".dist-info",
    }
    assert [name for name in names if re.search(r"(^|/)(lab|tests|bench)/|/test_|conftest", name)] == []


def test_every_link_of_its_description_is_absolute(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())

    targets = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert {line.split(",")[0] for line in metadata.get_all("Project-URL") or ()} >= {"Homepage", "Issues"}


def test_the_environment_is_small(bin_folder: Path) -> None:
    files = [path for path in bin_folder.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    size_mb = sum(path.stat().st_size for path in files) / 1e6

    print(f"environment: {size_mb:.0f} MB")
    assert size_mb < MOST_MB


def test_it_says_that_it_is_compiled(bin_folder: Path, tmp_path: Path) -> None:
    said = run(bin_folder, tmp_path, "--version")

    assert (said.returncode, said.stderr) == (0, "")
    assert "(compiled, Python " in said.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo"], "sim"),
        (["sim", "replay", "arena"], "sim"),
        (["size", "--rate", "1", "--latency", "1s"], "sim"),
    ],
)
def test_what_a_command_lacks_is_one_sentence_with_the_line_that_installs_it(
    arguments: list[str], extra: str, bin_folder: Path, tmp_path: Path
) -> None:
    said = run(bin_folder, tmp_path, *arguments)

    assert said.returncode == 1
    assert said.stderr.endswith(f"pip install 'millgate[{extra}]'\n")
    assert said.stderr.count("\n") == 1


@pytest.fixture
def gate(bin_folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["run", "--port", "0", "--admin-port", "0", "--json"]
    process = subprocess.Popen(
        [bin_folder / "millgate", *arguments],
        cwd=tmp_path,
        env={},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.communicate()


def test_one_command_serves_outside_the_checkout(gate: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    assert gate.stdout is not None
    assert select.select([gate.stdout], [], [], SERVES_WITHIN_S)[0]
    ready = json.loads(gate.stdout.readline())
    print(f"from the command to serving: {time.monotonic() - began:.2f} s")

    request = Request(ready["url"] + "/v1/chat/completions", CHAT, {"content-type": "application/json"})
    with urlopen(request, timeout=10) as answer:
        assert json.load(answer)["object"] == "chat.completion"
    with urlopen(ready["admin_url"] + "/metrics", timeout=10) as answer:
        assert 'build="compiled"' in answer.read().decode()
    gate.send_signal(signal.SIGTERM)
    assert gate.wait(15.0) == 0
