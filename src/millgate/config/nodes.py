"""YAML text to plain data; what YAML would silently drop is refused.

PyYAML keeps the last of two equal keys without a word, so the text is composed to nodes and built here. Aliases
may repeat a node, so the number of values is bounded: nine lines of aliases can name a billion of them.
"""

from typing import Any

import yaml

from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin

MAX_VALUES = 50_000
# Dates stay text: no setting is one, and PyYAML's reader of them raises what it should not.
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
_DATE_TAG = "tag:yaml.org,2002:timestamp"


class NodeReader:
    """Builds plain data from the nodes of one text, once; `places` then holds where each key and item stood."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._scalars = yaml.constructor.SafeConstructor()
        self._values = 0
        self.places: dict[SettingPath, ValueOrigin] = {}

    def read(self, text: str) -> Any:
        """Return the data of the only document in `text`, None when there is none."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            raise self._bad(
                error.problem_mark, (), f"is not YAML: {error.problem or error.context}"
            ) from None
        except (yaml.YAMLError, RecursionError) as error:
            raise self._bad(None, (), f"is not YAML: {_first_line(error)}") from None
        return None if node is None else self._build(node, ())

    def _build(self, node: yaml.Node, path: SettingPath) -> Any:
        self._values += 1
        if self._values > MAX_VALUES or len(path) > 20:
            raise self._bad(node.start_mark, path[:3], f"holds more than {MAX_VALUES} values or 20 levels")
        self.places.setdefault(path, self._place(node.start_mark))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _PLAIN_TAGS:
            raise self._bad(node.start_mark, path, f"is not a plain value but {node.tag!r}")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self._build(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: SettingPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._bad(key_node.start_mark, path, "has a key that is not a word")
            if key in data:
                first = self.places[*path, key]
                raise self._bad(
                    key_node.start_mark, (*path, key), f"is given twice, first in line {first.line}"
                )
            self.places[*path, key] = self._place(key_node.start_mark)
            data[key] = self._build(value_node, (*path, key))
        return data

    def _scalar(self, node: yaml.ScalarNode, path: SettingPath) -> Any:
        if node.tag == _DATE_TAG:
            return node.value
        if node.tag not in _PLAIN_TAGS:
            raise self._bad(node.start_mark, path, f"is not a plain value but {node.tag!r}")
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError) as error:
            raise self._bad(node.start_mark, path, f"cannot be read: {_first_line(error)}") from None

    def _place(self, mark: yaml.Mark) -> ValueOrigin:
        return ValueOrigin(self._source, mark.line + 1, mark.column + 1)

    def _bad(self, mark: yaml.Mark | None, path: SettingPath, message: str) -> ConfigError:
        return ConfigError(Problem(self._place(mark) if mark else ValueOrigin(self._source), path, message))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
