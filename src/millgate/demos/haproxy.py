"""HAProxy as people put it before an engine: a cap on connections to the server, and a queue with a time limit."""

import os
import shutil

from millgate.demos.connection import GateAddress

_CONFIG = """\
global
    nbthread 1
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
    timeout queue {queue_ms}ms
    option abortonclose
frontend door
    bind fd@{listening}
    default_backend engines
backend engines
    server engine {host}:{port} maxconn {max_inflight}
"""


def find_haproxy() -> str | None:
    """Return where HAProxy is installed, None where it is not; distributions keep it among the daemons."""
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def haproxy_config(listening: int, engine: GateAddress, max_inflight: int, queue_s: float) -> str:
    """Write a configuration that takes connections from an inherited socket, `queue_s` being real seconds.

    What waits longer gets a 503, a client that hangs up in the queue is dropped (`option abortonclose`): both as the
    HAProxy 2.6 configuration manual has them.
    """
    return _CONFIG.format(
        queue_ms=max(1, round(queue_s * 1000)),
        listening=listening,
        host=engine.host,
        port=engine.port,
        max_inflight=max_inflight,
    )
