"""This replica in its cluster: what the core uses goes to the store, and what the store grants goes to the core.

The core begins without any share, so that nothing is admitted before the first lease. From then on it has what was
granted last, until that ends by itself; what happens then the configuration says. No request ever waits for the store.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from millgate.cluster.contract import Holding, Kind, LeasedShare, Line, Store, share_key
from millgate.cluster.leases import (
    FailurePolicy,
    Leased,
    LeaseRenewer,
    LeaseSettings,
    LeaseStatus,
    RenewalState,
    Shared,
)
from millgate.core.events import AccountShare, EngineShare, LeaseGranted, OthersLine, QuotaShare, TenantShare
from millgate.core.snapshot import SharedUse
from millgate.gateway.settings import ClusterSettings
from millgate.gateway.told_news import ToldNews
from millgate.observe.door import ClusterSnapshot
from millgate.runtime.clock import MonotonicClock, boot_time
from millgate.runtime.driver import Driver

if TYPE_CHECKING:
    from millgate.cluster.redis_store import RedisStore

_Names = tuple[str, ...]
# A first connection looks up names and shakes hands for TLS.
_LEAST_CONNECT_S: Final = 0.5
# A replica starts work by an answer for this part of a lease. In the rest of it the engine's gauge shows the others
# which streams of a dead replica have ended, so that those are with them when the lease is over.
_STARTS_FOR: Final = 0.6
# So many renewals, at least, while it does.
_LEAST_RENEWALS: Final = 4
_POLICY_WORDS: Final = {
    FailurePolicy.SHARE: "this replica has at most an even share",
    FailurePolicy.CLOSED: "nothing is let in",
    FailurePolicy.OPEN: "each replica has the whole limit",
}


def holdings_of(use: SharedUse) -> tuple[Holding, ...]:
    """Return what this replica holds and wants, each number by the key that it has at every replica."""
    return tuple(Holding(share_key(Kind(number.kind), *number.names), *number[2:]) for number in use.numbers)


def lines_of(use: SharedUse) -> tuple[Line, ...]:
    """Return what waits here, by pool."""
    return tuple(Line(*line) for line in use.lines)


def lease_of(
    shares: Iterable[LeasedShare], replicas: int, until: float, lines: Iterable[Line] = ()
) -> LeaseGranted:
    """Return the event by which the core takes these shares; streams and tokens rounded down."""
    kinds: dict[Kind, dict[_Names, float]] = {kind: {} for kind in Kind}
    for key, amount in shares:
        kind, _, names = key.partition(":")
        kinds[Kind(kind)][tuple(unquote(name) for name in names.split("/"))] = amount
    others = tuple(OthersLine(*line) for line in lines)
    tenants = tuple(TenantShare(name[0], int(streams)) for name, streams in kinds[Kind.TENANT].items())
    retries = next((int(each) for each in kinds[Kind.RETRIES].values()), None)
    return LeaseGranted(
        until, replicas, _engines(kinds), _quotas(kinds), _accounts(kinds), others, tenants, retries
    )


def _engines(kinds: Mapping[Kind, Mapping[_Names, float]]) -> tuple[EngineShare, ...]:
    kv, prefill = kinds[Kind.KV], kinds[Kind.PREFILL]
    return tuple(
        EngineShare(
            name[0],
            int(streams),
            int(kv[name]) if name in kv else None,
            int(prefill[name]) if name in prefill else None,
        )
        for name, streams in kinds[Kind.STREAMS].items()
    )


def _quotas(kinds: Mapping[Kind, Mapping[_Names, float]]) -> tuple[QuotaShare, ...]:
    bursts = kinds[Kind.BURST]
    return tuple(
        QuotaShare(name[0], rate_per_s, bursts.get(name, 0.0))
        for name, rate_per_s in kinds[Kind.RATE].items()
    )


def _accounts(kinds: Mapping[Kind, Mapping[_Names, float]]) -> tuple[AccountShare, ...]:
    limits: dict[str, list[QuotaShare]] = {}
    bursts = kinds[Kind.ACCOUNT_BURST]
    for names, rate_per_s in kinds[Kind.ACCOUNT_RATE].items():
        share = QuotaShare(names[1], rate_per_s, bursts.get(names, 0.0))
        limits.setdefault(names[0], []).append(share)
    return tuple(AccountShare(engine, tuple(shares)) for engine, shares in limits.items())


def open_store(settings: ClusterSettings) -> "RedisStore":
    """Return the store that these settings name; it connects when it is first asked. ValueError for an address that is none."""
    # With the extra: a gate of its own needs no Redis.
    from millgate.cluster.connect import PASSWORD_ENV, USERNAME_ENV, connect, read_address  # noqa: PLC0415
    from millgate.cluster.redis_store import RedisStore  # noqa: PLC0415

    secrets = {USERNAME_ENV: settings.user or "", PASSWORD_ENV: settings.password or ""}
    address = read_address(settings.url, secrets, settings.ca)
    anew = partial(connect, address, max(settings.timeout_s, _LEAST_CONNECT_S))
    return RedisStore(anew(), settings.name, boot_time, timeout_s=settings.timeout_s, anew=anew)


class Membership:
    """Renews this replica's lease and hands what is granted to the core.

    A lease goes on while this machine is suspended, and the core's clock may not. So `time` is one that does, and
    before each step the core hears of a lease that is over by that. `on_change` is called whenever the state changes,
    `on_lease` when a lease was granted, `on_loss` when there are fewer replicas than before: then the engines' gauges
    are worth a look, for what a dead replica had is free when they show that it has ended. `told` tells other replicas
    of refused clients, where the store has a board.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        core: Driver,
        time: Callable[[], float],
        store: Store,
        told: ToldNews | None = None,
    ) -> None:
        self.told = told
        self._settings, self._core, self._time, self._store = settings, core, time, store
        self._ends_at = inf
        self.on_change: Callable[[LeaseStatus], None] = lambda _status: None
        self.on_lease: Callable[[], None] = lambda: None
        self.on_loss: Callable[[], None] = lambda: None
        self._replicas, self._is_shut = 0, False
        starts_s = _STARTS_FOR * settings.lease_s
        self._policy = FailurePolicy(settings.when_gone)
        self._renewer = LeaseRenewer(
            store,
            settings.replica,
            self._collect,
            self._apply,
            lambda status: self.on_change(status),  # noqa: PLW0108 - it is set later
            time,
            LeaseSettings(starts_s, min(settings.renew_every_s, starts_s / _LEAST_RENEWALS), self._policy),
        )
        self._leased_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Let nothing in until the first lease, and renew from now on."""
        self._core.before_step = self._ended
        self._core.post(LeaseGranted(inf))
        self._task = asyncio.get_running_loop().create_task(self._renewer.run())
        if self.told is not None:
            self.told.start()

    async def leave(self) -> None:
        """Give back what this replica does not use any more, and renew no longer; harmless when never started."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self.told is not None:
            await self.told.leave()
        await self._renewer.leave()
        await self._store.close()

    @property
    def status(self) -> LeaseStatus:
        """The state of the lease, and counts since the start."""
        return self._renewer.status

    @property
    def is_open(self) -> bool:
        """Whether it may admit anything: it has a lease, or its settings leave it a stream without one."""
        return self.status.state is not RenewalState.JOINING and not self._is_shut

    @property
    def readiness(self) -> str:
        """The state for the readiness page, with the reason where it is degraded."""
        status = self.status
        if status.state is RenewalState.DEGRADED:
            return f"degraded: {status.reason}; {_POLICY_WORDS[self._policy_in_force]}"
        return status.state.value

    @property
    def _policy_in_force(self) -> FailurePolicy:
        """The policy as it acts here: a share of nothing is `closed`."""
        return FailurePolicy.CLOSED if self._is_shut else self._policy

    def words(self) -> str:
        """Return what is wrong with the cluster, in words; nothing where all is well."""
        status = self.status
        if status.state is RenewalState.DEGRADED:
            return f"the cluster's store grants no lease ({status.reason}), {_POLICY_WORDS[self._policy_in_force]}"
        if status.state is RenewalState.JOINING:
            return "not in the cluster yet, nothing is let in"
        return ""

    def snapshot(self) -> ClusterSnapshot:
        """Return the lease and its renewals as they are now."""
        now, status = self._time(), self.status
        failed = status.failures + status.fenced
        return ClusterSnapshot(
            self._settings.replica,
            status.state.value,
            status.state in {RenewalState.DEGRADED, RenewalState.JOINING},
            now - status.since,
            status.replicas,
            status.renewals - failed,
            failed,
            None if self._leased_at is None else now - self._leased_at,
            "" if status.state is RenewalState.LEASED else status.reason,
        )

    def _collect(self) -> Shared:
        use = self._core.shared_use()
        return Shared(holdings_of(use), lines_of(use))

    def _apply(self, leased: Leased) -> None:
        if leased.state is RenewalState.LEASED:
            self._leased_at = self._time()
            if leased.replicas < self._replicas:
                self.on_loss()
            self._replicas = leased.replicas
        is_alone = leased.state is RenewalState.DEGRADED
        replicas = 1 if is_alone and self._policy is FailurePolicy.OPEN else leased.replicas
        self._ends_at = leased.ends_at
        until = MonotonicClock.now() + leased.ends_at - self._time()
        lease = lease_of(leased.shares, replicas, until, leased.lines)
        self._is_shut = is_alone and not any(each.streams for each in lease.engines)
        self._core.post(lease._replace(closed=self._is_shut))
        if leased.state is RenewalState.LEASED:
            self.on_lease()

    def _ended(self) -> LeaseGranted | None:
        """Return the end of a lease that the core does not know to be over, once."""
        if self._time() < self._ends_at:
            return None
        self._ends_at = inf
        return LeaseGranted(inf, self._replicas)
