"""The budgets for the reader, as docs/design.md section 8 states them: what is long is read by nobody."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FUNCTION_HALF, FUNCTION_NINE_TENTHS, FUNCTION_STOP = 8, 30, 60
MODULE_NINE_TENTHS, MODULE_STOP = 350, 500
CLASS_STOP = 250

Sources = dict[Path, ast.Module]


class Sized(NamedTuple):
    """Something with a length in lines; ordered by it."""

    lines: int
    place: str


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Return the lines from `def` or `class` to the end, docstring included: what a reader scrolls past."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _sized(sources: Sources, *kinds: type[ast.AST]) -> Iterator[Sized]:
    for file, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                yield Sized(_length(node), f"{file}:{node.lineno} {node.name}")


def _functions(sources: Sources) -> list[Sized]:
    return sorted(_sized(sources, ast.FunctionDef, ast.AsyncFunctionDef))


def _modules(sources: Sources, root: Path) -> list[Sized]:
    return sorted(Sized(len((root / file).read_text().splitlines()), str(file)) for file in sources)


def _over(sized: list[Sized], stop: int) -> list[str]:
    return [f"{place}: {lines} lines, the stop is {stop}" for lines, place in reversed(sized) if lines > stop]


def _quantile_breach(sized: list[Sized], share: float, budget: int) -> str | None:
    """Return what is wrong when more than 1 - `share` of these are longer than `budget`, naming the longest."""
    longer = [item for item in sized if item.lines > budget]
    if len(longer) <= (1 - share) * len(sized):
        return None
    longest = "\n".join(f"  {place}: {lines} lines" for lines, place in reversed(longer[-15:]))
    return f"{len(longer)} of {len(sized)} are over {budget} lines, {1 - share:.0%} may be; the longest:\n{longest}"


def test_half_of_all_functions_fit_in_eight_lines(product: Sources) -> None:
    assert _quantile_breach(_functions(product), 0.5, FUNCTION_HALF) is None


def test_nine_functions_in_ten_fit_in_thirty_lines(product: Sources) -> None:
    assert _quantile_breach(_functions(product), 0.9, FUNCTION_NINE_TENTHS) is None


def test_no_function_is_over_sixty_lines_tests_included(everything: Sources) -> None:
    assert _over(_functions(everything), FUNCTION_STOP) == []


def test_nine_modules_in_ten_fit_in_350_lines(root: Path, product: Sources) -> None:
    assert _quantile_breach(_modules(product, root), 0.9, MODULE_NINE_TENTHS) is None


def test_no_module_is_over_500_lines_tests_included(root: Path, everything: Sources) -> None:
    assert _over(_modules(everything, root), MODULE_STOP) == []


def test_no_class_is_over_250_lines(everything: Sources) -> None:
    assert _over(sorted(_sized(everything, ast.ClassDef)), CLASS_STOP) == []


def test_the_measure_sees_a_breach() -> None:
    """A budget test that cannot fail is none: a 61-line function and a lopsided list are both caught."""
    long_function = ast.parse("def f():\n" + "    x = 1\n" * 60)
    sized = _functions({Path("long.py"): long_function})

    assert _over(sized, FUNCTION_STOP) == ["long.py:1 f: 61 lines, the stop is 60"]
    assert _quantile_breach(sized, 0.9, FUNCTION_NINE_TENTHS) is not None
