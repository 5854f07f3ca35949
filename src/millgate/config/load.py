"""From a file, the environment and flags to one valid Config; flag over environment over file over default."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr, ValidationError

from millgate.config import overrides
from millgate.config.blame import explain
from millgate.config.consistency import (
    check_whole,
    read_admin_token,
    read_engine_keys,
    read_line_token,
    read_ticket_secret,
)
from millgate.config.document import MAX_BYTES, Document, read_document
from millgate.config.lanes import DEFAULT_LANES
from millgate.config.overrides import Override
from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin
from millgate.config.schema import Config

# What an override may reach into without a file naming it.
_ABSENT = {"lanes": list(DEFAULT_LANES)}


class Loaded(NamedTuple):
    """A valid configuration, where each of its given settings was written, and the secrets that it names."""

    config: Config
    places: Mapping[SettingPath, ValueOrigin]
    admin_token: SecretStr | None
    engine_keys: Mapping[str, SecretStr]
    line_token: SecretStr | None = None
    ticket_secret: SecretStr | None = None

    @property
    def ticket_key(self) -> bytes | None:
        """The key by which tickets are signed, None for one of this process's own."""
        secret = self.ticket_secret
        return None if secret is None else bytes.fromhex(secret.get_secret_value())

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
) -> Loaded:
    """Return the configuration of `file`, the MILLGATE_ variables of `environ` and `flags`, all optional.

    `instead` replaces parts of the file before variables and flags are laid over it, so that these still count.
    Raises ConfigError naming, for each problem, the place, the dotted path and what is allowed.
    """
    document = Document({}, {}) if file is None else _read_file(file)
    outside = [*instead, *overrides.from_environment(environ or {}), *flags]
    return validated(overrides.apply(document, outside, _ABSENT), environ or {})


def validated(document: Document, environ: Mapping[str, str] | None = None) -> Loaded:
    """Return the configuration that these settings are; raises ConfigError as `load_config` does."""
    data, places = document
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(*explain(error, places)) from None
    check_whole(config, places)
    secrets = environ or {}
    admin_token = read_admin_token(config, secrets, places)
    engine_keys = read_engine_keys(config, secrets, places)
    line_token = read_line_token(config, secrets, places)
    ticket_secret = read_ticket_secret(config, secrets, places)
    return Loaded(config, places, admin_token, engine_keys, line_token, ticket_secret)


def _read_file(file: Path) -> Document:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        return read_document(raw.decode("utf-8-sig"), str(file))
    except OSError as error:
        raise ConfigError(Problem(ValueOrigin(str(file)), (), f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            Problem(ValueOrigin(str(file)), (), f"is not UTF-8 text at byte {error.start}")
        ) from None
