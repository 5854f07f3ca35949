"""A refinement of the core, the plain rule in its place, and what of the source would go with it.

The product has no flags for this: a switch replaces attributes of the core's modules while a run lasts. Compiled
callers do not look attributes up, so the core has to be interpreted (`lab.interpreted`).
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import millgate

_SOURCES = Path(millgate.__file__).resolve().parent.parent
_ROOM = "millgate.core."


@dataclass(frozen=True, slots=True)
class Refinement:
    """One refinement: `plain` says the plain rule, `replaced` what stands in its place, `suites` where it is measured.

    A place is `room.module:name` or `room.module:Class.name`, below `millgate.core`; `parts` are further places that
    go with the refinement, `room.module` being a whole file.
    """

    name: str
    plain: str
    suites: tuple[str, ...]
    replaced: Mapping[str, Any]
    parts: tuple[str, ...] = ()

    def size(self) -> tuple[int, int]:
        """Return the lines of source that go with it, and the numeric constants among them."""
        lines: set[tuple[str, int]] = set()
        constants: set[tuple[str, str]] = set()
        for place in (*self.replaced, *self.parts):
            module, _, name = place.partition(":")
            path = _SOURCES.joinpath(*(_ROOM + module).split(".")).with_suffix(".py")
            for node in _nodes(ast.parse(path.read_text()), name, place):
                lines.update((module, line) for line in range(node.lineno, (node.end_lineno or 0) + 1))
                constants.update((module, each) for each in numbers(node) if not name or each == name)
        return len(lines), len(constants)


@contextmanager
def switched_off(refinement: Refinement) -> Iterator[None]:
    """Run with the plain rule in place of the refinement; AttributeError where a place does not exist."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for place, plain in refinement.replaced.items():
            module, _, name = place.partition(":")
            *owners, last = name.split(".")
            owner: Any = import_module(_ROOM + module)
            for each in owners:
                owner = getattr(owner, each)
            before.append((owner, last, vars(owner)[last] if last in vars(owner) else getattr(owner, last)))
            setattr(owner, last, plain)
        yield
    finally:
        for owner, last, known in before:
            setattr(owner, last, known)


def _nodes(tree: ast.Module, name: str, place: str) -> list[ast.stmt]:
    """Return the statements of a file that a name stands for; ValueError where there is none."""
    found: list[ast.stmt] = list(tree.body)
    for each in name.split(".") if name else ():
        found = [node for node in found if each in _names(node)]
        if not found:
            raise ValueError(f"{place}: no such name in the core")
        if name != each and not name.endswith(f".{each}"):
            found = [inner for node in found if isinstance(node, ast.ClassDef) for inner in node.body]
    return found


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def numbers(node: ast.stmt) -> set[str]:
    """Return the names of the numeric constants that a statement of a module assigns."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return set()
    is_number = any(
        isinstance(each, ast.Constant) and isinstance(each.value, int | float)
        for each in ast.walk(node.value)
    )
    return _names(node) if is_number else set()
