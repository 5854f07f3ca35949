"""What `serve` would open, opened and closed again, the cluster's store too: for `check`."""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Iterator

from msgspec import MsgspecError

from millgate.cli.exits import CommandError, ExitCode, address_error
from millgate.config.doors import ExtprocConfig
from millgate.config.schema import Config
from millgate.gateway import ClusterSettings
from millgate.gateway.kept_quotas import read_uses
from millgate.observe.line_writer import try_path


def open_all(config: Config) -> None:
    """Open the log of attempts and bind every address, and leave no trace; CommandError for the first that fails.

    An address that is in use is no failure: the gate that is being checked for may be running.
    """
    ensure_workers(config)
    ensure_quotas(config)
    if (path := config.quotas_file) is not None:
        try:
            read_uses(path)
        except (OSError, MsgspecError) as error:
            raise CommandError(
                f"quotas_file: {path} is no record of quotas: {error}", ExitCode.USAGE
            ) from None
    if (log := config.records.log_attempts) is not None:
        try:
            try_path(log)
        except OSError as error:
            raise log_error(log, error) from None
    for door, _flag, host, port in _addresses(config):
        try:
            _bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise address_error(error, host, port, f"{door}.port") from None


def ensure_workers(config: Config) -> None:
    """Raise CommandError where the configuration asks for workers that this system cannot run."""
    from millgate.cluster.socket_store import lacking

    shares = config.workers > 1 and (config.cluster is None or sys.platform != "linux")
    if shares and (why := lacking()):
        raise CommandError(f"workers: {config.workers} cannot share limits, use 1: {why}", ExitCode.USAGE)


def ensure_quotas(config: Config) -> None:
    """Raise CommandError where what is used of quotas is to be kept and cannot be written."""
    if (path := config.quotas_file) is not None:
        try:
            try_path(f"{path}.new")
        except OSError as error:
            text = f"quotas_file: {path} cannot be written: {error.strerror}"
            raise CommandError(text, ExitCode.USAGE) from None


def opening_error(error: OSError, config: Config, *, behind_envoy: bool = False) -> CommandError:
    """Return the error for what could not be opened: the log, the first address that is refused again, or what it says itself."""
    if (log := config.records.log_attempts) is not None and error.filename == log:
        return log_error(log, error)
    for door, flag, host, port in _addresses(config):
        try:
            if door != ("listen" if behind_envoy else "extproc"):
                _bind(host, port)
        except OSError as refused:
            if refused.errno == error.errno:
                return address_error(error, host, port, flag)
    return CommandError(error.strerror or str(error), ExitCode.PORT_TAKEN)


def log_error(log: str, error: OSError) -> CommandError:
    """Return the error for a log of attempts that cannot be opened."""
    why = "no program reads this pipe" if error.errno == errno.ENXIO else error.strerror
    return CommandError(f"records.log_attempts: {log} cannot be opened: {why}", ExitCode.USAGE)


def ask_store(settings: ClusterSettings) -> str:
    """Join the cluster with nothing, leave it again, and return what was found; CommandError where it cannot be joined."""
    from millgate.cluster.contract import FencedError, Renewal, StoreUnavailableError
    from millgate.gateway.cluster import open_store

    async def ask() -> int:
        store = open_store(settings)
        replica = f"check:{os.getpid()}:{os.urandom(4).hex()}"
        try:
            granted = await store.renew(Renewal(replica, 0, 0, settings.lease_s, ()))
            await store.leave(replica, granted.epoch)
        finally:
            await store.close()
        return granted.replicas - 1

    try:
        others = asyncio.run(ask())
    except (StoreUnavailableError, FencedError, OSError) as error:
        raise CommandError(f"cluster.store: {error}", ExitCode.USAGE) from None
    return f"cluster {settings.name}: the store answers, {others} replica(s) have a lease"


def _addresses(config: Config) -> Iterator[tuple[str, str, str, int]]:
    """Yield each door, the flag or setting of its port, and its address."""
    yield "listen", "--port", config.listen.host, config.listen.port
    yield "admin", "--admin-port", config.admin.host, config.admin.port
    if config.line is not None:
        yield "line", "line.port", config.line.host, config.line.port
    extproc = config.extproc or ExtprocConfig()
    yield "extproc", "--port", extproc.host, extproc.port


def _bind(host: str, port: int) -> None:
    for family, kind, protocol, _name, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
