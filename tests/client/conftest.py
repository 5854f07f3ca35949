"""A session belongs to a host and a port of this process, and ports are used again: what one test has learned of one is not for the next."""

import pytest

from millgate.client import session


@pytest.fixture(autouse=True)
def no_sessions() -> None:
    """Begin without any session, as a process does."""
    session._SESSIONS.clear()
