"""The replica's side: renews everything that it shares, in time, and says what holds when the store does not answer.

The renewer asks on its own, beside the requests: none of them waits for the store. A lease is counted from before its
renewal was sent, so it ends here before it ends in the store. An answer that lowers a share is confirmed sooner than
the next renewal is due, for others get what it lowered only then; and a replica that has less than it wants asks
sooner, for others may have given some up. So does one whose renewal was lost, once: a store that is gone is not asked
more often for it.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from math import ceil
from typing import Final, NamedTuple

from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    Kind,
    LeasedShare,
    Line,
    Renewal,
    Store,
    StoreUnavailableError,
    comes_whole,
    share_key,
)

LEASE_S: Final = 2.0
RENEWAL_S: Final = 0.25
_PATIENT: Final = (share_key(Kind.TENANT), share_key(Kind.RETRIES))
# What an answer lowers is confirmed, and what it lacks or what was lost is asked for again, after this part of the pause.
_SOONER: Final = 0.2
# No store takes a part of the lease that is so large to fail: each call has a timeout.
_STANDSTILL: Final = 0.5


class FailurePolicy(StrEnum):
    """What a replica may use without a lease: its share as it was or an even one, nothing, or everything."""

    SHARE = "share"
    CLOSED = "closed"
    OPEN = "open"


class RenewalState(StrEnum):
    """No lease yet; leases that are renewed; leases that are not, and still last; none, and the policy holds; given back."""

    JOINING = "joining"
    LEASED = "leased"
    HOLDING = "holding"
    DEGRADED = "degraded"
    LEFT = "left"


class Shared(NamedTuple):
    """What this replica tells of itself at one instant."""

    holdings: tuple[Holding, ...]
    lines: tuple[Line, ...] = ()


class Leased(NamedTuple):
    """What this replica may use from now on, until `ends_at` in monotonic seconds (infinite by policy), and what others have in line."""

    state: RenewalState
    shares: tuple[LeasedShare, ...]
    ends_at: float
    replicas: int
    lines: tuple[Line, ...] = ()


class LeaseStatus(NamedTuple):
    """The state for readiness, metrics and page: since when, why, and counts since the start."""

    state: RenewalState
    since: float
    reason: str
    replicas: int
    renewals: int
    failures: int
    fenced: int


class LeaseSettings(NamedTuple):
    """How long a lease lasts, how often it is renewed, and what holds without one.

    `replicas` is how many there are, for a start while the store does not answer; where it is 0, SHARE starts with nothing.
    """

    lease_s: float = LEASE_S
    renewal_s: float = RENEWAL_S
    policy: FailurePolicy = FailurePolicy.SHARE
    replicas: int = 0


class LeaseRenewer:
    """Keeps one replica's leases, from `run` to `leave`.

    `collect` says what it uses and wants now. `apply` takes over what it may use, and has done so when it returns; it
    is called at every answer, when a lease has ended without one, and when the epoch ends. `changed` hears of each
    change of state, for one line in the log. What `apply` got holds until its `ends_at` and not longer, also where this
    renewer is late. `replica` names this run of this process. `clock` gives monotonic seconds. ValueError where a lease
    is shorter than four pauses between renewals.
    """

    def __init__(
        self,
        store: Store,
        replica: str,
        collect: Callable[[], Shared],
        apply: Callable[[Leased], None],
        changed: Callable[[LeaseStatus], None],
        clock: Callable[[], float],
        settings: LeaseSettings = LeaseSettings(),  # noqa: B008 - a frozen record
    ) -> None:
        if settings.lease_s < 4 * settings.renewal_s:
            raise ValueError("a lease lasts for four pauses between renewals at least")
        self._store, self._replica, self._settings = store, replica, settings
        self._collect, self._apply, self._changed, self._clock = collect, apply, changed, clock
        self._epoch = self._applied = 0
        self._shares: dict[str, float] = {}
        self._last_shares: dict[str, float] | None = None
        self._ends_at = self._asked_at = clock()
        self.pause_s = 0.0
        """How long until the next renewal, from the end of the last."""
        self._asks_again = False
        self.status = LeaseStatus(RenewalState.JOINING, clock(), "no answer yet", 0, 0, 0, 0)
        """The state now, and counts since the start."""

    async def run(self) -> None:
        """Renew until cancelled; what goes wrong beside the store is a renewal that failed, too, named by its type alone."""
        loop = asyncio.get_running_loop()
        while True:
            end = loop.call_later(self._ends_at - self._clock(), self._end)
            try:
                await self.renew()
            except Exception as problem:  # noqa: BLE001 - a renewer that ended would leave its replica without a lease for good
                self._failed(StoreUnavailableError(f"the renewal failed: {type(problem).__name__}"))
            finally:
                end.cancel()
            await asyncio.sleep(self.pause_s)

    async def renew(self) -> None:
        """Renew once; a replica whose epoch has ended joins anew at once."""
        self.pause_s = self._settings.renewal_s
        try:
            await self._ask()
        except FencedError as ended:
            self._fenced(ended)
            try:
                await self._ask()
            except (FencedError, StoreUnavailableError) as problem:
                self._failed(problem)
        except StoreUnavailableError as problem:
            self._missed(problem)

    async def leave(self) -> None:
        """Report what is still in use once more, and give back the rest; call it when `run` has ended and nothing new starts."""
        reason = "given back"
        try:
            await self._ask()
            await self._store.leave(self._replica, self._epoch)
        except (FencedError, StoreUnavailableError) as problem:
            reason = f"not given back, the leases end by themselves: {problem}"
        self._enter(RenewalState.LEFT, reason)

    async def _ask(self) -> None:
        sent_at = self._asked_at = self._clock()
        shared = self._collect()
        holdings = tuple(each._replace(held=self._held(each.key, sent_at)) for each in shared.holdings)
        renewal = Renewal(
            self._replica, self._epoch, self._applied, self._settings.lease_s, holdings, shared.lines
        )
        self.status = self.status._replace(renewals=self.status.renewals + 1)
        granted = await self._store.renew(renewal)
        self._take(granted, sent_at)
        # What a tenant lacks for whom no client is held, or retries, is worth no renewal of its own.
        pressing = [each for each in holdings if each.waits_s or not each.key.startswith(_PATIENT)]
        wanted = {each.key: each.wanted for each in pressing}
        if any(share.amount < wanted.get(share.key, 0.0) for share in granted.shares):
            self.pause_s = min(self.pause_s, self._settings.renewal_s * _SOONER)

    def _end(self) -> None:
        """Do without a lease that has ended; where this process was stopped meanwhile, the answer may well be there."""
        late_s, has_lease = self._clock() - self._ends_at, {RenewalState.LEASED, RenewalState.HOLDING}
        if self.status.state in has_lease and late_s <= _STANDSTILL * self._settings.lease_s:
            self._do_without("no answer came before the lease ended")

    def _missed(self, problem: StoreUnavailableError) -> None:
        """Do without an answer; where this process itself was stopped while it asked the store may well answer, and is asked again, once."""
        stood_still = self._clock() - self._asked_at > _STANDSTILL * self._settings.lease_s
        self._asks_again = stood_still and not self._asks_again
        if self._asks_again:
            self.pause_s = 0.0
        else:
            self._failed(problem)

    def _held(self, key: str, now: float) -> float:
        holds = now < self._ends_at or self.status.state is RenewalState.DEGRADED
        return self._shares.get(key, 0.0) if holds else 0.0

    def _take(self, granted: Granted, sent_at: float) -> None:
        """Take an answer over; one that comes after its lease has ended grants nothing any more."""
        now = self._clock()
        shares = {share.key: share.amount for share in granted.shares}
        self.status = self.status._replace(replicas=granted.replicas)
        self._epoch = granted.epoch
        ends_at = sent_at + granted.lease_s
        if now >= ends_at:
            self._failed(StoreUnavailableError("the answer came after the lease that it grants"))
            return
        if any(amount < self._shares.get(key, 0.0) for key, amount in shares.items()):
            self.pause_s = self._settings.renewal_s * _SOONER
        self._shares = self._last_shares = shares
        self._ends_at = ends_at
        self._apply(Leased(RenewalState.LEASED, granted.shares, ends_at, granted.replicas, granted.lines))
        self._applied = granted.number
        self._enter(RenewalState.LEASED, "leases are renewed")

    def _fenced(self, ended: FencedError) -> None:
        """Stop using the shares: others may have them."""
        self.status = self.status._replace(fenced=self.status.fenced + 1)
        none = tuple(LeasedShare(key, 0.0) for key in self._shares)
        self._epoch, self._shares, self._last_shares, self._ends_at = 0, {}, {}, self._clock()
        self._apply(Leased(RenewalState.JOINING, none, float("inf"), self.status.replicas))
        self._enter(RenewalState.JOINING, str(ended))

    def _failed(self, problem: Exception) -> None:
        """Keep the last shares while their lease lasts, then what the policy says."""
        now, reason = self._clock(), str(problem)
        self.status = self.status._replace(failures=self.status.failures + 1)
        if now < self._ends_at:
            if self.status.state is RenewalState.LEASED:
                self.pause_s = self._settings.renewal_s * _SOONER
            # The policy takes over on time, not a pause later.
            self.pause_s = min(self.pause_s, self._ends_at - now)
            self._enter(RenewalState.HOLDING, reason)
        else:
            self._do_without(reason)

    def _do_without(self, reason: str) -> None:
        """Use what the policy says."""
        self._shares = {each.key: self._by_policy(each) for each in self._collect().holdings}
        shares = tuple(LeasedShare(key, amount) for key, amount in self._shares.items())
        self._apply(Leased(RenewalState.DEGRADED, shares, float("inf"), self.status.replicas))
        self._enter(RenewalState.DEGRADED, reason)

    def _by_policy(self, holding: Holding) -> float:
        """Return what a replica without a lease may use; by SHARE never more than its last share, and nothing after it was fenced.

        Last shares add up to the whole at most. So below its own a replica rounds the even one up, or three would have none of two streams.
        """
        if self._settings.policy is FailurePolicy.OPEN:
            return holding.whole
        if self._settings.policy is FailurePolicy.CLOSED:
            return 0.0
        amount = self._even_share(holding)
        if self._last_shares is None:
            return float(int(amount)) if comes_whole(holding.key) else amount
        if comes_whole(holding.key):
            amount = float(ceil(amount))
        return min(amount, self._last_shares.get(holding.key, 0.0))

    def _even_share(self, holding: Holding) -> float:
        replicas = self.status.replicas or self._settings.replicas
        return holding.whole / replicas if replicas else 0.0

    def _enter(self, state: RenewalState, reason: str) -> None:
        before = self.status
        since = before.since if state is before.state else self._clock()
        self.status = before._replace(state=state, since=since, reason=reason)
        if state is not before.state:
            self._changed(self.status)
