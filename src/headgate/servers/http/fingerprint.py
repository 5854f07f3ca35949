"""Recognising a request that comes back, by a keyed digest: without the process's key it says nothing."""

from hashlib import blake2b

_HEAD_BYTES = 1024
_TAIL_BYTES = 3072
"""A conversation's newest turn is at the end: the tail tells requests apart, the head tells users apart."""


def fingerprint(secret: bytes, tenant: str, size_bytes: int, body: bytes) -> int:
    """Return 64 bits that equal requests of one tenant share; about 1.5 us.

    `body` is the whole body of `size_bytes`, or what `ends` has kept of it.
    """
    digest = blake2b(b"%b\0%d\0" % (tenant.encode(), size_bytes), digest_size=8, key=secret)
    digest.update(body[:_HEAD_BYTES])
    digest.update(body[-_TAIL_BYTES:])
    return int.from_bytes(digest.digest(), "big")


def ends(body: bytes) -> bytes:
    """Return all of a body that `fingerprint` looks at: a request that runs need not keep the rest."""
    if len(body) <= _HEAD_BYTES + _TAIL_BYTES:
        return body
    return body[:_HEAD_BYTES] + body[-_TAIL_BYTES:]
