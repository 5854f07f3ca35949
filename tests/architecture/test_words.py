"""Names and promises: every public name says what it promises, every closed word is explained."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from millgate.core import words

Sources = dict[Path, ast.Module]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

FORBIDDEN_STEM = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc|v\d+)($|_)")
"""File names that say nothing of what is inside, and second versions kept beside the first."""


def _public(node: Documented, place: str) -> Iterator[tuple[str, Documented]]:
    """Yield every public class, function and method below this node; what is inside a function is private."""
    yield place, node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    file = place.partition(":")[0]
    for child in node.body:
        if isinstance(
            child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not child.name.startswith("_"):
            yield from _public(child, f"{file}:{child.lineno} {child.name}")


def _is_overload_or_setter(node: Documented) -> bool:
    """Such a definition belongs to a name that is documented once elsewhere."""
    decorators = getattr(node, "decorator_list", [])
    return any("overload" in ast.unparse(each) or ".setter" in ast.unparse(each) for each in decorators)


def _undocumented(sources: Sources) -> Iterator[str]:
    for file, tree in sources.items():
        for place, node in _public(tree, str(file)):
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            if not first_line and not _is_overload_or_setter(node):
                yield f"{place}: no docstring"
            elif first_line and not first_line.endswith((".", "?")):
                yield f"{place}: the first line is no whole sentence: {first_line!r}"


def test_every_public_name_opens_with_a_promise(product: Sources) -> None:
    """A docstring's first line is one sentence and ends as one; a room may open with its question."""
    assert list(_undocumented(product)) == []


def test_a_missing_promise_is_seen() -> None:
    source = ast.parse('"""A module."""\nclass Gate:\n    """a gate"""\n    def enter(self): ...\n')

    assert list(_undocumented({Path("gate.py"): source})) == [
        "gate.py:2 Gate: the first line is no whole sentence: 'a gate'",
        "gate.py:4 enter: no docstring",
    ]


def test_file_names_say_what_is_inside(everything: Sources) -> None:
    assert [str(file) for file in everything if FORBIDDEN_STEM.search(file.stem)] == []


_CLOSED_VOCABULARIES = [
    each
    for each in vars(words).values()
    if isinstance(each, type) and issubclass(each, StrEnum) and each is not StrEnum
]


@pytest.mark.parametrize("vocabulary", _CLOSED_VOCABULARIES, ids=lambda each: each.__name__)
def test_the_glossary_explains_every_closed_word(root: Path, vocabulary: type[StrEnum]) -> None:
    """Reasons, outcomes, stages, failures and every other enum of core/words, under its own heading."""
    sections = re.split(r"^## ", (root / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    section = next((each for each in sections if f"`{vocabulary.__name__}`" in each.partition("\n")[0]), "")
    explained = set(re.findall(r"^\| `(\w+)` \| \S", section, flags=re.MULTILINE))

    assert explained == {member.value for member in vocabulary}
