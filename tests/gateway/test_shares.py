"""What core and cluster tell each other, there and back."""

from millgate.cluster.contract import Holding, LeasedShare, Line
from millgate.core.events import (
    AccountShare,
    EngineShare,
    LeaseGranted,
    OthersLine,
    QuotaShare,
    TenantShare,
)
from millgate.core.snapshot import PoolLine, SharedNumber, SharedUse
from millgate.gateway.cluster import holdings_of, lease_of, lines_of

_USE = SharedUse(
    (
        SharedNumber("streams", ("gpu/0",), 16, 3, 7, 1, 4.5, 9, 0.2),
        SharedNumber("kv", ("gpu/0",), 1000, 300, 700, 100),
        SharedNumber("rate", ("a: b",), 10.0, 0.0, 5.0, 0.0),
        SharedNumber("burst", ("a: b",), 600.0, 0.0, 600.0, 1.0),
        SharedNumber("account_rate", ("cloud", "rpm"), 2.0, 0.0, 1.0, 0.0),
        SharedNumber("account_burst", ("cloud", "rpm"), 120.0, 0.0, 120.0, 1.0),
        SharedNumber("tenant", ("acme: x/y",), 7, 1, 3, 1, 4.5),
        SharedNumber("retries", ("all",), 9.5, 1, 3, 0.0, 10.0),
    ),
    (PoolLine("gpu/0", 4, 8.0),),
)


def test_a_use_is_a_holding_under_the_number_s_key() -> None:
    first = holdings_of(_USE)[0]
    assert first == Holding("streams:gpu%2F0", 16, 3, 7, 1, 4.5, 9, 0.2)
    assert lines_of(_USE) == (Line("gpu/0", 4, 8.0),)


def test_granted_shares_name_the_same_numbers_again() -> None:
    shares = [LeasedShare(each.key, each.whole / 2.0) for each in holdings_of(_USE)]
    assert lease_of(shares, 2, 7.0) == LeaseGranted(
        7.0,
        2,
        (EngineShare("gpu/0", 8, 500, None),),
        (QuotaShare("a: b", 5.0, 300.0),),
        (AccountShare("cloud", (QuotaShare("rpm", 1.0, 60.0),)),),
        tenants=(TenantShare("acme: x/y", 3),),
        retries=4,
    )


def test_without_shares_nothing_is_leased() -> None:
    assert lease_of([], 3, 1.0) == LeaseGranted(1.0, 3)


def test_the_lines_of_others_come_along() -> None:
    granted = lease_of([], 2, 1.0, [Line("gpu/0", 4, 8.0)])
    assert granted.lines == (OthersLine("gpu/0", 4, 8.0),)
