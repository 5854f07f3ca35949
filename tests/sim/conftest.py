"""What the simulator's tests share: small worlds, and the data that may lie beside the repository."""

from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """Return a way to a file or folder of the shared data; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs ../shared/data/{name} beside the repository")
        return path

    return find
