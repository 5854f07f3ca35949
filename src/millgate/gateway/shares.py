"""What the core and the cluster tell each other: uses become holdings, and granted shares an event for the core."""

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from millgate.cluster.contract import Holding, Kind, LeasedShare, Line, share_key
from millgate.core.events import AccountShare, EngineShare, LeaseGranted, OthersLine, QuotaShare, TenantShare
from millgate.core.snapshot import SharedUse

_Names = tuple[str, ...]


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
