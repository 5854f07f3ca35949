"""The hook of mkdocs.yml: links that leave docs/ lead to the repository, so that one page serves the site and a checkout."""

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_TARGET = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def outside_links(text: str, page: str, repository: str) -> str:
    """Return a page's text whose relative links out of docs/ are addresses in the repository.

    `page` is the page's path below docs/, `repository` the address of the repository's files.
    """

    def moved(target: re.Match[str]) -> str:
        path = _below_root(PurePosixPath("docs", page).parent / target[1])
        return target[1] if path.startswith("docs/") else f"{repository}/{path}"

    return _TARGET.sub(moved, text)


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Change the links of a page before MkDocs reads them."""
    return outside_links(markdown, page.file.src_uri, _repository())


def _below_root(path: PurePosixPath) -> str:
    """Return a path without `..`, as seen from the root of the repository."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"{project['urls']['Homepage']}/blob/main"
