"""The process around the supervisor: its addresses, its admin door, its log."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

from msgspec import MsgspecError

from millgate.cluster.contract import Store
from millgate.gateway.kept_quotas import put_together
from millgate.gateway.notify import Notifier
from millgate.gateway.serve import ProcessEnding
from millgate.gateway.settings import GatewaySettings
from millgate.gateway.workers.crew import WorkersPlan
from millgate.gateway.workers.messages import Recipe, WorkerNews
from millgate.gateway.workers.supervisor import Supervisor
from millgate.gateway.workers.views import WorkersSource
from millgate.observe.logs import ProcessLog
from millgate.servers.admin.server import AdminServer
from millgate.sockets.listening import shared_sockets

_KEY_BYTES: Final = 32


async def serve_workers(
    settings: GatewaySettings,
    count: int,
    recipe: Recipe,
    store: Store | None,
    on_ready: Callable[[WorkerNews, int], None],
) -> ProcessEnding:
    """Serve with so many workers until SIGTERM or SIGINT (see `Supervisor.run`, which says what it raises).

    Each worker makes its configuration by `recipe`. They share `store`, None where the configuration names one of its
    own. `on_ready` is told what a worker says and the port of the admin door. Raises OSError when an address is taken
    or not ours.
    """
    log, notifier = ProcessLog(), Notifier()
    if settings.quotas_file is not None:
        with contextlib.suppress(OSError, MsgspecError):  # each worker will tell
            put_together(settings.quotas_file)
    with contextlib.ExitStack() as sockets:
        http = [sockets.enter_context(each) for each in shared_sockets(settings.host, settings.port, count)]
        found = settings.line and shared_sockets(settings.line.host, settings.line.port, count)
        line = [sockets.enter_context(each) for each in found or ()]
        admin: AdminServer | None = None

        async def ready(news: WorkerNews) -> None:
            if admin is not None:
                await admin.start()
            on_ready(news, 0 if admin is None else admin.port)

        plan = WorkersPlan(count, recipe, os.urandom(_KEY_BYTES), http, line, store)
        supervisor = Supervisor(plan, log, notifier, ready)
        admin = _admin_door(settings, supervisor, count)
        try:
            return await supervisor.run()
        finally:
            notifier.close()
            if admin is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await admin.stop()
            log.close()


def _admin_door(settings: GatewaySettings, supervisor: Supervisor, count: int) -> AdminServer | None:
    """Return the admin door on its address, which it takes now; OSError where that is taken."""
    address = settings.admin
    if address is None:
        return None
    shows_line = settings.line is not None and settings.line.metrics
    source = WorkersSource(supervisor, count, shows_line=shows_line)
    door = AdminServer(source, address.host, address.port, token=address.token, hosts=address.hosts)
    door.bind()
    return door
