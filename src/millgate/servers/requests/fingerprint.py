"""Recognising a request that comes back, by a keyed hash: without the process's key it says nothing."""

from typing import Final

# So many bits fit in what CPython computes with without an allocation.
_MASK: Final = (1 << 60) - 1
_HEAD_BYTES: Final = 1024
_TAIL_BYTES: Final = 3072
"""A conversation's newest turn is at the end: the tail tells requests apart, the head tells users apart."""


def fingerprint(secret: bytes, tenant: str, size_bytes: int, body: bytes) -> int:
    """Return 60 bits that equal requests of one tenant share.

    SipHash-1-3 (Aumasson and Bernstein 2012), which is how CPython hashes bytes, under the interpreter's key and
    `secret`; keyed BLAKE2b takes five times as long. `body` is the whole body of `size_bytes`, or what `ends` has kept of
    it.
    """
    return hash(b"%b%b\0%d\0%b" % (secret, tenant.encode(), size_bytes, ends(body))) & _MASK


def ends(body: bytes) -> bytes:
    """Return all of a body that `fingerprint` looks at: a request that runs need not keep the rest."""
    if len(body) <= _HEAD_BYTES + _TAIL_BYTES:
        return body
    return body[:_HEAD_BYTES] + body[-_TAIL_BYTES:]


class KeptBody:
    """A request's body as long as it may have to be sent (again), and what recognises the request after that."""

    def __init__(self, data: bytes) -> None:
        self.data = self._remembered = data
        self._size_bytes = len(data)

    def drop(self) -> bool:
        """Keep only what the fingerprint needs; return whether that is less than the whole."""
        self.data = b""
        self._remembered = ends(self._remembered)
        return self._size_bytes > len(self._remembered)

    def fingerprint(self, secret: bytes, tenant: str) -> int:
        """Return what the request is recognised by when it comes back."""
        return fingerprint(secret, tenant, self._size_bytes, self._remembered)
