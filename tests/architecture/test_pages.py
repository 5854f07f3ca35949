"""What the pages about the code name is there: paths in the design, functions in the walk through the core."""

import ast
import re
from collections import defaultdict
from pathlib import Path

_PATH = re.compile(r"`((?:[a-z_]+/)*[a-z_0-9]+\.(?:py|md|toml|js)|[a-z_]+(?:/[a-z_0-9]+)+/?)`")
_FUNCTION = re.compile(r"`([a-z_]+)\.([A-Za-z_]+)`")


def _roots(root: Path) -> tuple[Path, ...]:
    return root, root / "src", root / "src/millgate", root / "src/millgate/core", root / "docs"


def test_every_path_that_the_design_names_exists(root: Path) -> None:
    page = (root / "docs/design.md").read_text()
    named = {each for each in _PATH.findall(page) if not each.startswith(("api/", "v1/"))}
    assert len(named) >= 6
    assert [each for each in named if not any((at / each).exists() for at in _roots(root))] == []


def test_the_house_in_the_design_is_the_house(root: Path) -> None:
    page = (root / "docs/design.md").read_text()
    house = page[page.index("src/millgate/\n") : page.index("tests/         mirrors src")]
    rooms = {each.name for each in (root / "src/millgate").iterdir() if (each / "__init__.py").exists()}
    assert {each for each in rooms if not re.search(rf"\b{each}/", house)} == set()
    files = {each.name for each in (root / "src/millgate").rglob("*.py")}
    named = set(re.findall(r"\b([a-z0-9_]+\.py)\b", house))
    assert len(named) > 60
    assert named - files == set()


def _definitions(root: Path) -> dict[str, set[str]]:
    """Return which functions, methods and classes each module of the core defines, by the module's name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in (root / "src/millgate/core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[file.stem].add(node.name)
    return found


def test_every_function_that_the_page_about_the_core_names_is_there(root: Path) -> None:
    page = (root / "docs/how-the-core-works.md").read_text()
    defined = _definitions(root)
    named = _FUNCTION.findall(page)
    assert len(named) > 40
    assert [f"{module}.{name}" for module, name in named if name not in defined.get(module, ())] == []
