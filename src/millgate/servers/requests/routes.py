"""The way to one engine, as the doors are told it."""

from collections.abc import Callable
from typing import NamedTuple

from millgate.core.settings import KV_LEASE_S
from millgate.http1.client import Ear, Upstream


class Bootstrap(NamedTuple):
    """Where SGLang's engines that decode meet the one that reads a prompt for them."""

    host: str
    port: int


class EngineRoute(NamedTuple):
    """How to reach one engine: its pool, its base path (no trailing slash), and the listener to hang-ups.

    `credential` replaces whatever the client sent; None sends what the door lets through. A prompt that it reads for another engine it
    keeps for `kv_lease_s`; with `bootstrap` both have the request at once. `models` are those that the settings name for it, none where it takes any.
    `ear` hears what becomes of requests that `upstream` does not carry. What becomes of those that `pages` carries says nothing of its health.
    """

    name: str
    upstream: Upstream
    base_path: bytes = b""
    on_hangup: Callable[[], None] | None = None
    credential: bytes | None = None
    kv_lease_s: float = KV_LEASE_S
    bootstrap: Bootstrap | None = None
    models: tuple[str, ...] = ()
    ear: Ear | None = None
    pages: Upstream | None = None
