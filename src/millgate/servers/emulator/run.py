"""Starts and stops the embedded engine: inside a running loop, or as a process of its own."""

import asyncio
import gc
import signal
import sys
from typing import Final

import uvloop

from millgate.http1.server import HttpServer
from millgate.observe.logs import json_line
from millgate.servers.emulator.app import EmulatorApplication
from millgate.servers.emulator.settings import EmulatorSettings

_FLUSH_LOOK_S: Final = 0.01
_FLUSH_LOOKS: Final = 100
"""The last answers may take a second to leave when the engine stops."""


class RunningEngine:
    """An embedded engine that serves: where, and how to stop it."""

    def __init__(self, application: EmulatorApplication, server: HttpServer, host: str, port: int) -> None:
        self.application = application
        self.host = host
        self.port = port
        self._server = server

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """End what runs with `finish_reason: "abort"`, let it leave, and close every connection."""
        self._server.listeners.close()
        self._server.drain()
        self.application.stop()
        for _ in range(_FLUSH_LOOKS):
            if not self._server.connections:
                break
            await asyncio.sleep(_FLUSH_LOOK_S)
        await self._server.close()


async def start_engine(settings: EmulatorSettings) -> RunningEngine:
    """Start an embedded engine on the running loop; OSError when the port is taken."""
    application = EmulatorApplication(settings, asyncio.get_running_loop())
    server = HttpServer(application)
    port = application.port = await server.listen(settings.host, settings.port)
    return RunningEngine(application, server, settings.host, port)


async def run_engine(settings: EmulatorSettings) -> None:
    """Serve until SIGTERM or SIGINT; write one line to stderr when ready: words on a terminal, else JSON."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    engine = await start_engine(settings)
    gc.collect()
    gc.freeze()
    ready = ready_line if sys.stderr.isatty() else ready_record
    sys.stderr.write(ready(settings, engine.port) + "\n")
    sys.stderr.flush()
    try:
        await stopped.wait()
    finally:
        await engine.stop()


def ready_line(settings: EmulatorSettings, port: int) -> str:
    """Return the one line that says where the engine serves, made to be read by people and by a parent process."""
    return (
        f"millgate engine ready host={settings.host} port={port}"
        f" profile={settings.profile} time_scale={settings.time_scale:g}"
    )


def ready_record(settings: EmulatorSettings, port: int) -> str:
    """Return the same as one line of JSON."""
    fields = {
        "host": settings.host,
        "port": port,
        "profile": settings.profile,
        "time_scale": settings.time_scale,
    }
    return json_line("info", "engine ready", fields)


def run(settings: EmulatorSettings) -> None:
    """Run the embedded engine as this process, on uvloop, until a signal ends it."""
    uvloop.run(run_engine(settings))
