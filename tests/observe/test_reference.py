"""The page of metrics says what the table says."""

from pathlib import Path

from millgate.observe.meters import METERS, render_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_in_the_repository_is_current() -> None:
    """Write it with `millgate config metrics > docs/reference/metrics.md`."""
    assert PAGE.read_text(encoding="utf-8") == render_page()


def test_every_metric_stands_in_the_page_once() -> None:
    page = render_page()

    assert [page.count(f"| `{meter.full_name}` |") for meter in METERS] == [1] * len(METERS)
