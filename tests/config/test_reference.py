"""The reference page and the JSON Schema say what the schema says."""

import json
from pathlib import Path

from pydantic import BaseModel

from millgate.config.blame import inner_section
from millgate.config.reference import render_page
from millgate.config.schema import Config

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def sections(section: type[BaseModel] = Config) -> list[type[BaseModel]]:
    """Return this section and every one below it."""
    inner = [inner_section(field.annotation) for field in section.model_fields.values()]
    return [section, *(deeper for child in inner if child is not None for deeper in sections(child))]


def test_the_page_in_the_repository_is_current() -> None:
    """Write it with `millgate config reference > docs/reference/config.md`."""
    assert PAGE.read_text(encoding="utf-8") == render_page()


def test_every_setting_is_explained() -> None:
    unexplained = [
        f"{s.__name__}.{name}"
        for s in sections()
        for name, field in s.model_fields.items()
        if not field.description
    ]

    assert unexplained == []


def test_every_setting_stands_in_the_page() -> None:
    page = render_page()
    missing = [name for section in sections() for name in section.model_fields if f"{name}` |" not in page]

    assert missing == []


def test_a_row_says_what_its_numbers_count() -> None:
    rows = {row.split("`")[1]: row for row in render_page().splitlines() if row.startswith("| `")}

    assert "| text | - | at most 4,096 characters |" in rows["records.log_attempts"]
    assert "| text | - | at most 4,096 characters |" in rows["listen.tls.client_ca"]
    assert "| map | - | ≥ 100ms, at most 16 items |" in rows["limits.keep_alive"]
    assert "| count | - | ≥ 0, ≤ 65535 |" in rows["extproc.health_port"]
    assert "| `x-session-id`, `x-dynamo-session-id`, " in rows["listen.session_headers"]


def test_the_json_schema_refuses_unknown_keys_and_needs_engines() -> None:
    schema = json.loads(json.dumps(Config.model_json_schema()))

    assert schema["required"] == ["engines"]
    assert all(not part["additionalProperties"] for part in (schema, *schema["$defs"].values()))
