"""State has one owner: what an object of the core remembers is written by methods of its class, in that class's own file."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Sources = dict[Path, ast.Module]
_CORE = Path("src/millgate/core")


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """Yield every target that this statement writes or deletes, tuples taken apart."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = [*node.targets]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor | ast.comprehension):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        else:
            yield target


def _attribute(target: ast.expr) -> ast.Attribute | None:
    """Return the attribute that is written: itself, or what it holds by an index."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target if isinstance(target, ast.Attribute) else None


def _is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in {"self", "cls"}


def _owned(tree: ast.Module) -> set[str]:
    """Return the attributes of the classes that this file defines: what they write to themselves."""
    names: set[str] = set()
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            for target in _written(node):
                if isinstance(target, ast.Attribute) and _is_own(target):
                    names.add(target.attr)
    return names


def _foreign_writes(sources: Sources) -> dict[str, list[str]]:
    """Return by file what it writes of objects whose class is defined elsewhere."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in sources.items():
        owned = _owned(tree)
        found[str(file)] += _writes_to_strangers(tree)
        for node in ast.walk(tree):
            for target in _written(node):
                attribute = _attribute(target)
                if attribute is not None and not _is_own(attribute) and attribute.attr not in owned:
                    found[str(file)].append(f"line {attribute.lineno}: {ast.unparse(target)}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                found[str(file)].append(f"line {node.lineno}: setattr")
    return {file: writes for file, writes in found.items() if writes}


def _writes_to_strangers(tree: ast.Module) -> list[str]:
    """Return what functions write of parameters whose class is defined elsewhere, whatever the attribute is called."""
    here = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        strangers = {
            each.arg
            for each in (*function.args.args, *function.args.kwonlyargs)
            if each.annotation is not None
            and ast.unparse(each.annotation).strip("'\"") not in here | {"Self"}
        } - {"self", "cls"}
        for node in ast.walk(function):
            for attribute in map(_attribute, _written(node)):
                owner = None if attribute is None else attribute.value
                if attribute is not None and isinstance(owner, ast.Name) and owner.id in strangers:
                    found.append(f"line {attribute.lineno}: {ast.unparse(attribute)}")
    return found


def test_no_class_of_the_core_is_written_from_outside_its_file(product: Sources) -> None:
    core = {file: tree for file, tree in product.items() if file.is_relative_to(_CORE)}

    assert len(core) > 50
    assert _foreign_writes(core) == {}


def test_a_write_from_outside_is_seen() -> None:
    owner = ast.parse(
        "class Engine:\n    def __init__(self):\n        self.up = True\n    def go(self, other):\n        other.up = False\n"
    )
    writes = (
        "engine.up = True",
        "a, (engine.up, *b) = 1, 2",
        "engine.count += 1",
        "del engine.seen",
        "engine.pool.permits[3] = 1",
        "for engine.up in (1, 2): pass",
        "setattr(engine, 'up', 1)",
    )
    writer = ast.parse("\n".join(writes))
    namesake = ast.parse(f"{ast.unparse(owner)}\ndef stop(gate: Gate):\n    gate.up = False\n")

    assert _foreign_writes({Path("engine.py"): owner}) == {}
    assert _foreign_writes({Path("namesake.py"): namesake}) == {"namesake.py": ["line 9: gate.up"]}
    assert len(_foreign_writes({Path("writer.py"): writer})["writer.py"]) == len(writes)


def _handed_all(tree: ast.Module) -> set[str]:
    """Return the functions that are handed all that is remembered."""
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for each in function.args.args
        if each.annotation is not None and ast.unparse(each.annotation) == "Knowledge"
    }


def test_only_what_composes_owners_is_handed_all_that_is_remembered(product: Sources) -> None:
    handed = {
        name: _handed_all(product[_CORE / "governor" / f"{name}.py"])
        for name in ("commit", "endings", "failover", "watch", "placement", "promises", "allowances")
    }

    assert {name: functions for name, functions in handed.items() if functions} == {
        "commit": {"commit", "dispatch", "refuse_queued", "_displace"},
        "endings": {"finished", "failed", "seen", "_declined"},
        "failover": {"detour_after", "try_again"},
    }
