"""The store in Redis: one script, one round trip for everything that a replica shares, on Redis' own time; and a board by another one.

The script is kept by the server under its hash; a server that lost it (restart, SCRIPT FLUSH) gets it again. No request waits for
Redis: only the renewer asks, and each call ends after `timeout_s`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator
from hashlib import sha1
from importlib.resources import files
from time import time
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from millgate.cluster.connect import RedisClient
from millgate.cluster.contract import (
    KEPT_S,
    BoardRefusedError,
    FencedError,
    Granted,
    Heard,
    Holding,
    LeasedShare,
    Line,
    Renewal,
    StoreUnavailableError,
    comes_whole,
)

TIMEOUT_S: Final = 0.05
CONNECT_TIMEOUT_S: Final = 0.5
"""A first connection may take so long: it looks up names, asks Sentinels, and shakes hands for TLS."""
PROBE_PAUSE_S: Final = 0.5
MOST_KEPT: Final = 5_000
"""Entries of the board, of some 4 kB at most. Four replicas that each say something in every 50 ms have a minute of it."""
_MOST_READ: Final = 100
FAILURES_TO_OPEN: Final = 3
"""One lost call of ten (row 53 of the faults) opens a breaker of three once in a thousand calls."""
# The first whose type the error has; the texts name what to look at, and never what was sent.
_TEXTS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...]] = (
    (redis_errors.ReadOnlyError, "Redis is a read-only replica: name the primary, or use Sentinel"),
    (redis_errors.OutOfMemoryError, "Redis is out of memory (maxmemory)"),
    (
        redis_errors.NoPermissionError,
        "Redis' ACL user lacks the right to a command, or to a key",
    ),
    (MasterNotFoundError, "no Sentinel names a primary: look at them, the service's name and the password"),
    (redis_errors.AuthenticationError, "Redis wants the right user and password"),
    (redis_errors.MovedError, "Redis is a Cluster: use redis+cluster://"),
    (redis_errors.MasterDownError, "Redis' link to its primary is down"),
    (redis_errors.ClusterDownError, "the Redis Cluster is down"),
    (redis_errors.BusyLoadingError, "Redis is loading its data"),
    ((redis_errors.TimeoutError, TimeoutError), "Redis did not answer in time"),
    (ssl.SSLCertVerificationError, "Redis' certificate is not trusted (`cluster.ca`), or another host's"),
    (ssl.SSLError, "Redis does not speak TLS here, or no version of ours"),
    (socket.gaierror, "the name of Redis has no address"),
    (redis_errors.RedisClusterException, "no node of the Redis Cluster can be reached"),
    (redis_errors.ConnectionError, "Redis cannot be reached"),
    (redis_errors.ResponseError, "Redis cannot run the script"),
    (redis_errors.RedisError, "Redis cannot be asked"),
    (OSError, "Redis cannot be reached"),
)
# How refusals begin that the client has no type for.
_BEGINNINGS: Final = {
    "DB index": "Redis has no database of this number",
    "This instance has cluster support disabled": "this Redis is no Cluster: use redis://",
    "unknown command 'SENTINEL'": "this Redis is no Sentinel: use redis://",
    "The user executing the script": "Redis' ACL user may not run the commands of the script",
    "MISCONF": "Redis cannot save its data, and refuses to write",
    "BUSY": "Redis is busy with another script",
    "NOREPLICAS": "Redis has too few replicas to write",
}
_ERRORS: Final = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)
# After these the next call connects anew.
_CUT_OFF: Final = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.RedisClusterException,
    OSError,
)


def read_script(name: str = "ledger") -> str:
    """Return the ledger, or the board, in Lua."""
    return (files("millgate.cluster") / "scripts" / f"{name}.lua").read_text("utf-8")


class _Script:
    """A script with the hash by which the server knows it, and the one key that it is about."""

    def __init__(self, text: str, key: str) -> None:
        self.text, self.key = text, key
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """Keeps the leases of the cluster `name` in one hash of Redis, and its board in one stream; `clock` gives monotonic seconds.

    A client reads its authorities once. `anew` makes another one when TLS has failed: they may be others on the disk by then.
    """

    def __init__(
        self,
        client: RedisClient,
        name: str,
        clock: Callable[[], float],
        *,
        timeout_s: float = TIMEOUT_S,
        script: str | None = None,
        anew: Callable[[], RedisClient] | None = None,
    ) -> None:
        self._client = client
        self._anew = anew
        # Braces: Cluster takes the slot of the name between them.
        self._ledger = _Script(script or read_script(), f"millgate:{{{name}}}:leases")
        self._board = _Script(read_script("board"), f"millgate:{{{name}}}:told")
        self._timeout_s = timeout_s
        self._clock = clock
        self._ahead_s = time() - clock()
        self._breaker = StoreBreaker(clock, PROBE_PAUSE_S)
        self._is_connected = False
        self._problem = ""  # of the last call: it is so until the next one

    def now(self) -> float:
        """Return the time that all replicas have in common, in seconds since 1970: that of Redis, and this machine's until Redis has said it."""
        return self._clock() + self._ahead_s

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew this replica's leases; StoreUnavailableError when they cannot be, FencedError when they have ended."""
        sent_at = self._clock()
        reply = await self._call(
            "renew",
            renewal.replica,
            renewal.epoch,
            renewal.applied,
            renewal.lease_s,
            len(renewal.holdings),
            len(renewal.lines),
            *(field for holding in renewal.holdings for field in _fields(holding)),
            *(field for line in renewal.lines for field in line),
        )
        if reply[0] == "fenced":
            raise FencedError(reply[1])
        if reply[0] == "unavailable":
            raise StoreUnavailableError(reply[1])
        try:
            self._hear(float(reply[1]), sent_at)
            return _granted(renewal, reply)
        except (ValueError, IndexError, RuntimeError):  # the last is what becomes of a StopIteration within
            raise StoreUnavailableError("Redis gives an answer that this version does not know") from None

    def _hear(self, told: float, sent_at: float) -> None:
        """Note Redis' time, which was read after `sent_at` and before now; what is known changes only where it cannot be so."""
        self._ahead_s = min(max(self._ahead_s, told - self._clock()), told - sent_at)

    async def leave(self, replica: str, epoch: int) -> None:
        """Give back everything that this replica does not use; of an epoch that has ended, nothing."""
        await self._call("leave", replica, epoch)

    async def exchange(self, replica: str, said: bytes, place: str) -> Heard:
        """Put up what is `said` and return what others have said since (`Board`); the leases' breaker says whether Redis is asked at all."""
        if self._breaker.is_open or not self._is_connected:
            raise StoreUnavailableError(self._problem)
        asked = replica, said, place or "0", str(MOST_KEPT), str(_MOST_READ), str(int(KEPT_S * 1000))
        try:
            found = await _within(self._timeout_s, self._evaluate(self._board, asked))
        except _ERRORS as problem:
            is_answer = isinstance(problem, redis_errors.ResponseError)
            kind = BoardRefusedError if is_answer else StoreUnavailableError
            raise kind(_text(_causes(problem))) from problem
        return Heard(tuple(found[1:]), found[0].decode())

    async def close(self) -> None:
        """End the connections; leases stay until they end."""
        await self._client.aclose()

    async def _call(self, *arguments: str | float) -> list[str]:
        if not self._breaker.allows():
            raise StoreUnavailableError(self._problem)
        try:
            reply = await _within(
                self._timeout_s if self._is_connected else max(self._timeout_s, CONNECT_TIMEOUT_S),
                self._evaluate(self._ledger, [str(each) for each in arguments]),
            )
        except _ERRORS as problem:
            self._breaker.failed()
            self._is_connected = not isinstance(problem, _CUT_OFF)
            causes = _causes(problem)
            self._problem = _text(causes)
            if self._anew is not None and any(isinstance(each, ssl.SSLError) for each in causes):
                lost, self._client = self._client, self._anew()
                await lost.aclose()
            raise StoreUnavailableError(self._problem) from problem
        self._breaker.succeeded()
        self._is_connected = True
        return [each.decode() if isinstance(each, bytes) else str(each) for each in reply]

    async def _evaluate(self, script: _Script, arguments: Iterable[str | bytes]) -> list[Any]:
        try:
            found: list[Any] = await self._client.evalsha(script.sha, 1, script.key, *arguments)
        except redis_errors.NoScriptError:
            found = await self._client.eval(script.text, 1, script.key, *arguments)
        return found


