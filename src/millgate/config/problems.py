"""What is wrong with a configuration: each problem says where it was written, which setting, and what is allowed."""

from typing import NamedTuple

SettingPath = tuple[str | int, ...]
"""Where a setting stands: ("lanes", 0, "ttft_slo")."""


class ValueOrigin(NamedTuple):
    """Where a value was written: a file with line and column (from 1), an environment variable, or a flag."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


class Problem(NamedTuple):
    """One thing to mend, readable on one line."""

    place: ValueOrigin | None
    path: SettingPath
    message: str

    def __str__(self) -> str:
        parts = [str(self.place) if self.place else "", dotted(self.path), self.message]
        return ": ".join(part for part in parts if part)


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds every reason found, `str` one line for each."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def dotted(path: SettingPath) -> str:
    """Return the path as people write it: `lanes[0].ttft_slo`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
