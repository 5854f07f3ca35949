"""One name, one thing: a public class name is defined once in the package."""

import ast
from collections import defaultdict
from pathlib import Path


def test_a_public_class_name_is_defined_once(product: dict[Path, ast.Module]) -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in product.items():
        for node in ast.walk(tree) if file.parts[0] == "src" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(f"{file}:{node.lineno}")
    assert len(homes) > 500
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
