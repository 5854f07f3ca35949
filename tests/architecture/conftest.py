"""What the architecture tests read: every Python file of the project, parsed once, and the files git would keep."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the repository."""
    return ROOT


def _parsed(*folders: str) -> dict[Path, ast.Module]:
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT): ast.parse(file.read_text(), str(file)) for file in files}


@pytest.fixture(scope="session")
def product() -> dict[Path, ast.Module]:
    """What is shipped or run by hand: the budgets hold here."""
    return _parsed("src", "bench", "lab", "examples")


@pytest.fixture(scope="session")
def everything(product: dict[Path, ast.Module]) -> dict[Path, ast.Module]:
    """The product and its tests."""
    return {**product, **_parsed("tests")}


@pytest.fixture(scope="session")
def kept_files() -> list[Path]:
    """Every file that is tracked by git, or would be by `git add`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files are kept")
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    return [ROOT / name for name in names if (ROOT / name).is_file()]
