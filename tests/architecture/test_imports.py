"""Purity that import-linter cannot see: names from outside, built-ins that leak chance or I/O, weight at import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

Sources = dict[Path, ast.Module]

PURE_ROOMS = ("core", "engine")

# Pure means: no clock, no dice, no log, no I/O, no concurrency. `os` and `pathlib` reach the disk.
IMPURE_MODULES = frozenset(
    [
        "asyncio",
        "concurrent",
        "datetime",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "weakref",
    ]
)

# INV-7: `hash` of text and `id` differ from process to process; the others talk to the world.
IMPURE_BUILTINS = frozenset({"hash", "id", "input", "open", "print", "exec", "eval", "globals"})


def _room(sources: Sources, room: str) -> Sources:
    return {file: tree for file, tree in sources.items() if file.parts[:3] == ("src", "millgate", room)}


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def _foreign(sources: Sources, own: tuple[str, ...]) -> Iterator[str]:
    for file, tree in sources.items():
        for line, module in _imported(tree):
            top = module.partition(".")[0]
            is_own = any(module == room or module.startswith(f"{room}.") for room in own)
            is_pure_standard = top in sys.stdlib_module_names and top not in IMPURE_MODULES
            if not is_own and not is_pure_standard:
                yield f"{file}:{line} imports {module}"


def test_the_core_imports_only_itself_and_the_pure_standard_library(product: Sources) -> None:
    core = _room(product, "core")

    assert core
    assert list(_foreign(core, ("millgate.core",))) == []


def test_an_impure_import_is_seen() -> None:
    tree = ast.parse("import time\nfrom millgate.config import load\nimport heapq")

    assert list(_foreign({Path("core.py"): tree}, ("millgate.core",))) == [
        "core.py:1 imports time",
        "core.py:2 imports millgate.config",
    ]


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_read_no_clock_and_throw_no_dice(product: Sources, room: str) -> None:
    impure = [
        f"{file}:{line} imports {module}"
        for file, tree in _room(product, room).items()
        for line, module in _imported(tree)
        if module.partition(".")[0]
        in {"time", "datetime", "random", "secrets", "uuid", "asyncio", "threading"}
    ]

    assert impure == []


def test_the_core_calls_no_builtin_that_differs_between_runs(product: Sources) -> None:
    """INV-7: same events, same decisions, whatever the process's hash seed."""
    calls = [
        f"{file}:{node.lineno} calls {node.func.id}()"
        for file, tree in _room(product, "core").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]

    assert calls == []


def _iterables(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter


def test_the_core_iterates_over_no_set(product: Sources) -> None:
    """INV-7: the order of a set of words differs from process to process."""
    over_sets = [
        f"{file}:{each.lineno} iterates over {ast.unparse(each)}"
        for file, tree in _room(product, "core").items()
        for each in _iterables(tree)
        if isinstance(each, ast.Set | ast.SetComp)
        or (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Name)
            and each.func.id in {"set", "frozenset"}
        )
    ]

    assert over_sets == []


@pytest.mark.parametrize("module", ["millgate", "millgate.observe", "millgate.sim"])
def test_importing_the_face_loads_no_event_loop(module: str) -> None:
    """The simulator must not pull asyncio in through a package face, where no linter sees it."""
    script = (
        f"import sys, {module}\nprint(*sorted({{'asyncio', 'uvloop', 'socket', 'ssl'}} & sys.modules.keys()))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == ""
