"""Telling systemd how the service is: datagrams to the socket that it names (sd_notify(3)); without one, silence."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from typing import Protocol


class ServiceNotifier(Protocol):
    """Is told how a gateway process is."""

    def ready(self) -> None:
        """Every door listens, or a reload is over."""

    def reloading(self) -> None:
        """The configuration is being read."""

    def stopping(self, status: str) -> None:
        """The process is leaving, and waits for this."""

    def close(self) -> None:
        """The process has nothing more to tell."""


class Notifier:
    """Speaks for one process; build it on the loop that runs it. No call blocks or raises.

    The watchdog is fed by the loop itself, so that a loop that stands still is restarted; its socket is kept for hosts
    without a file left.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of Linux's abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._watchdog_s = _watchdog_s(environ) if address else None
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Say that every door listens, or that a reload is over; feed the watchdog from now on."""
        self._send("READY=1", "STATUS=serving")
        if self._watchdog_s is not None and self._timer is None:
            self._feed()

    def reloading(self) -> None:
        """Say that the configuration is being read; systemd matches the time against its own request."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        """Say that the process is leaving, and what it waits for."""
        self._send("STOPPING=1", f"STATUS={status}")

    def close(self) -> None:
        """Stop feeding the watchdog, and say no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._sender.close()

    def _feed(self) -> None:
        assert self._watchdog_s is not None
        self._timer = asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._feed)
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._sender is not None:
            with contextlib.suppress(OSError):
                self._sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return systemd's watchdog time when it is meant for this process."""
    period, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not period.isdigit() or int(period) == 0 or process not in {"", str(os.getpid())}:
        return None
    return int(period) / 1_000_000
