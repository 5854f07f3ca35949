"""What users install: true metadata, links that work away from the repository, extras that name what commands need."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import hatch_build
import pytest

from millgate.cli.exits import EXTRA_OF

PICTURE = "![p](docs/pictures/a.svg)"


def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", each)[0].lower() for each in requirements}


def imported(files: list[Path]) -> set[str]:
    """Return the first part of every name that these files import."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    whole = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    whole += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in whole}


def test_every_library_of_an_extra_is_known_to_the_command_line(root: Path) -> None:
    extras = project(root)["project"]["optional-dependencies"]

    known = {(library, extra) for library, each in EXTRA_OF.items() for extra in each}
    assert known == {(library, extra) for extra, each in extras.items() for library in names(each)}


def test_the_compiler_finds_every_library_whose_types_it_reads(root: Path) -> None:
    """In an isolated build there is nothing but what is named; a missing library fails the build."""
    wanted = {"httptools", "msgspec", "numpy", "pydantic", "xxhash"}
    seen = imported([root / file for group in hatch_build.GROUPS for file in hatch_build.files(group)])

    third_party = names(project(root)["project"]["dependencies"]) | set(EXTRA_OF)
    assert seen & third_party <= wanted <= names(project(root)["build-system"]["requires"])


def test_a_build_takes_no_older_library_than_an_installation(root: Path) -> None:
    data = project(root)
    everything = [*data["project"]["dependencies"]]
    everything += [each for extra in data["project"]["optional-dependencies"].values() for each in extra]
    bounds: dict[str, set[str]] = {}
    for each in everything + data["build-system"]["requires"]:
        name, _, bound = each.partition(">=")
        bounds.setdefault(name, set()).add(bound)

    assert {name: each for name, each in bounds.items() if len(each) > 1} == {}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a](docs/a.md)", "[a](https://forge/x/blob/v1.2/docs/a.md)"),
        ("[a](docs/a.md#part)", "[a](https://forge/x/blob/v1.2/docs/a.md#part)"),
        (PICTURE, "![p](https://forge/x/raw/v1.2/docs/pictures/a.svg)"),
        ("[a](https://elsewhere/a.md)", "[a](https://elsewhere/a.md)"),
        ("[a](#part)", "[a](#part)"),
        (
            "two [a](a.md) and [b](b.md)",
            "two [a](https://forge/x/blob/v1.2/a.md) and [b](https://forge/x/blob/v1.2/b.md)",
        ),
    ],
)
def test_a_link_of_the_readme_is_absolute_on_the_index(written: str, shown: str) -> None:
    assert hatch_build.absolute_links(written, "https://forge/x", "1.2") == shown


def test_the_readme_for_the_index_has_no_relative_link(root: Path) -> None:
    urls = project(root)["project"]["urls"]
    metadata: dict[str, Any] = {"urls": urls, "version": "1.2"}

    hatch_build.ReadmeHook(str(root), {}).update(metadata)

    targets = re.findall(r"\]\(([^)\s]+)\)", metadata["readme"]["text"])
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "http://"))] == []
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
