"""What a public forge reads of the repository: workflows and issue forms by their schemas, and what they name is there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.y*ml"))
FORMS = sorted(file for file in (FORGE / "ISSUE_TEMPLATE").glob("*.y*ml") if file.stem != "config")
CHOOSER = FORGE / "ISSUE_TEMPLATE/config.yml"

_FILE = re.compile(r"(?<![\w/.-])(?:\.ci/run|[\w/]+\.(?:md|yml|py))\b")


def checked(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [CHOOSER]),
    ],
    ids=["workflows", "forms", "chooser"],
)
def test_the_forges_schema_takes_every_file(schema: str, files: list[Path]) -> None:
    pytest.importorskip("check_jsonschema")
    assert files
    done = checked(schema, *files)
    assert done.returncode == 0, done.stdout


def test_a_workflow_with_a_misspelled_word_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    file = tmp_path / "ci.yaml"
    file.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))

    assert checked("vendor.github-workflows", file).returncode == 1


def parts(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(file.read_text())
    return read


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.stem)
def test_a_workflow_may_only_read_and_ends_by_itself(workflow: Path) -> None:
    read = parts(workflow)
    assert read["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 120 for job in read["jobs"].values())
    assert "secrets." not in workflow.read_text()


@pytest.mark.parametrize(
    "file", [*WORKFLOWS, *FORGE.rglob("*.md"), *FORMS, CHOOSER], ids=lambda each: each.name
)
def test_every_file_of_ours_that_is_named_exists(file: Path) -> None:
    named = {each for each in _FILE.findall(file.read_text()) if "://" not in each}
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_the_workflow_runs_what_this_repository_runs() -> None:
    (job,) = parts(FORGE / "workflows/ci.yaml")["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_targets_of_make_that_workflows_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for file in WORKFLOWS for name in re.findall(r"run: make ([a-z-]+)", file.read_text())}
    assert named
    assert named <= targets


def test_the_repositorys_address_is_the_one_of_the_project() -> None:
    home = re.search(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert home is not None
    assert parts(CHOOSER)["contact_links"][0]["url"].startswith(f"{home[1]}/")
