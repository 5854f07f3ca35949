import threading
from collections.abc import Iterator
from http.server import HTTPServer

import pytest

from endtoend.rogue import Rogue


@pytest.fixture(scope="module")
def rogue() -> Iterator[int]:
    """Run it and return its port."""
    server = HTTPServer(("127.0.0.1", 0), Rogue)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
