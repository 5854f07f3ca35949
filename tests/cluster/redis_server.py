"""A real redis-server (or Sentinel, or node of a Cluster) on a free port, in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ports import free_port

BINARY = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(BINARY is None, reason="redis-server is not installed")


class RedisServer:
    """One process; `options` are those of its command line."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, tls: bool = False, sentinel: str = ""
    ) -> None:
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        plain = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        served = [*plain, "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *options]
        self._options = [sentinel, "--sentinel"] if sentinel else served
        self.start()

    def start(self) -> None:
        assert BINARY is not None
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([BINARY, *self._options], stdout=log, stderr=log)
        self._await_port()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Freeze it."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _await_port(self) -> None:
        ends_at = time.monotonic() + 20.0
        while time.monotonic() < ends_at:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, (self.folder / "redis.log").read_text()
            time.sleep(0.02)
        raise AssertionError((self.folder / "redis.log").read_text())
