"""YAML text to settings, remembering where each one stood."""

from typing import TYPE_CHECKING, Any, NamedTuple

from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin

if TYPE_CHECKING:
    from millgate.config.nodes import NodeReader

MAX_BYTES = 1024 * 1024  # a thousand engines and their models fit in a tenth of it


class Document(NamedTuple):
    """One source of settings: plain data, and the place of every key and list item in it."""

    data: dict[str, Any]
    places: dict[SettingPath, ValueOrigin]


def read_document(text: str, source: str) -> Document:
    """Return the mapping written in `text`; an empty text is an empty mapping.

    Raises ConfigError with line and column for bad YAML, equal keys, keys that are not text, or no mapping.
    """
    data, places = _read(text, source)
    if data is None:
        return Document({}, {(): ValueOrigin(source)})
    if not isinstance(data, dict):
        message = "must be a mapping of settings, such as `engines:`"
        raise ConfigError(Problem(ValueOrigin(source, 1, 1), (), message))
    return Document(data, places)


def read_engines(text: str, source: str) -> tuple[list[Any], dict[SettingPath, ValueOrigin]]:
    """Return the list of engines written in `text`, YAML or JSON, and the places of what stands in it.

    Raises ConfigError as `read_document` does, and for what is no list or an empty one: an empty file is more often one
    that is being written than the wish to have no engine.
    """
    items, places = _read(text, source)
    if not isinstance(items, list) or not items:
        message = "must be a list of engines with at least one item, such as `- url: http://host:port`"
        raise ConfigError(Problem(ValueOrigin(source, 1, 1), (), message))
    return items, places


def read_value(text: str, source: str) -> Any:
    """Return the one YAML value written in `text`: a number, true, a word, or `[a, b]`."""
    return _reader(source).read(text)


def _read(text: str, source: str) -> tuple[Any, dict[SettingPath, ValueOrigin]]:
    """Return what a bounded text says, and where each part of it stood."""
    if len(text) > MAX_BYTES:
        raise ConfigError(Problem(ValueOrigin(source), (), f"is longer than {MAX_BYTES} characters"))
    reader = _reader(source)
    return reader.read(text), reader.places


def _reader(source: str) -> "NodeReader":
    # A gate with flags alone has no YAML to read, and does without the megabyte that PyYAML takes.
    from millgate.config.nodes import NodeReader  # noqa: PLC0415 - the line above

    return NodeReader(source)
