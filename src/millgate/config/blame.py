"""Pydantic's findings in our words: the setting, what is allowed, and the nearest key for a typing error."""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, PlainValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from millgate.config import units
from millgate.config.problems import Problem, SettingPath, ValueOrigin
from millgate.config.schema import Config
from millgate.config.units import ObjectiveWithin

# Bounds that pydantic reports, in the words of a sentence after the setting's name.
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}
_SHAPES = {
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_type": "must be text",
}
_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "nothing",
}
_SECRET_WORDS = ("token", "secret", "password", "api_key", "apikey", "authorization")


def explain(
    error: ValidationError, places: Mapping[SettingPath, ValueOrigin], root: type[BaseModel] = Config
) -> list[Problem]:
    """Return one problem for each finding, at the nearest place that is known; one value for many items is told once."""
    details = error.errors(include_url=False)
    located = [tuple(detail["loc"]) for detail in details]
    problems = []
    for detail, path in zip(details, located, strict=True):
        # A list is called too short when its items were refused: the items' own problems say more.
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in located)
        if not (detail["type"] == "too_short" and inner):
            problems.append(Problem(_nearest_place(path, places), path, _message(detail, path, root)))
    told: dict[object, Problem] = {}
    for each in problems:
        told.setdefault((each.place, each.path[-1:] if each.place else each.path, each.message), each)
    return sorted(told.values(), key=_reading_order)


def section_of(path: SettingPath, root: type[BaseModel] = Config) -> type[BaseModel] | None:
    """Return the section whose keys the last part of `path` chooses from, None outside the schema."""
    section: type[BaseModel] | None = root
    for part in path[:-1]:
        if isinstance(part, str):
            field = section.model_fields.get(part) if section else None
            section = inner_section(field.annotation) if field else None
    return section


def field_of(path: SettingPath, root: type[BaseModel] = Config) -> FieldInfo | None:
    """Return the declaration of the setting at `path`, None where there is none."""
    section = section_of(path, root) if path else None
    return section.model_fields.get(str(path[-1])) if section else None


def is_duration(field: FieldInfo) -> bool:
    """Say whether the setting is a time, written with a unit."""
    return _parser(field) in {units.parse_duration, units.parse_duration_or_never}


def is_size(field: FieldInfo) -> bool:
    """Say whether the setting is a number of bytes."""
    return _parser(field) is units.parse_size


def longest_objective_s(field: FieldInfo) -> float | None:
    """Return the longest time that an objective may name, None for a setting that is none."""
    parser = _parser(field)
    return parser.most_s if isinstance(parser, ObjectiveWithin) else None


def _parser(field: FieldInfo) -> Any:
    for item in all_metadata(field):
        if isinstance(item, BeforeValidator | PlainValidator):
            return item.func
    return None


def all_metadata(field: FieldInfo) -> Iterator[Any]:
    """Yield every constraint of the setting, those inside `X | None` included."""
    yield from field.metadata
    for argument in get_args(field.annotation):
        for item in getattr(argument, "__metadata__", ()):
            yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def inner_section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a setting of this type holds, alone or in a list; None for a plain value."""
    if get_origin(annotation) in {Union, UnionType, tuple}:
        found = [inner_section(argument) for argument in get_args(annotation)]
        return next((section for section in found if section), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _nearest_place(path: SettingPath, places: Mapping[SettingPath, ValueOrigin]) -> ValueOrigin | None:
    for length in range(len(path), -1, -1):
        if path[:length] in places:
            return places[path[:length]]
        # An override may have set something inside what does not exist, as MILLGATE_LISTN__PORT does.
        within = [known for known in places if length and known[:length] == path]
        if within:
            return places[within[0]]
    return None


def _reading_order(problem: Problem) -> tuple[str, int, int]:
    place = problem.place or ValueOrigin("")
    return place.source, place.line or 0, place.column or 0


def _message(detail: ErrorDetails, path: SettingPath, root: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        remedy = ": name an engine with --upstream http://host:port or under `engines:`"
        return "is missing" + (remedy if path == ("engines",) else "")
    if kind == "extra_forbidden":
        return _unknown_key(path, root)
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {_amount(context[name], path, root)}, not {units.shown(detail['input'])}"
    if kind == "literal_error":
        return f"must be one of {context['expected']}, not {units.shown(detail['input'])}{_near(detail['input'], context['expected'])}"
    if kind == "string_pattern_mismatch":
        if str(path[-1]).endswith("_env"):
            return "must be the name of an environment variable (letters, digits, _), never the secret itself"
        return f"must match {context['pattern']}, not {units.shown(detail['input'])}"
    if kind in {"too_short", "too_long"}:
        bound = context.get("min_length", context.get("max_length"))
        return f"must have at {'least' if kind == 'too_short' else 'most'} {bound} items, not {context['actual_length']}"
    if kind in _SHAPES:
        given = type(detail["input"])
        remedy = ": write it in quotes" if kind == "string_type" and given in {bool, int, float} else ""
        return f"{_SHAPES[kind]}, not {_KINDS.get(given, given.__name__)}{remedy}"
    said = detail["msg"].removeprefix("Value error, ")
    return said.replace("Input should be", "must be").replace("String should have", "must have")


def _unknown_key(path: SettingPath, root: type[BaseModel]) -> str:
    key, section = str(path[-1]), section_of(path, root)
    known = list(section.model_fields) if section else []
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"is not a setting; did you mean `{near[0]}`?"
    if any(word in key.lower() for word in _SECRET_WORDS):
        return (
            "is not a setting: secrets come from the environment, and `admin.token_env` and "
            "`engines[].api_key_env` name the variables"
        )
    return f"is not a setting; known here: {', '.join(known)}" if known else "is not a setting"


def _near(given: object, expected: str) -> str:
    near = difflib.get_close_matches(
        str(given), [word.strip("' ") for word in expected.replace(" or ", ",").split(",")], n=1
    )
    return f"; did you mean {near[0]!r}?" if near else ""


def _amount(bound: float, path: SettingPath, root: type[BaseModel]) -> str:
    field = field_of(path, root) or field_of(path[:-1], root)  # the latter for a value in a mapping
    if field and is_duration(field):
        return units.format_duration(float(bound))
    if field and is_size(field):
        return units.format_size(int(bound))
    return f"{bound:,}"
