"""Runs a program as on another system: `python foreign_system.py darwin|win32 PROGRAM ARGUMENTS`.

What that system's Python lacks is taken away before anything of ours is imported. It is no proof that a program runs there. A program
that fails here fails there.
"""

import ctypes
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# From the ifdefs of CPython's socketmodule.c, posixmodule.c, signalmodule.c and selectmodule.c.
LINUX_ALONE: dict[ModuleType, str] = {
    socket: "TCP_USER_TIMEOUT TCP_INFO TCP_QUICKACK TCP_KEEPIDLE TCP_DEFER_ACCEPT TCP_CORK SO_PEERCRED SO_BINDTODEVICE "
    "SO_INCOMING_CPU SO_DOMAIN SO_PROTOCOL SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL",
    os: "pidfd_open sched_getaffinity sched_setaffinity memfd_create eventfd splice setns unshare posix_fadvise getxattr "
    "O_PATH O_DIRECT O_NOATIME",
    signal: "SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT sigtimedwait sigwaitinfo",
}
UNIX_ALONE: dict[ModuleType, str] = {
    socket: "SO_REUSEPORT TCP_NOTSENT_LOWAT",
    os: "register_at_fork fork geteuid getuid setpgid getpgid setsid killpg O_CLOEXEC uname",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGQUIT SIGALRM SIGCHLD SIGPIPE pthread_sigmask SIG_BLOCK SIG_UNBLOCK setitimer",
    select: "poll PIPE_BUF",
}
MODULES_OF_UNIX = ("uvloop", "resource", "fcntl", "termios", "tty", "pwd", "grp")
# They look at the system's name while they are imported, and would look for Windows' own modules.
LIBRARIES = (
    "asyncio",
    "typer.main",
    "typer.rich_utils",
    "rich.live",
    "pydantic",
    "yaml",
    "prometheus_client",
    "multiprocessing.pool",
    "zoneinfo",
)


def become(system: str) -> None:
    """Take away what this system lacks, and take its name."""
    for library in LIBRARIES:
        import_module(library)
    if system == "darwin":
        vars(socket)["TCP_KEEPALIVE"] = socket.TCP_KEEPIDLE
        vars(ctypes)["CDLL"] = _WithoutPrctl
    for parts in (LINUX_ALONE, UNIX_ALONE if system == "win32" else {}):
        for module, names in parts.items():
            for name in names.split():
                vars(module).pop(name, None)
    if system == "win32":
        sys.modules.update(dict.fromkeys(MODULES_OF_UNIX))  # type: ignore[arg-type]  # None means that there is none
    sys.platform = system


class _WithoutPrctl(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError("dlsym(RTLD_DEFAULT, prctl): symbol not found")
        return super().__getattr__(name)


if __name__ == "__main__":
    become(sys.argv[1])
    sys.argv = sys.argv[2:]
    if Path(sys.argv[0]).suffix:
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
