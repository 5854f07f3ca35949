"""Flags of commands as tables, a line for each: `--flag | where its value goes | kind | default to show | help`.

The kind is `text`, `texts` (the flag may be given again), `integer`, `number` or `switch`, and after it the word that
stands for the value in the help. The default is only shown: what is not given is not passed on.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import typer

from millgate.cli.settings import flag

if TYPE_CHECKING:
    from millgate.config.overrides import Override

Answer = TypeVar("Answer")

_TYPES: Final[Mapping[str, Any]] = {
    "text": str | None,
    "texts": list[str] | None,
    "integer": int | None,
    "number": float | None,
    "switch": bool | None,
}


class Flag(NamedTuple):
    """A flag, and where its value goes: a setting by its dotted path, or a field of the command's options."""

    flag: str
    target: str
    kind: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        """The name of the parameter that typer makes this flag of."""
        return "flag" + self.flag.replace("-", "_")

    def parameter(self) -> Parameter:
        """Return the parameter from which typer makes this flag."""
        kind, _, metavar = self.kind.partition(" ")
        # As typer shows a default that it knows: what it is told in words it puts into brackets of their own.
        told = rf"{self.help} \[default: {self.default}]" if self.default else self.help
        option = typer.Option(None, self.flag, metavar=metavar or None, help=told, show_default=False)
        return Parameter(self.variable, Parameter.KEYWORD_ONLY, default=option, annotation=_TYPES[kind])


def read_flags(table: str) -> tuple[Flag, ...]:
    """Return the flags of a table."""
    return tuple(Flag(*map(str.strip, line.split("|"))) for line in table.splitlines() if line)


def taking(flags: Iterable[Flag]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Give a command these flags before its keyword-only ones: it gets what was given, each by its target."""
    targets = {each.variable: each.target for each in flags}

    def with_flags(command: Callable[..., Answer]) -> Callable[..., Answer]:
        @wraps(command)
        def called(**given: Any) -> Answer:
            return command(
                **{targets.get(key, key): value for key, value in given.items() if value is not None}
            )

        own = signature(command)
        kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        last = [each for each in kept if each.kind is Parameter.KEYWORD_ONLY]
        first = [each for each in kept if each not in last]
        called.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*first, *(each.parameter() for each in flags), *last]
        )
        return called

    return with_flags


def settings_of(flags: Iterable[Flag], given: Mapping[str, Any]) -> list["Override"]:
    """Return what the given ones of these flags set."""
    return [one for each in flags for one in flag(each.flag, each.target, given.get(each.target))]
