"""From a file, the environment and flags to one valid Config; flag over environment over file over default."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr, ValidationError

from millgate.config import overrides
from millgate.config.blame import explain
from millgate.config.consistency import SecretsReader, StoreSecrets, check_whole
from millgate.config.document import MAX_BYTES, Document, read_document, read_engines
from millgate.config.lanes import DEFAULT_LANES
from millgate.config.overrides import Override
from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin
from millgate.config.schema import Config

# What an override may reach into without a file naming it.
_ABSENT = {"lanes": list(DEFAULT_LANES)}
_ENGINES_FILE: SettingPath = ("discovery", "file")

FileStamp = tuple[int, int, int]
"""What tells one state of a file from another: time of its last change in nanoseconds, size in bytes, inode."""


def stamp_of(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file with this status."""
    return status.st_mtime_ns, status.st_size, status.st_ino


class ConfigSources:
    """What a configuration was read from, kept so that the file of engines can be read again without the rest.

    It holds the environment, so it is never shown.
    """

    def __init__(
        self, text: str, document: Document, outside: Iterable[Override], environ: Mapping[str, str]
    ) -> None:
        self.text = text
        """Of the file; empty without one."""
        self._document = document
        self._outside = tuple(outside)
        self._environ = environ

    def read(self) -> "Loaded":
        """Return the configuration with the engines that their file names now; raises ConfigError."""
        document, stamp = self._document, None
        file = self._engines_file()
        if file is not None:
            document, stamp = _with_engines(document, file)
        loaded = validated(overrides.apply(document, self._outside, _ABSENT), self._environ)
        return loaded._replace(sources=self, engines_stamp=stamp)

    def _engines_file(self) -> str | None:
        """Return the path of the file of engines: the engines must be there before overrides reach into them."""
        section = self._document.data.get("discovery")
        file = section.get("file") if isinstance(section, dict) else None
        for each in self._outside:
            file = each.value if each.path == _ENGINES_FILE else file
        return file if isinstance(file, str) else None


class Loaded(NamedTuple):
    """A valid configuration, where each of its given settings was written, and the secrets that it names."""

    config: Config
    places: Mapping[SettingPath, ValueOrigin]
    admin_token: SecretStr | None
    engine_keys: Mapping[str, SecretStr]
    line_token: SecretStr | None = None
    ticket_secret: SecretStr | None = None
    store: StoreSecrets | None = None
    trace_headers: Mapping[str, SecretStr] = {}
    engine_proxies: Mapping[str, SecretStr] = {}
    """Addresses of the engines' proxies, by engine."""
    sources: ConfigSources | None = None
    engines_stamp: FileStamp | None = None
    """The state of `discovery.file` that was read; None without such a file."""

    @property
    def ticket_key(self) -> bytes | None:
        """The key by which tickets are signed, None for one of this process's own."""
        secret = self.ticket_secret
        return None if secret is None else bytes.fromhex(secret.get_secret_value())

    def other_keys(self, now: "Loaded") -> list[str]:
        """Name the credentials of engines that are others now; of a secret nothing else is ever told."""
        before = self.engine_keys
        return [
            f"engines.{name}.api_key_env"
            for name, key in now.engine_keys.items()
            if before.get(name, key) != key
        ]

    def origin(self, *path: str | int) -> str | None:
        """Return the source of this setting (`gate.yaml:3:5`, `--port`), None where it is a default."""
        place = self.places.get(path)
        return str(place) if place else None


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[Override] = (),
    *,
    instead: Iterable[Override] = (),
    text: str | None = None,
) -> Loaded:
    """Return the configuration of `file`, the MILLGATE_ variables of `environ` and `flags`, all optional.

    `text` is what the file said when it was read; None reads it now. `instead` replaces parts of the file before
    variables and flags are laid over it, so that these still count. Raises ConfigError naming, for each problem, the
    place, the dotted path and what is allowed.
    """
    if text is None or file is None:
        text = "" if file is None else _read_text(file)[0]
    document = Document({}, {}) if file is None else read_document(text, str(file))
    replaced = overrides.apply(document, instead, _ABSENT)
    outside = [*overrides.from_environment(environ or {}), *flags]
    return ConfigSources(text, replaced, outside, dict(environ or {})).read()


def validated(document: Document, environ: Mapping[str, str] | None = None) -> Loaded:
    """Return the configuration that these settings are; raises ConfigError as `load_config` does."""
    data, places = document
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(*explain(error, places)) from None
    check_whole(config, places)
    secrets = SecretsReader(config, environ or {}, places)
    return Loaded(
        config,
        places,
        secrets.admin_token(),
        secrets.engine_keys(),
        secrets.line_token(),
        secrets.ticket_secret(),
        secrets.store(),
        secrets.trace_headers(),
        secrets.engine_proxies(),
    )


def _with_engines(document: Document, file: str) -> tuple[Document, FileStamp]:
    """Return the document with the engines of this file behind its own, and the state of the file that was read."""
    text, stamp = _read_text(Path(file))
    items, places = read_engines(text, file)
    own = document.data.get("engines") or []
    if not isinstance(own, list):
        return document, stamp
    moved = {("engines", len(own) + int(path[0]), *path[1:]): place for path, place in places.items() if path}
    return Document({**document.data, "engines": [*own, *items]}, {**document.places, **moved}), stamp


def _read_text(file: Path) -> tuple[str, FileStamp]:
    try:
        with file.open("rb") as stream:
            stamp = stamp_of(os.fstat(stream.fileno()))
            raw = stream.read(MAX_BYTES + 1)
        return raw.decode("utf-8-sig"), stamp
    except OSError as error:
        raise ConfigError(Problem(ValueOrigin(str(file)), (), f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            Problem(ValueOrigin(str(file)), (), f"is not UTF-8 text at byte {error.start}")
        ) from None
