"""Which callers are admitted, and how both sides prove their identity: tenants, certificates, authorities."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from millgate.config.values import Count, FilePath, KeyHash, Moment, Name, Number, Section

MAX_KEYS = 1000
_SHOWN_DIGITS = 8
"""How much of a stored hash leaves the process: enough to find the line in a file, nothing to try keys against."""


class ListenTlsConfig(Section):
    """TLS for the clients of this door; files are read at the start and again at every reload."""

    cert: FilePath = Field(description="Certificate of this gateway with its chain, PEM.")
    key: FilePath = Field(description="Private key of the certificate, PEM, without a passphrase.")
    client_ca: FilePath | None = Field(
        default=None,
        description="Authorities, PEM; a client must show a certificate of one of them. Default: none is asked for.",
    )


class EngineTlsConfig(Section):
    """TLS towards one engine, whose certificate is always verified; for a `https` address."""

    ca: FilePath | None = Field(default=None, description="Authorities, PEM, instead of those of the system.")
    cert: FilePath | None = Field(
        default=None, description="Certificate that is shown to the engine, with its chain, PEM."
    )
    key: FilePath | None = Field(
        default=None, description="Private key of `cert`, PEM, without a passphrase."
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name that is asked for (SNI) and that the certificate must be for. Default: the host of the URL.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("`cert` and `key` belong together: give both or none")
        return self


class KeyConfig(Section):
    """A key of a tenant, by its hash alone."""

    sha256: KeyHash = Field(
        description="SHA-256 of the key in hexadecimal digits, as `millgate key new` prints it. A key itself never stands in a file."
    )
    name: Name | None = Field(default=None, description="What `millgate key list` calls it.")
    expires: Moment | None = Field(
        default=None,
        description="When it ends: a date, whose first moment in UTC is meant, or a time as in `2027-01-31T18:00:00Z`. From "
        "then on it is refused as an unknown key is; what runs goes on. Default: it does not end.",
    )

    @property
    def expires_at(self) -> float | None:
        """Seconds since 1970, None for a key that does not end."""
        return None if self.expires is None else self.expires.timestamp()

    def has_expired(self, now: datetime) -> bool:
        """Return whether it is refused at this time."""
        return self.expires is not None and now >= self.expires

    @field_serializer("sha256")
    def _shorten(self, sha256: str) -> str:
        """Dumps show which keys there are, never what could be tried against."""
        return f"{sha256[:_SHOWN_DIGITS]}..."


class TenantConfig(Section):
    """A caller: known by the keys, held to the lanes."""

    name: Name = Field(description="The name of this tenant in places that operators see.")
    keys: tuple[KeyConfig, ...] = Field(
        min_length=1,
        max_length=MAX_KEYS,
        description="SHA-256 of each key in hexadecimal, as `millgate key new` prints it, or a section with more of it. Several, "
        "so that keys can be changed without a gap. A key itself never stands in a file.",
    )
    lanes: tuple[Name, ...] = Field(
        default=(),
        max_length=32,
        description="Lanes that this tenant may choose from with `x-millgate-lane`. Default: the default lane alone.",
    )
    default_lane: Name | None = Field(
        default=None,
        description="Lane of what names none. Default: by path, if that is one of `lanes` or there are none, else the first "
        "of `lanes`, else the first lane.",
    )

    weight: Number = Field(
        default=1.0, gt=0, le=1_000, description="Share among the tenants that wait in a fair lane."
    )
    max_inflight: Count | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Most streams at once over all engines; beyond it `tenant_limit`. Default: not bounded.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.default_lane is not None and self.lanes and self.default_lane not in self.lanes:
            raise ValueError(f"default_lane {self.default_lane} is not among its lanes")
        return self

    @field_validator("keys", mode="before")
    @classmethod
    def _widen(cls, keys: Any) -> Any:
        """Take a hash alone for a section that says no more."""
        if not isinstance(keys, list | tuple):
            return keys
        return [key if isinstance(key, dict) else {"sha256": key} for key in keys]
