"""Single settings from outside the file: environment variables and flags, laid over it in that order.

`MILLGATE_LISTEN__PORT=9000` and `--set listen.port=9000` say the same. Items of a list are named by their place
(`engines.0`), by their name (`lanes.interactive`), or all at once (`engines.*`).
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from millgate.config.document import Document, read_value
from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin

PREFIX = "MILLGATE_"
EVERY = "*"


class Override(NamedTuple):
    """One setting and its source."""

    path: SettingPath
    value: Any
    place: ValueOrigin


def from_environment(environ: Mapping[str, str]) -> list[Override]:
    """Return the settings among the environment's variables, in alphabetical order.

    Only names with a double underscore are settings. Others with our prefix are secrets, or what Kubernetes
    injects for a service called millgate (MILLGATE_PORT=tcp://10.0.0.7:8080).
    """
    found = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and "__" in name.removeprefix(PREFIX):
            place = ValueOrigin(name)
            path = _parts(name.removeprefix(PREFIX).lower().split("__"), place)
            found.append(Override(path, read_value(environ[name], name), place))
    return found


def from_assignment(text: str) -> Override:
    """Return the setting of `--set path=value`; raises ConfigError for anything else."""
    name, equals, value = text.partition("=")
    if not equals:
        message = f"{text!r} is not path=value, such as listen.port=9000"
        raise ConfigError(Problem(ValueOrigin("--set"), (), message))
    giver = f"--set {name.strip()}"
    return override(name.strip(), read_value(value, giver), giver)


def override(path: str, value: Any, giver: str) -> Override:
    """Return the setting at a path like `engines.0.url` or `engines[0].url`, given by a flag of this name."""
    place = ValueOrigin(giver)
    return Override(_parts(path.replace("[", ".").replace("]", "").split("."), place), value, place)


def apply(document: Document, overrides: Iterable[Override], absent: Mapping[str, Any]) -> Document:
    """Return a new document with every override laid over `document`, later ones over earlier ones.

    `absent` holds the values of top-level settings that the document does not give but that an override may
    reach into, such as the default lanes.
    """
    data, places = copy.deepcopy(document.data), dict(document.places)
    for override in overrides:
        head = override.path[0]
        if len(override.path) > 1 and data.get(str(head)) is None and head in absent:
            data[str(head)] = copy.deepcopy(absent[str(head)])
        for path in _put(data, override.path, override, ()):
            places = {known: place for known, place in places.items() if known[: len(path)] != path}
            places[path] = override.place
    return Document(data, places)


def _parts(parts: list[str], place: ValueOrigin) -> SettingPath:
    if not all(parts):
        raise ConfigError(Problem(place, (), "has an empty part in its path"))
    return tuple(
        int(part) if part.isdecimal() and part.isascii() and len(part) < 6 else part for part in parts
    )


def _put(target: Any, rest: SettingPath, override: Override, done: SettingPath) -> list[SettingPath]:
    """Set the value below `target` and return the full path of every place that was set."""
    key = rest[0]
    if isinstance(target, list):
        return _put_in_list(target, rest, override, done)
    if not isinstance(target, dict):
        raise ConfigError(
            Problem(override.place, (*done, *rest), f"`{done[-1] if done else ''}` has no settings in it")
        )
    key = str(key)
    if len(rest) == 1:
        target[key] = override.value
        return [(*done, key)]
    if target.get(key) is None:
        if rest[1] == EVERY:
            return []  # what lacks is for the schema to say
        target[key] = [] if isinstance(rest[1], int) else {}
    return _put(target[key], rest[1:], override, (*done, key))


def _put_in_list(
    items: list[Any], rest: SettingPath, override: Override, done: SettingPath
) -> list[SettingPath]:
    found: list[SettingPath] = []
    for index in _indexes(items, rest[0], override, done):
        if len(rest) == 1:
            items[index] = override.value
            found.append((*done, index))
        else:
            items[index] = {} if items[index] is None else items[index]
            found += _put(items[index], rest[1:], override, (*done, index))
    return found


def _indexes(items: list[Any], key: str | int, override: Override, done: SettingPath) -> list[int]:
    if key == EVERY:
        return list(range(len(items)))
    if isinstance(key, int):
        if key > len(items):
            raise ConfigError(
                Problem(override.place, (*done, key), f"there are {len(items)} of them, counted from 0")
            )
        if key == len(items):
            items.append(None)
        return [key]
    names = [str(item.get("name") or "") if isinstance(item, dict) else "" for item in items]
    found = [index for index, name in enumerate(names) if name.lower() == key.lower()]
    if not found:
        known = ", ".join(name for name in names if name) or "none has a name"
        raise ConfigError(Problem(override.place, done, f"has none named {key!r} ({known})"))
    return found
