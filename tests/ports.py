"""Ports for servers that start later, or start again: none that the system gives to others meanwhile."""

import contextlib
import random
import socket
from typing import Final

# Below the ports that Linux gives to outgoing connections and to `bind(0)` (32,768 to 60,999, ip(7)): a port
# from there may belong to another process before the server of the test has started.
_PORTS: Final = range(12_000, 22_000)
_CLUSTER_BUS: Final = 10_000
_CHOICE: Final = random.SystemRandom()
_given: set[int] = set()


def free_port(*addresses: str, with_bus: bool = False) -> int:
    """Return a port that is free at 127.0.0.1, or at these addresses, and that was not returned before.

    A node of a Redis Cluster needs the one 10,000 above, too.
    """
    while True:
        port = _CHOICE.choice(_PORTS)
        wanted = (port, port + _CLUSTER_BUS) if with_bus else (port,)
        if port not in _given and all(_is_free(a, p) for a in addresses or ("127.0.0.1",) for p in wanted):
            _given.add(port)
            return port


def _is_free(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return True
    return False
