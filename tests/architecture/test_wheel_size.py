"""The wheel is the product: its lines are bounded by room, and nothing in it needs what a checkout has beside it."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Sources = dict[Path, ast.Module]

MOST_LINES = 69_470
"""Of all modules of the wheel, docstrings and blank lines included. The aim is 30,000: lower it with every thousand that goes."""
SLACK_LINES = 1_500
"""So far the bound may be above what is there; a bound that is further away holds nothing."""
OUTSIDE = frozenset({"lab", "tests", "bench", "hatch_build"})
"""What a checkout has and the wheel has not."""


def _wheel(sources: Sources) -> Sources:
    return {file: tree for file, tree in sources.items() if file.parts[0] == "src"}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_wheel_imports_nothing_that_only_a_checkout_has(product: Sources) -> None:
    wheel = _wheel(product)

    assert wheel
    assert [
        f"{file} imports {module}"
        for file, tree in wheel.items()
        for module in _imported(tree)
        if module.partition(".")[0] in OUTSIDE
    ] == []


def test_the_wheel_has_no_more_lines_than_it_may(root: Path, product: Sources) -> None:
    rooms: Counter[str] = Counter()
    for file in _wheel(product):
        rooms[file.parts[2]] += len((root / file).read_text(encoding="utf-8").splitlines())
    lines = rooms.total()

    by_room = ", ".join(f"{room} {count:,}" for room, count in rooms.most_common())
    assert lines <= MOST_LINES, f"{lines:,} lines, {MOST_LINES:,} may be: {by_room}"
    assert lines >= MOST_LINES - SLACK_LINES, f"{lines:,} lines: lower MOST_LINES to that"
