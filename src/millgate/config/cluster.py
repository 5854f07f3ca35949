"""Replicas that share their limits, in the configuration."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from millgate.config.units import format_duration
from millgate.config.values import Duration, FilePath, Name, Section, VariableName

STORE_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
LEAST_RENEWALS = 4
"""Renewals within a lease: three may be lost before it ends."""


def check_store(url: str) -> str:
    """Return the address of a store if it is one; ValueError says what is wrong and quotes nothing that may be a secret."""
    parts = urlsplit(url)
    if parts.scheme not in STORE_SCHEMES or not parts.netloc:
        raise ValueError(
            "is not the address of a store: write redis://host:6379/0, rediss://... for TLS, "
            "redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379"
        )
    if "sentinel" in parts.scheme and not parts.path.strip("/"):
        raise ValueError("names no service: redis+sentinel://host:26379/service")
    if parts.query or parts.fragment:
        raise ValueError("carries a query or a fragment: give scheme, hosts and database alone")
    return url


def _without_password(url: str) -> str:
    if "@" in urlsplit(url).netloc:
        raise ValueError(
            "carries credentials: put them into the environment variables of `user` and `password_env`, "
            "or the whole address into that of `store_env`"
        )
    return check_store(url)


StoreUrl = Annotated[str, AfterValidator(_without_password)]


class ClusterConfig(Section):
    """Replicas that share the limits of their engines and quotas, by leases in a Redis. Off without this section."""

    store: StoreUrl | None = Field(
        default=None,
        description="Address of the store: `redis://host:6379/0`, `rediss://` with TLS, "
        "`redis+sentinel://host:26379,host:26379/service`, `redis+cluster://host:6379,host:6379`; no credentials.",
    )
    store_env: VariableName = Field(
        default="MILLGATE_REDIS_URL",
        description="Name of the environment variable that holds the address where `store` is not given; it may carry credentials.",
    )
    user: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = Field(
        default=None, description="ACL user of the store. Default: the default user."
    )
    password_env: VariableName = Field(
        default="MILLGATE_REDIS_PASSWORD",
        description="Name of the environment variable that holds the password; one that is not set is none.",
    )
    ca: FilePath | None = Field(
        default=None,
        description="Certificates (PEM) that the store's is signed by; read again when it is not trusted. Default: the system's.",
    )
    name: Name = Field(
        default="millgate",
        description="Name of the cluster: replicas of one name share, and every key in the store starts with it.",
    )
    replica: Name | None = Field(
        default=None,
        description="Name of this replica in logs and on the page. Default: the host's name. Each process adds its own number.",
    )
    lease: Duration = Field(
        default=2.0,
        ge=0.5,
        le=60.0,
        description="How long a share lasts without a renewal; work starts by it for three fifths of that. The same at every replica.",
    )
    renew_every: Duration = Field(
        default=0.25, ge=0.05, le=10.0, description="Time between two renewals; a quarter of `lease` at most."
    )
    timeout: Duration = Field(
        default=0.2,
        ge=0.01,
        le=10.0,
        description="How long a renewal may take before it counts as failed; two fifths of `lease` at most.",
    )
    when_store_is_gone: Literal["share", "closed", "open"] = Field(
        default="share",
        description="From the end of the last lease on: `share` admits the limit divided by the replicas last known, `closed` "
        "nothing, `open` the whole limit at each replica.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.renew_every * LEAST_RENEWALS > self.lease:
            raise ValueError(
                f"renew_every ({format_duration(self.renew_every)}) is more than a quarter of lease "
                f"({format_duration(self.lease)})"
            )
        if self.timeout * 5 > self.lease * 2:  # work starts by a lease for three fifths of it
            raise ValueError(
                f"timeout ({format_duration(self.timeout)}) is more than two fifths of lease "
                f"({format_duration(self.lease)}): one renewal that hangs would outlast it"
            )
        return self
