"""The site: built strictly, whole, and with nothing from another host; each link holds on the site and in a checkout."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from lab.site_links import ROOT, outside_links

pytest.importorskip("material", reason="mkdocs-material is not installed")

_FETCHES = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
"""Elements that make a browser fetch something, and the attribute that says from where."""
_STYLE_FETCH = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """What a built page fetches, where its links lead, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.components: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in _FETCHES and _FETCHES[tag] in values:
            self.fetched.append(values[_FETCHES[tag]])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        self.components.update((values.get("data-md-component", ""), values.get("class", "")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for file in sorted(site.rglob("*.html")):
        yield file, Page(file.read_text(encoding="utf-8"))


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    sources = [file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")]
    wanted = {
        site / file.with_name(file.name.replace("README", "index")).with_suffix(".html") for file in sources
    }

    assert len(wanted) > 50
    assert wanted - {*site.rglob("*.html")} == set()


def test_the_site_fetches_nothing_from_another_host(site: Path) -> None:
    fetched = [(file.name, address) for file, page in pages(site) for address in page.fetched]
    styles = [
        found for file in site.rglob("*.css") for found in _STYLE_FETCH.findall(file.read_text("utf-8"))
    ]

    assert len(fetched) > 100
    assert [each for each in fetched if urlsplit(each[1]).netloc] == []
    assert styles == []


def test_no_page_wakes_what_the_theme_loads_from_elsewhere(site: Path) -> None:
    """The theme's script asks a forge about a repository, and another host for what draws diagrams, where a page has them."""
    woken = {
        name for _, page in pages(site) for name in page.components if name == "source" or "mermaid" in name
    }

    assert woken == set()


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(site: Path) -> None:
    known = {file: page.anchors for file, page in pages(site)}
    dead = []
    for file, page in pages(site):
        for link in page.links:
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme or file.name == "404.html":
                continue
            if not target.exists() or (parts.fragment and parts.fragment not in known.get(target, ())):
                dead.append(f"{file.relative_to(site)} -> {link}")

    assert dead == []


def test_pictures_are_on_the_site(site: Path) -> None:
    shown = [
        (file, address)
        for file, page in pages(site)
        for address in page.fetched
        if address.endswith((".png", ".svg")) and file.name != "404.html"
    ]

    assert len(shown) > 5
    assert [str(file) for file, address in shown if not (file.parent / address).resolve().exists()] == []


def test_a_link_out_of_docs_leads_to_the_repository_and_others_stay() -> None:
    page = "[a](../../deploy/) [b](metrics.md#top) [c](https://x.example/) [d](../README.md) ![e](../pictures/a.png)"

    assert outside_links(page, "how-to/deploy.md", "https://forge.example/m/blob/main") == (
        "[a](https://forge.example/m/blob/main/deploy) [b](metrics.md#top) [c](https://x.example/) [d](../README.md)"
        " ![e](../pictures/a.png)"
    )
    assert outside_links("[f](../README.md#idea)", "why.md", "https://forge.example") == (
        "[f](https://forge.example/README.md#idea)"
    )
