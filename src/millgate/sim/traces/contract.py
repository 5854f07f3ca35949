"""What every trace reader shares: how it complains."""

from pathlib import Path

MOST_TOKENS = 100_000_000
"""No request is longer; a larger number is a column of something else."""


class TraceError(ValueError):
    """A trace file does not say what it should; names file and line."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path.name}:{line}: {problem}")


def count_of(text: object, path: Path, line: int) -> int:
    """Return a count of tokens, or raise TraceError."""
    try:
        count = int(str(text))
    except ValueError:
        raise TraceError(path, line, f"{text!r} is not a count of tokens") from None
    if not 0 <= count <= MOST_TOKENS:
        raise TraceError(path, line, f"{count} tokens: must be within 0..{MOST_TOKENS:,}")
    return count
