"""What every test relies on: the sources here are what runs, the gate says the same twice, data may lie beside the repository."""

import logging
from collections.abc import Callable, Generator
from pathlib import Path

import hatch_build
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A gate must turn neither on chance, so that `make test` tries the same examples each time and `make explore` others, nor on
# how busy the machine is.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("explore"), derandomize=True)
settings.load_profile("gate")


def pytest_sessionstart() -> None:
    """End at once where a source has changed since it was compiled: another program would be tested."""
    if hatch_build.stale():
        pytest.exit("compiled from older sources: run `make compiled` or `make interpreted`", returncode=4)
    if settings().derandomize:
        _try_the_same_examples()


def _try_the_same_examples() -> None:
    """Let Hypothesis take no numbers and words from our modules.

    Which modules it knows depends on what is compiled, and on the tests that ran before in the same process.
    """
    if hasattr(providers, "is_local_module_file"):
        providers.is_local_module_file = lambda _path: False


class _KeptErrors(logging.Handler):
    """Keeps what a loop said of callbacks that failed; a task or a transport is told of when it is collected, in another test perhaps."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it with its traceback."""
        if record.getMessage().startswith("Exception in callback"):
            self.said.append(self.format(record))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test in which a loop has only logged an exception of a callback."""
    handler, logger = _KeptErrors(logging.ERROR), logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        result = yield
    finally:
        logger.removeHandler(handler)
    assert not handler.said, "\n".join(handler.said)
    return result


DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """Return a way to a file or folder of the shared data; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs ../shared/data/{name} beside the repository")
        return path

    return find
