"""Failed authentications by peer: a few are a mistake, many are a search, and the table is bounded.

The limit saves work and log lines. What keeps a key safe is its 256 bits, so a good key passes whatever others
behind the same address do.
"""

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

MOST_FAILURES: Final = 30
WINDOW_S: Final = 60.0
"""Thirty a minute: a client with a wrong key retries at most three times a second, a user that mistypes less."""
MOST_PEERS: Final = 4096
_SITE_BITS: Final = 64
"""An IPv6 client owns 64 bits of addresses; counting each would count nothing."""


class Guesses:
    """Counts failures in windows of a minute that begin with the first; the longest known peer is forgotten first."""

    def __init__(self, most_peers: int = MOST_PEERS) -> None:
        self._most_peers = most_peers
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def wait_s(self, peer: str, now: float) -> float:
        """Return for how many seconds this peer's failures are too many, 0 for one that may try; notes nothing."""
        since, count = self._windows.get(site_of(peer), (now, 0))
        return max(0.0, since + WINDOW_S - now) if count >= MOST_FAILURES else 0.0

    def failed(self, peer: str, now: float) -> float:
        """Note a failure; return 0, or for how many seconds this peer's failures are too many."""
        site = site_of(peer)
        since, count = self._windows.get(site, (now, 0))
        if now - since >= WINDOW_S:
            since, count = now, 0
            self._windows.pop(site, None)
        elif site not in self._windows and len(self._windows) >= self._most_peers:
            self._windows.popitem(last=False)
        self._windows[site] = (since, count + 1)
        return 0.0 if count < MOST_FAILURES else since + WINDOW_S - now


@lru_cache(maxsize=1024)
def site_of(peer: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> (128 - _SITE_BITS):x}::/64"
