"""`millgate` with a name server of the test's: a file of lines `name address address ...`, read at every look-up."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from millgate.cli.main import run


class LoopWithNames(uvloop.Loop):
    """A loop on which names are what the file says, and nothing else has an address."""

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        names = await asyncio.to_thread(Path(os.environ["NAMES"]).read_text, encoding="utf-8")
        for line in names.splitlines():
            name, *addresses = line.split()
            if name == host:
                return [
                    (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port or 0))
                    for address in addresses
                ]
        if host and host[0].isdigit():
            return await super().getaddrinfo(host, port, **more)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


if __name__ == "__main__":
    uvloop.new_event_loop = LoopWithNames
    sys.exit(run())
