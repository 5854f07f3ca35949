"""Which certificates a configuration names, and until when they are valid: `check` and `serve` tell those that end."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from millgate.config.load import Loaded
from millgate.config.problems import Problem, SettingPath, dotted
from millgate.gateway import Certificate, lifetimes


def ageing(loaded: Loaded) -> Iterator[Problem]:
    """Yield each setting whose file has a certificate that has expired or soon will."""
    now = datetime.now(UTC)
    for path, each in _named(loaded):
        if trouble := each.trouble(now):
            place = loaded.places.get(path)
            yield Problem(place, path, f"{each.file} {trouble}: {each.ends:%Y-%m-%d %H:%M} UTC")


def certificates(loaded: Loaded) -> tuple[Certificate, ...]:
    """Return what the files say now."""
    return tuple(each for _path, each in _named(loaded))


def _named(loaded: Loaded) -> Iterator[tuple[SettingPath, Certificate]]:
    """Yield each setting that names a file, with what is in that.

    Of a certificate with its chain the first one to end counts, of authorities the last one: one of them may be for
    what was renewed.
    """
    for section, files in _sections(loaded):
        for field in ("cert", "ca", "client_ca"):
            file = getattr(files, field, None)
            if file is not None and (lives := lifetimes(file)):
                begins, ends = (min if field == "cert" else max)(lives, key=lambda life: life[1])
                path = (*section, field)
                yield path, Certificate(dotted(path), file, begins, ends)


def _sections(loaded: Loaded) -> Iterator[tuple[SettingPath, Any]]:
    """Yield each section that names certificates, or None for one that is not given."""
    config = loaded.config
    yield ("cluster",), config.cluster
    yield from (
        ((door, "tls"), getattr(getattr(config, door), "tls", None)) for door in ("listen", "line", "extproc")
    )
    yield from ((("engines", index, "tls"), engine.tls) for index, engine in enumerate(config.engines))
