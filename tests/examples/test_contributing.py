"""What CONTRIBUTING.md tells a contributor to do is done: each section's files, changes and commands, in a copy."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.pages import ROOT, Block

PAGE = ROOT / "CONTRIBUTING.md"
WALKS = ("Add a lane order", "Add a limiter", "Add a dialect", "Add a metric")
COPIED = ("src", "tests", "docs/reference", "pyproject.toml", "hatch_build.py")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEW_FILE = re.compile(r"# (src/\S+\.py)\n")
_LATER_S = 300.0


def steps(section: str) -> list[Block]:
    """Return the steps of a section in order: files that are new, changes, and commands."""
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [Block(kind, body) for kind, body in _FENCE.findall(text)]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """Give what a contributor changes, without what was compiled from other sources."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    yield tmp_path
    shutil.rmtree(tmp_path)


def run(command: list[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -n 0",
    }
    for name in [
        each for each in environ if each.startswith("PYTEST_XDIST") or each == "PYTEST_CURRENT_TEST"
    ]:
        del environ[name]
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        input=text,
        capture_output=True,
        text=True,
        timeout=_LATER_S,
        check=False,
    )


def walk(section: str, folder: Path) -> list[str]:
    """Take the steps; return what went wrong, nothing where all went well."""
    problems = []
    for step in steps(section):
        if step.kind == "python":
            named = _NEW_FILE.match(step.text)
            assert named is not None, step.text
            (folder / named[1]).write_text(step.text[named.end() :])
            continue
        command = ["bash", "-euo", "pipefail", "-c", step.text]
        if step.kind == "diff":
            command = ["git", "apply", "-"]
        done = run(command, folder, step.text if step.kind == "diff" else "")
        if done.returncode:
            problems.append(f"{step.text}\n{done.stdout}\n{done.stderr}")
    return problems


@pytest.mark.parametrize("section", WALKS)
def test_the_steps_of_a_section_lead_to_its_green_tests(section: str, copy: Path) -> None:
    kinds = {step.kind for step in steps(section)}
    assert kinds >= {"diff", "sh"}

    assert walk(section, copy) == []


def test_the_new_order_is_one_that_a_file_may_name(copy: Path) -> None:
    walk("Add a lane order", copy)
    (copy / "gate.yaml").write_text(
        "engines: [{url: 'http://127.0.0.1:9'}]\nlanes: [{name: interactive, order: lightest}]\n"
    )
    code = (
        "from pathlib import Path\n"
        "from millgate.config.load import load_config\n"
        "print(load_config(Path('gate.yaml')).config.lanes[0].order)\n"
    )

    assert run([sys.executable, "-c", code], copy).stdout == "lightest\n"


def test_steps_that_no_longer_fit_the_sources_are_seen(copy: Path) -> None:
    choices = copy / "src/millgate/wiring/choices.py"
    choices.write_text(choices.read_text().replace('"deadline": lambda', '"due": lambda'))

    assert len(walk("Add a lane order", copy)) >= 1


def test_every_file_of_a_walk_is_formatted_and_linted_as_the_house_is(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for section in WALKS:
        for step in steps(section):
            if step.kind == "python":
                file = tmp_path / _NEW_FILE.match(step.text)[1]  # type: ignore[index]
                file.parent.mkdir(parents=True, exist_ok=True)
                (file.parent / "__init__.py").write_text('"""A room."""\n')
                file.write_text(step.text.partition("\n")[2])
    first_party = 'lint.isort.known-first-party = ["millgate"]'
    config = ["--config", str(ROOT / "pyproject.toml"), "--config", first_party, str(tmp_path)]

    for command in (["check"], ["format", "--check"]):
        done = run([sys.executable, "-m", "ruff", *command, "--no-cache", *config], tmp_path)
        assert done.returncode == 0, done.stdout
