"""Which certificates of a configuration have expired or soon will: for `check`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from millgate.config.load import Loaded
from millgate.config.problems import Problem, SettingPath
from millgate.gateway import lifetimes

SOON: Final = timedelta(days=30)
"""Certificates of 90 days are renewed this long before their end; of one that lives shorter the last third is soon."""


def ageing(loaded: Loaded) -> Iterator[Problem]:
    """Yield each setting whose file has a certificate that has expired or soon will.

    Of a certificate with its chain the first one to end counts, of authorities the last one: one of them may be for
    what was renewed.
    """
    now = datetime.now(UTC)
    for section, files in _sections(loaded):
        for field in ("cert", "ca", "client_ca"):
            file = getattr(files, field, None)
            lives = [] if file is None else lifetimes(file)
            if not lives:
                continue
            begins, ends = (min if field == "cert" else max)(lives, key=lambda life: life[1])
            if now >= ends - min(SOON, (ends - begins) / 3):
                path = (*section, field)
                what = "has expired" if now >= ends else "expires soon"
                yield Problem(loaded.places.get(path), path, f"{file} {what}: {ends:%Y-%m-%d %H:%M} UTC")


def _sections(loaded: Loaded) -> Iterator[tuple[SettingPath, Any]]:
    """Yield each section that names certificates, or None for one that is not given."""
    config = loaded.config
    yield ("cluster",), config.cluster
    yield from (
        ((door, "tls"), getattr(getattr(config, door), "tls", None)) for door in ("listen", "line", "extproc")
    )
    yield from ((("engines", index, "tls"), engine.tls) for index, engine in enumerate(config.engines))
