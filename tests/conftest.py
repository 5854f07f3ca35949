"""What every test relies on: that the sources here are what runs."""

import hatch_build
import pytest


def pytest_sessionstart() -> None:
    """End at once where a source has changed since it was compiled: another program would be tested."""
    if hatch_build.stale():
        pytest.exit("compiled from older sources: run `make compiled` or `make interpreted`", returncode=4)
