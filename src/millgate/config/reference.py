"""The reference page of the configuration, generated from the schema: nothing is written down twice.

`millgate config reference > docs/reference/config.md` writes it; a test fails while the page is not current.
"""

from collections.abc import Iterator
from datetime import datetime
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from millgate.config import blame, units
from millgate.config.schema import Config
from millgate.config.units import Objective, format_objective

_INTRODUCTION = """# Configuration reference

*Generated from the schema by `millgate config reference`; do not edit.*

A file is YAML. A flag wins over an environment variable, a variable over the file, the file over the default.
Every setting has a dotted path, `listen.port`, which is `--set listen.port=9000` as a flag and
`MILLGATE_LISTEN__PORT=9000` in the environment (a double underscore for each dot). An item of a list is named by
its place (`engines.0`), by its name (`lanes.interactive`), or all items at once (`lanes.*`). Secrets never stand
in it: a key that ends in `_env` names the environment variable that holds one. Where `NAME` is not set, `NAME_FILE` may name a file
that holds it, which is read anew at each reload.

- A *duration* needs a unit: `us`, `ms`, `s`, `m`, `h`, as in `250ms`.
- A *count* may have a suffix: `8k` is 8,000, `8Ki` is 8,192.
- An *objective* is a duration, which is promised to 95 % of requests, or names its quantile, p50 to p99.9: `{p99: 2s}`, in one
  word `p99:2s`.
- A *size* is bytes: `64KiB` is 65,536, `256MB` is 256,000,000.
- A *map* is keys and values: `{/v1/chat/completions: 10s}` maps a path to a duration.
- A key that is not listed here is an error, and so is a key given twice.

The JSON Schema for editors is printed by `millgate config schema`.
"""

_NONE = (None, "", (), PydanticUndefined)
_BOUND_ATTRIBUTES = {Ge: "ge", Gt: "gt", Le: "le", MaxLen: "max_length"}


def render_page() -> str:
    """Return the whole page in Markdown."""
    return "\n".join([_INTRODUCTION, *_section(Config, "", "The whole file", many=False)]).rstrip("\n") + "\n"


def _section(section: type[BaseModel], path: str, title: str, *, many: bool) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{(section.__doc__ or ' ').splitlines()[0]}{' A list of these.' if many else ''}\n"
    yield "| setting | kind | default | allowed | meaning |"
    yield "|---|---|---|---|---|"
    inner = []
    for name, field in section.model_fields.items():
        full = f"{path}.{name}" if path else name
        yield _row(full, field)
        child = blame.inner_section(field.annotation)
        if child is not None:
            inner.append((child, full, get_origin(field.annotation) is tuple))
    yield ""
    for child, full, is_list in inner:
        full_path = f"{full}[]" if is_list else full
        yield from _section(child, full_path, f"`{full_path}`", many=is_list)


def _row(path: str, field: FieldInfo) -> str:
    cells = (f"`{path}`", _kind(field), _default(field), _allowed(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _kind(field: FieldInfo) -> str:
    if blame.inner_section(field.annotation) is not None:
        return "list" if get_origin(field.annotation) is tuple else "section"
    if get_origin(field.annotation) is dict:
        return "map"
    if blame.is_duration(field):
        return "duration"
    if blame.longest_objective_s(field) is not None:
        return "objective"
    if blame.is_size(field):
        return "size"
    return _name_of(field.annotation)


def _name_of(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        return _name_of(next(argument for argument in get_args(annotation) if argument is not type(None)))
    if origin is Literal:
        return "word"
    if origin is tuple:
        return "list of text"
    if origin is not None:
        return _name_of(get_args(annotation)[0])
    return {int: "count", float: "number", str: "text", bool: "true or false", datetime: "date or time"}[
        annotation
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    if blame.inner_section(field.annotation) is not None or field.default in _NONE:
        return "-"
    if isinstance(field.default, tuple):
        return ", ".join(f"`{item}`" for item in field.default)
    return f"`{_shown(field, field.default)}`"


def _allowed(field: FieldInfo) -> str:
    words = _literal(field.annotation)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    longest_s = blame.longest_objective_s(field)
    if longest_s is not None:
        return f"> 0s, ≤ {units.format_duration(longest_s)}"
    found: dict[type, Any] = {}
    for item in blame.all_metadata(field):
        for kind, attribute in _BOUND_ATTRIBUTES.items():
            if isinstance(item, kind):
                found[kind] = getattr(item, attribute)
    return ", ".join(_bounds(field, found)) or "-"


def _bounds(field: FieldInfo, found: dict[type, Any]) -> Iterator[str]:
    signs = {Ge: "≥", Gt: ">", Le: "≤"}
    for kind, sign in signs.items():
        if kind in found:
            yield f"{sign} {_shown(field, found[kind])}"
    if MaxLen in found:
        yield f"at most {found[MaxLen]:,} {'characters' if _kind(field) == 'text' else 'items'}"


def _literal(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    for argument in get_args(annotation):
        words = _literal(argument)
        if words:
            return words
    return ()


def _shown(field: FieldInfo, value: Any) -> str:
    if blame.is_duration(field):
        return units.format_duration(float(value))
    if isinstance(value, Objective):
        return format_objective(value)
    if blame.is_size(field):
        return units.format_size(int(value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)
