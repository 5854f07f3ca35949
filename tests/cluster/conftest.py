"""Servers for the tests of the stores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.redis_server import BINARY, RedisServer


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers that end with the test."""
    if BINARY is None:
        pytest.skip("redis-server is not installed")
    started: list[RedisServer] = []

    def start(*options: str, **more: int | bool | str) -> RedisServer:
        server = RedisServer(tmp_path / f"redis-{len(started)}", *options, **more)  # type: ignore[arg-type]
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()
