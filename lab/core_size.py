"""`python -m lab core`: lines and numeric constants of the core, and how many of its files an arrival visits.

Lines of code are those on which more than a comment or a docstring stands. The part that only a fleet needs is counted apart: which
engine holds which prefix, what a request adds to an engine, and the batches of embeddings. A constant is a name at the top of a module
whose value has a number in it. A file is visited where a function of it is called, however deep, between an `Arrived` and the decision.
"""

import ast
import sys
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import FrameType

import millgate.core
from lab.switches import numbers
from millgate.core.decisions import Yield
from millgate.core.events import Arrived, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.wiring.governor import build_governor

_CORE = Path(millgate.core.__file__).resolve().parent
_OUTPUT_TOKENS = 100
_FLEET = ("routing/", "queues/window.py", "state/leg.py", "governor/leg")


_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_and_constants(*, fleet: bool) -> tuple[int, int, int]:
    """Return the lines of all files of the core, those of code, and its numeric constants: of the fleet's part, or of all others."""
    files = [(file.relative_to(_CORE).as_posix(), file) for file in sorted(_CORE.rglob("*.py"))]
    sources = [file.read_text() for name, file in files if name.startswith(_FLEET) is fleet]
    constants = [each for text in sources for node in ast.parse(text).body for each in numbers(node)]
    return sum(len(text.splitlines()) for text in sources), sum(map(code_lines, sources)), len(constants)


def code_lines(text: str) -> int:
    """Return on how many lines of a module code stands."""
    code: set[int] = set()
    for each in tokenize.generate_tokens(StringIO(text).readline):
        if each.type not in _BLANK:
            code.update(range(each.start[0], each.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def walks() -> Iterator[tuple[str, list[str]]]:
    """Yield what became of an arrival, and the files that it visited in the order of the first visit; the core is interpreted."""
    gate = _gate(max_queue=None)
    yield "admitted at once", _visited(gate, 1, 0.0)
    yield "queued", _visited(gate, 2, 0.1)
    gate = _gate(max_queue=0)
    gate.handle(_arrival(1), 0.0)
    yield "refused", _visited(gate, 2, 0.1)
    refused = gate.handle(_arrival(3), 0.1)[0]
    assert isinstance(refused, Yield)
    gate.handle(Finished(1, 80, _OUTPUT_TOKENS), 0.2)
    gate.handle(Released(1), 0.2)
    yield "back on time", _visited(gate, 4, 0.1 + refused.retry_after_s, body=3)


def report() -> str:
    """Return the figures as lines of text."""
    (lines, code, constants), of_fleet = lines_and_constants(fleet=False), lines_and_constants(fleet=True)
    visits = [f"files visited, {what}: {len(files)} ({', '.join(files)})" for what, files in walks()]
    return "\n".join(
        (
            f"lines: {lines}, and {of_fleet[0]} of the fleet's part",
            f"lines of code: {code}, and {of_fleet[1]} of the fleet's part",
            f"numeric constants: {constants}, and {of_fleet[2]} of the fleet's part",
            *visits,
        )
    )


def _gate(max_queue: int | None) -> Governor:
    lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0, max_queue=max_queue)
    return build_governor(Settings((lane,), (EngineSettings("engine", 1),)), 0.0)


def _arrival(number: int, body: int | None = None) -> Arrived:
    fingerprint = number if body is None else body
    return Arrived(
        number,
        prompt_bytes=300,
        body_bytes=300,
        max_tokens=_OUTPUT_TOKENS,
        fingerprint=lambda: fingerprint,
    )


def _visited(gate: Governor, number: int, now: float, body: int | None = None) -> list[str]:
    arrival = _arrival(number, body)
    files: dict[str, None] = {}

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            files[frame.f_code.co_filename] = None

    sys.setprofile(called)
    try:
        gate.handle(arrival, now)
    finally:
        sys.setprofile(None)
    return [
        str(Path(each).relative_to(_CORE).with_suffix(""))
        for each in files
        if Path(each).is_relative_to(_CORE)
    ]
