"""The repository as a stranger gets it: no trace of the machine it was made on, an exact lock, invariants proved."""

import re
import tomllib
from pathlib import Path

import pytest

INVARIANTS = range(1, 11)

# Spelled in pieces, or this file would be its own finding.
_MACHINE_PATH = re.compile(r"(?:^|[^\w.\-/])/(?:" + "work|home|root|Users|farm|tmp/bash_jobs" + r")/\w")
_PACKAGE_INDEX = re.compile(
    "|".join(["python" + "hosted", r"pypi\.org" + "/simple", "registry" + r"\.npmjs", "deb" + r"\.debian"])
)

_OLD_NAME = re.compile("head" + "gate", re.IGNORECASE)


def _findings(files: list[Path], pattern: re.Pattern[str], root: Path) -> list[str]:
    found = []
    for file in files:
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        matches = ((number, pattern.search(line)) for number, line in enumerate(lines, 1))
        found += [f"{file.relative_to(root)}:{number} {match[0]!r}" for number, match in matches if match]
    return found


def test_no_file_names_a_path_of_somebodys_machine(root: Path, kept_files: list[Path]) -> None:
    assert _findings(kept_files, _MACHINE_PATH, root) == []


def test_no_file_names_a_package_index(root: Path, kept_files: list[Path]) -> None:
    assert _findings(kept_files, _PACKAGE_INDEX, root) == []


def test_the_old_name_survives_in_the_changelog_alone(root: Path, kept_files: list[Path]) -> None:
    elsewhere = [file for file in kept_files if file != root / "CHANGELOG.md"]

    assert _findings(elsewhere, _OLD_NAME, root) == []
    assert [str(file) for file in kept_files if _OLD_NAME.search(str(file.relative_to(root)))] == []
    assert _findings([root / "CHANGELOG.md"], _OLD_NAME, root)


def test_a_machine_path_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("see /" + "home/ann/notes\nGET /" + "v1/models\n")

    assert _findings([file], _MACHINE_PATH, tmp_path) == ["note.txt:1 ' /" + "home/a'"]


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "deploy/container/runtime.lock", "deploy/container/build.lock"]
)
def test_the_lock_pins_every_package_by_version_and_hash(root: Path, lock: str) -> None:
    entries = re.split(r"\n(?=\S)", (root / lock).read_text().strip())
    pinned = re.compile(
        r"^[a-z0-9][a-z0-9._-]*==[^\s;]+( ; [^\\]+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\\n|$))+$"
    )

    assert entries
    assert [entry.splitlines()[0] for entry in entries if not pinned.match(entry)] == []


def test_the_lock_holds_every_dependency_that_the_project_names(root: Path) -> None:
    """A dependency added without `make lock` is caught here and not on a stranger's machine."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    named = [*project["project"]["dependencies"]]
    named += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    named += [
        each for group in project["dependency-groups"].values() for each in group if isinstance(each, str)
    ]
    wanted = {re.split(r"[\[<>=!~; ]", each)[0].lower().replace("_", "-") for each in named}
    locked = set(
        re.findall(r"^([a-z0-9._-]+)==", (root / "requirements.lock").read_text(), flags=re.MULTILINE)
    )

    assert wanted - locked == set()


@pytest.mark.parametrize("number", INVARIANTS)
def test_every_invariant_names_a_test_that_cites_it(root: Path, number: int) -> None:
    """docs/invariants.md: statement, where enforced, and a proof that exists; or why it is not claimed yet."""
    sections = re.split(r"^## ", (root / "docs/invariants.md").read_text(), flags=re.MULTILINE)
    section = next((each for each in sections if re.match(rf"INV-{number}\b", each)), None)
    assert section is not None, f"docs/invariants.md has no heading INV-{number}"
    if re.search(r"^\*\*Not claimed yet:\*\* \S", section, flags=re.MULTILINE):
        return
    proof = re.search(r"^\*\*Proved by:\*\* (.+)$", section, flags=re.MULTILINE)
    assert proof is not None, f"INV-{number} names no proof"
    files = re.findall(r"`([^`]+\.py)`", proof[1])
    silent = [
        file
        for file in files
        if not (root / file).is_file() or f"INV-{number}" not in (root / file).read_text()
    ]

    assert files
    assert silent == []


def test_links_between_the_pages_lead_somewhere(root: Path) -> None:
    pages = [
        *root.glob("*.md"),
        root / "bench/README.md",
        *(root / "docs").rglob("*.md"),
    ]
    dead = [
        f"{page.relative_to(root)} -> {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert dead == []