class StoreBreaker:
    """Asks a store that does not answer once in a while, not at every renewal.

    It opens after three failures in a row; then one call in `pause_s` may pass, until one succeeds. `clock` gives
    monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._failures = 0
        self._next_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are held back."""
        return self._failures >= FAILURES_TO_OPEN

    def allows(self) -> bool:
        """Return whether a call may be made now; an open breaker allows one, and the next a pause later."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_at:
            return False
        self._next_at = now + self._pause_s
        return True

    def succeeded(self) -> None:
        """Close it."""
        self._failures = 0

    def failed(self) -> None:
        """Count a failure; the third in a row opens it."""
        self._failures += 1
        if self._failures == FAILURES_TO_OPEN:
            self._next_at = self._clock() + self._pause_s


async def _within(timeout_s: float, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Return what comes of this in time, TimeoutError where nothing does.

    It runs as a task of its own and is not waited for when it is late: the client has timeouts of its own inside, and a
    cancellation that meets one of those may be lost, or outlive the call. Either would end the renewals of this
    replica.
    """
    call = asyncio.ensure_future(work)
    # Its end is looked at, so that the loop reports none that was given up.
    call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.wait((call,), timeout=timeout_s)
    finally:
        is_late = not call.done()
        call.cancel()
    if is_late or call.cancelled():
        raise TimeoutError
    return call.result()


def _fields(holding: Holding) -> Iterable[str | float]:
    whole, used, wanted, floor, lingers_s = holding[1:6]
    seen = "" if holding.seen is None else holding.seen
    is_whole = int(comes_whole(holding.key))
    return (
        holding.key,
        whole,
        used,
        wanted,
        floor,
        lingers_s,
        seen,
        holding.seen_age_s,
        holding.waits_s,
        holding.held,
        is_whole,
    )


def _granted(renewal: Renewal, reply: list[str]) -> Granted:
    epoch, number, replicas, count = (int(each) for each in reply[2:6])
    rest = iter(reply[6:])
    shares = tuple(LeasedShare(next(rest), float(next(rest))) for _ in range(count))
    return Granted(epoch, number, renewal.lease_s, replicas, shares, tuple(_lines(rest)))


def _lines(rest: Iterator[str]) -> Iterator[Line]:
    for pool in rest:
        yield Line(pool, int(next(rest)), *(float(next(rest)) for _ in range(3)))


def _causes(problem: Exception) -> list[BaseException]:
    """Return it with what it comes from: the client's own error says less of a connection that failed."""
    causes: list[BaseException] = [problem]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return causes


def _text(causes: list[BaseException]) -> str:
    """Return what is the matter, for operators; nothing that was sent or received is in it."""
    for each in causes:
        for beginning, text in _BEGINNINGS.items():
            if isinstance(each, redis_errors.ResponseError) and str(each).startswith(beginning):
                return text
    return next(text for kind, text in _TEXTS if any(isinstance(each, kind) for each in causes))
