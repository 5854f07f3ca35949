"""From flags to a loaded configuration: the part that `serve`, `run` and `config` share."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.config.overrides import Override

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="MILLGATE_CONFIG",
        metavar="FILE",
        help="Configuration file (YAML).",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set any setting, e.g. lanes.interactive.max_queue=100; may be repeated.",
        show_default=False,
    ),
]


class Given(NamedTuple):
    """What the command line says of the configuration; it is plain data, so that another process can read the same."""

    file: str | None
    assignments: tuple[str, ...]
    flags: tuple["Override", ...]
    instead: tuple["Override", ...]
    engine_note: str = ""
    """What the banner says more of the engine."""

    @classmethod
    def of(
        cls,
        file: Path | None,
        assignments: Iterable[str] | None,
        flags: Iterable["Override"],
        instead: Iterable["Override"],
    ) -> Self:
        """Return what these options of a command say."""
        return cls(
            None if file is None else str(file), tuple(assignments or ()), tuple(flags), tuple(instead)
        )

    def load(self, text: str | None = None) -> "Loaded":
        """Return the configuration as it is now, or as it was with this text of the file; raises ConfigError as `load_or_fail` does."""
        file = None if self.file is None else Path(self.file)
        return load_or_fail(file, self.assignments, self.flags, self.instead, text)


def load_or_fail(
    file: Path | None,
    assignments: Iterable[str] | None = None,
    flags: Iterable["Override"] = (),
    instead: Iterable["Override"] = (),
    text: str | None = None,
) -> "Loaded":
    """Return the configuration: flags over --set over environment over file over defaults.

    `instead` replaces parts of the file first, `text` is what the file said, None to read it. Raises ConfigError with
    one line for each problem.
    """
    from millgate.config.load import load_config
    from millgate.config.overrides import from_assignment

    given = [*map(from_assignment, assignments or ()), *flags]
    return load_config(file, os.environ, given, instead=instead, text=text)


def flag(name: str, path: str, value: Any) -> list["Override"]:
    """Return what the flag `name` sets at the dotted `path`; nothing when it was not given (None)."""
    from millgate.config.overrides import override

    return [] if value is None else [override(path, value, name)]
