"""What every test relies on: that the sources here are what runs, and that the gate says the same twice."""

import hatch_build
import pytest
from hypothesis import settings

# A gate must not turn on chance: `make test` tries the same examples each time, `make explore` others.
settings.register_profile("gate", derandomize=True)
settings.load_profile("gate")


def pytest_sessionstart() -> None:
    """End at once where a source has changed since it was compiled: another program would be tested."""
    if hatch_build.stale():
        pytest.exit("compiled from older sources: run `make compiled` or `make interpreted`", returncode=4)
