"""The table of bounds in docs/security.md says what the code does."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


_SETTING = re.compile(r"^\| `(limits\.[a-z_]+)` \| [^|]+ \| `([^`]+)` \|", re.MULTILINE)
_ROW = re.compile(r"^\| [^|]+ \| ([^| ]+) \| `([a-zA-Z0-9_.]+)` \|$", re.MULTILINE)


def documented() -> list[tuple[str, str]]:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    return _ROW.findall(page.partition("## Bounds")[2].partition("\n## ")[0])


def in_force(where: str) -> str:
    """Return the default of a setting, or the value of a constant of a module or of a record's field."""
    if where.startswith("limits."):
        settings = dict(_SETTING.findall((ROOT / "docs/reference/config.md").read_text(encoding="utf-8")))
        return str(settings[where])
    owner, _, name = where.rpartition(".")
    room, _, last = owner.rpartition(".")
    if last[0].isupper():
        return f"{getattr(getattr(importlib.import_module(f'millgate.{room}'), last)(), name):,}"
    return f"{getattr(importlib.import_module(f'millgate.{owner}'), name):,}"


@pytest.mark.parametrize(("value", "where"), documented(), ids=lambda each: each)
def test_a_bound_is_what_the_page_says(value: str, where: str) -> None:
    assert in_force(where) == value


def test_the_table_is_read() -> None:
    assert len(documented()) > 40
