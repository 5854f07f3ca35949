"""Recognising a request that comes back, by a keyed digest: without the process's key it says nothing."""

from hashlib import blake2b

_HEAD_BYTES = 1024
_TAIL_BYTES = 3072
"""A conversation's newest turn is at the end: the tail tells requests apart, the head tells users apart."""


def fingerprint(secret: bytes, tenant: str, size_bytes: int, body: bytes) -> int:
    """Return 64 bits that equal requests of one tenant share; 1 us, and 1.3 us for each kilobyte looked at.

    `body` is the whole body of `size_bytes`, or what `ends` has kept of it.
    """
    named = b"%b\0%d\0%b" % (tenant.encode(), size_bytes, ends(body))
    return int.from_bytes(blake2b(named, digest_size=8, key=secret).digest(), "big")


def ends(body: bytes) -> bytes:
    """Return all of a body that `fingerprint` looks at: a request that runs need not keep the rest."""
    if len(body) <= _HEAD_BYTES + _TAIL_BYTES:
        return body
    return body[:_HEAD_BYTES] + body[-_TAIL_BYTES:]
