"""`serve` and `run` with several workers: what the supervisor checks, what its workers are told, what it shows."""

from functools import partial

import msgspec

from millgate.cli.banner import Running, door_url, show_running
from millgate.cli.compose import gateway_settings
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.opening import ensure_quotas, ensure_workers, opening_error
from millgate.cli.settings import Given
from millgate.cluster.ledger import MemoryStore
from millgate.config.load import Loaded
from millgate.config.overrides import Override
from millgate.gateway import GatewaySettings
from millgate.gateway.serve import ProcessEnding
from millgate.gateway.workers.messages import Recipe, WorkerNews
from millgate.gateway.workers.process import WorkerFailedError
from millgate.gateway.workers.serve import serve_workers
from millgate.gateway.workers.supervisor import WorkersLostError
from millgate.observe.line_writer import try_path
from millgate.runtime.clock import MonotonicClock
from millgate.wiring.chosen import ChosenNumber
from millgate.wiring.settings import build_settings

_GIVEN = tuple[str | None, tuple[str, ...], tuple[Override, ...], tuple[Override, ...], str]
_RUNNING = tuple[
    str, str, tuple[tuple[str, str], ...], tuple[ChosenNumber, ...], str, str, str | None, str, int
]
"""The fields of `Given` and of `Running`, with the types that another process needs to read them."""


def read_given(content: bytes) -> Given:
    """Return what `supervise` has written: how a worker reads its configuration."""
    return Given(*msgspec.msgpack.decode(content, type=_GIVEN))


async def supervise(loaded: Loaded, given: Given, *, as_json: bool) -> ExitCode:
    """Serve with as many workers as the configuration says, until a signal ends it.

    Raises ConfigError for a configuration that cannot be used, CommandError when an address cannot be had, a file
    cannot be opened, or workers cannot serve.
    """
    settings, sources = gateway_settings(loaded), loaded.sources
    # What is wrong with the rest is reported here, and not by each worker.
    build_settings(loaded.config, {}, loaded.places)
    ensure_workers(loaded.config)
    ensure_quotas(loaded.config)
    assert sources is not None
    recipe = Recipe(msgspec.msgpack.encode(given), sources.text, sources.text)
    count = loaded.config.workers
    show = partial(_show, settings, count, as_json=as_json)
    store = MemoryStore(MonotonicClock.now) if settings.cluster is None else None
    try:
        if (log := loaded.config.records.log_attempts) is not None:
            try_path(log)
        ending = await serve_workers(settings, count, recipe, store, show)
    except OSError as error:
        raise opening_error(error, loaded.config) from None
    except WorkerFailedError as error:
        raise CommandError(str(error), ExitCode(error.code)) from None
    except WorkersLostError as error:
        raise CommandError(str(error)) from None
    return ExitCode.OK if ending is ProcessEnding.DRAINED else ExitCode.INTERRUPTED


def _show(settings: GatewaySettings, count: int, news: WorkerNews, admin_port: int, *, as_json: bool) -> None:
    """Show what one worker would, with the admin door that is the supervisor's."""
    shown = Running(*msgspec.msgpack.decode(news.running, type=_RUNNING))
    admin = settings.admin
    url = "" if admin is None else door_url(admin.host, admin_port)
    show_running(shown._replace(admin_url=url, workers=count), as_json=as_json)
