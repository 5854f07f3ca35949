"""`python -m lab prose`: sentences that are too long, or whose subject is impersonal, in pages and docstrings.

A sentence ends at a full stop, a question mark or an exclamation mark. A heading, an item of a list and a cell of a table end
one, too. Words stand between blanks and have a letter or a digit. A link counts by its text, and a code span as one word.
Code blocks have no sentences.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

LONGEST_WORDS = 30
"""A sentence of more words is reported."""
BAR_RATIO = 0.02
"""The largest share of sentences that may be reported."""

PAGES = ("*.md", "docs/**/*.md", "bench/**/*.md", "deploy/**/*.md", ".github/**/*.md")
SOURCES = ("src/**/*.py", "lab/**/*.py", "bench/**/*.py", "examples/**/*.py")

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_HEADING = re.compile(r"^#{1,6} ")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.) ")
_INDENTED = re.compile(r"^(?: {4}|\t)")
_TABLE_RULE = re.compile(r"^[\s|:-]+$")
_CELL = re.compile(r"(?<!\\)\|")
_ARGUMENT = re.compile(r"^\s+\w+: ")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9`])")
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.")
_WORD = re.compile(r"\S*[^\W_]\S*")

_VERB = r"(?:can|cannot|may|must|should|would|could|might|will|has|needs|knows|wants|sees|likes|gets|looks|asks|does)"
_IMPERSONAL = re.compile(
    # Pronouns for persons that the text does not name.
    r"\b(?:nobody|no one|somebody|someone|anybody|anyone|everybody|everyone|whoever|those who)\b"
    # "One" as a pronoun for persons: not "one request", "the one that", "this one is".
    rf"|(?:^|[,;:] |\b(?:and|as|if|that|what|when|where|how|which|than|because|but|or) )one {_VERB}\b"
    # A clause in place of a name: "Who is back when told goes first", "of who waits".
    r"|^who (?!.*\?$)\w+"
    r"|\b(?:of|to|for|from|by|with|than|as) who (?:is|are|was|has|have|had|comes|asks|waits|leaves|left)\b",
    re.IGNORECASE,
)


class Sentence(NamedTuple):
    """One sentence: its file, the line where its paragraph begins, and its text with single blanks."""

    file: str
    line: int
    text: str

    @property
    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with it, in words; nothing for a plain sentence."""
        words = len(_WORD.findall(self.text))
        long = (f"{words} words",) if words > LONGEST_WORDS else ()
        found = _IMPERSONAL.search(self.text)
        return (*long, f"subject {found[0].strip(' ,;:').lower()!r}") if found else long


def sentences(text: str, file: str = "", first_line: int = 1) -> Iterator[Sentence]:
    """Yield the sentences of a page or a docstring; `first_line` is the line of the file at which the text begins."""
    blank = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for line, paragraph in _paragraphs(blank.splitlines(), first_line):
        plain = _ABBREVIATED.sub(r"\1", _LINK.sub(r"\1", _CODE.sub("`code`", paragraph)))
        for piece in _END.split(" ".join(plain.split())):
            if _WORD.search(piece):
                yield Sentence(file, line, piece)


def _paragraphs(lines: Iterable[str], first_line: int) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, heading, item and cell with the line where it begins."""
    began, kept = first_line, list[str]()
    for number, line in _outside_code(lines, first_line):
        is_alone = not line.strip() or bool(_HEADING.match(line)) or line.lstrip().startswith("|")
        if is_alone or _ITEM.match(line) or _ARGUMENT.match(line):
            yield began, " ".join(kept)
            began, kept = number, []
        if line.lstrip().startswith("|"):
            yield from ((number, cell) for cell in _cells(line))
        elif is_alone:
            yield number, _HEADING.sub("", line)
        else:
            began = began if kept else number
            kept.append(_ITEM.sub("", line))
    yield began, " ".join(kept)


def _outside_code(lines: Iterable[str], first_line: int) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; those of a code block, fenced or indented, are blank."""
    fenced, listed, blank_before = False, False, True
    for number, line in enumerate(lines, first_line):
        is_fence = bool(_FENCE.match(line))
        indented = bool(_INDENTED.match(line)) and not listed and blank_before
        fenced = fenced != is_fence
        if _ITEM.match(line):
            listed = True
        elif line.strip() and not line.startswith(" "):
            listed = False
        blank_before = not line.strip() or indented
        yield number, "" if fenced or is_fence or indented else line


def _cells(row: str) -> list[str]:
    return [] if _TABLE_RULE.match(row) else _CELL.split(row.strip().strip("|"))


def of_page(file: Path) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown file."""
    yield from sentences(file.read_text(), _name(file))


def of_source(file: Path) -> Iterator[Sentence]:
    """Yield the sentences of every docstring of a Python file, those below constants too."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", ())
        for each in body if isinstance(body, list) else ():
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from sentences(text, _name(file), each.lineno)


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def everything() -> list[Sentence]:
    """Return the sentences of all pages and of all docstrings of the product."""
    pages = sorted({file for pattern in PAGES for file in ROOT.glob(pattern)})
    sources = sorted({file for pattern in SOURCES for file in ROOT.glob(pattern)})
    found = [sentence for file in pages for sentence in of_page(file)]
    return found + [sentence for file in sources for sentence in of_source(file)]


def share(found: Iterable[Sentence]) -> tuple[int, int]:
    """Return how many sentences have a fault, and how many sentences there are."""
    faults = [bool(sentence.faults) for sentence in found]
    return sum(faults), len(faults)


def report() -> str:
    """Return each sentence with a fault, and in the last lines the shares of the pages, of the docstrings and of both."""
    found = everything()
    lines = [
        f"{each.file}:{each.line} ({', '.join(each.faults)}) {each.text}" for each in found if each.faults
    ]
    kinds = {
        "pages": [each for each in found if each.file.endswith(".md")],
        "docstrings": [each for each in found if each.file.endswith(".py")],
        "all": found,
    }
    for kind, kept in kinds.items():
        at_fault, of_all = share(kept)
        lines.append(f"{kind}: {at_fault} of {of_all:,} sentences, {at_fault / max(of_all, 1):.2%}")
    return "\n".join((*lines, f"bar: {BAR_RATIO:.0%}"))
