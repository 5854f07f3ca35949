"""Real Redis servers that fail (rows 52 to 59 of the faults): a clear text without secrets, no long wait, and leases again afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import copyfile

import pytest
import trustme
from redis import Redis

from cluster.asker import RATE, STREAMS, Asker
from cluster.redis_server import RedisServer
from millgate.cluster.connect import PASSWORD_ENV, USERNAME_ENV, connect, read_address
from millgate.cluster.contract import FencedError, StoreUnavailableError
from millgate.cluster.redis_store import RedisStore
from own_authority import make_default_contexts_strict, plain_authority
from ports import free_port

Start = Callable[..., RedisServer]
_LEAST_RIGHTS = (
    "--user",
    "default",
    "off",
    "--user",
    # Scripts, and what the scripts do, on the keys of the cluster; the first word of a connection.
    *["gate", "on", ">s3cret", "~millgate:*", "resetchannels", "-@all"],
    *["+evalsha", "+eval", "+hgetall", "+hset", "+hdel", "+pexpire", "+time"],
    *["+xadd", "+xread", "+hello", "+auth"],
)


@asynccontextmanager
async def _asker(url: str, *, ca_file: str | None = None, **environment: str) -> AsyncIterator[Asker]:
    anew = partial(connect, read_address(url, environment, ca_file), 0.5)
    store = RedisStore(anew(), "test", time.monotonic, timeout_s=0.2, anew=anew)
    try:
        yield Asker(store)
    finally:
        await store.close()


def _works(url: str, *, ca_file: str | None = None, **environment: str) -> None:
    async def ask() -> None:
        async with _asker(url, ca_file=ca_file, **environment) as asker:
            await asker.until_whole()
            assert asker.granted is not None
            await asker.store.leave(asker.name, asker.granted.epoch)

    asyncio.run(ask())


def _refuses(url: str, *, ca_file: str | None = None, **environment: str) -> str:
    async def ask() -> str:
        async with _asker(url, ca_file=ca_file, **environment) as asker:
            return await asker.refusal()

    return asyncio.run(ask())


def _lives(url: str, story: Callable[[Asker], Coroutine[object, object, None]]) -> None:
    async def live() -> None:
        async with _asker(url) as asker:
            await asker.until_whole()
            await story(asker)

    asyncio.run(live())


# Row 52: down at the start, later, refused.


def test_a_server_that_is_down_is_told_and_used_when_it_is_up(start_redis: Start) -> None:
    port = free_port()
    assert _refuses(f"redis://:s3cret@127.0.0.1:{port}") == "Redis cannot be reached"

    start_redis(port=port)
    _works(f"redis://127.0.0.1:{port}")


def test_a_killed_server_that_starts_again_without_its_data(start_redis: Start) -> None:
    server = start_redis()

    async def story(asker: Asker) -> None:
        server.kill()
        assert "Redis" in await asker.refusal()
        server.start()
        await asker.until_whole()

    _lives(server.url, story)


# Row 53: frozen.


def test_a_frozen_server_costs_a_timeout_then_the_breaker_nothing_and_leases_go_on(
    start_redis: Start,
) -> None:
    server = start_redis()

    async def story(asker: Asker) -> None:
        server.stop()
        texts = [await asker.refusal() for _ in range(4)]
        assert texts[0] == "Redis did not answer in time"
        asked = time.monotonic()
        assert await asker.refusal() == texts[-1] == "Redis did not answer in time"
        assert time.monotonic() - asked < 0.05
        await asyncio.sleep(1.5)
        server.go_on()
        await asker.until_whole()

    _lives(server.url, story)


# Row 55: the state is lost.


def test_after_flushall_a_replica_keeps_what_it_holds_and_a_new_one_waits_for_a_lease(
    start_redis: Start,
) -> None:
    server = start_redis()

    async def story(asker: Asker) -> None:
        Redis(port=server.port).flushall()
        newcomer = Asker(asker.store, "two")
        await newcomer.renew()
        await asker.renew()
        assert newcomer.share(STREAMS) == 1.0
        assert asker.share(STREAMS) == 8.0
        for _ in range(14):
            await asyncio.sleep(0.1)
            await asker.renew()
            await newcomer.renew()
        assert asker.share(STREAMS) == newcomer.share(STREAMS) == 8.0

    _lives(server.url, story)


# Row 56: the script is forgotten or forbidden; a replica; no memory; no password.


def test_a_forgotten_script_is_sent_again(start_redis: Start) -> None:
    server = start_redis()

    async def story(asker: Asker) -> None:
        Redis(port=server.port).script_flush()
        await asker.renew()

    _lives(server.url, story)


def test_a_read_only_replica_is_told(start_redis: Start) -> None:
    primary = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(primary.port))

    assert _refuses(replica.url) == "Redis is a read-only replica: name the primary, or use Sentinel"


def test_a_server_without_memory_is_told(start_redis: Start) -> None:
    server = start_redis()

    async def story(asker: Asker) -> None:
        Redis(port=server.port).config_set("maxmemory", "1")
        assert await asker.refusal() == "Redis is out of memory (maxmemory)"
        Redis(port=server.port).config_set("maxmemory", "0")
        await asker.until_whole()

    _lives(server.url, story)


def test_an_operator_who_looks_later_still_reads_that_the_password_is_wrong(start_redis: Start) -> None:
    """The breaker is open by then: what it holds back failed for the reason of the last call."""
    server = start_redis("--requirepass", "s3cret")

    async def ask() -> list[str]:
        async with _asker(f"redis://:wrong@127.0.0.1:{server.port}") as asker:
            return [await asker.refusal() for _ in range(5)]

    assert asyncio.run(ask()) == ["Redis wants the right user and password"] * 5


def test_an_address_of_another_kind_of_redis_is_told(start_redis: Start) -> None:
    place = f"127.0.0.1:{start_redis().port}"
    unused = free_port()

    assert _refuses(f"redis+cluster://{place}") == "this Redis is no Cluster: use redis://"
    assert _refuses(f"redis+cluster://127.0.0.1:{unused}") == "no node of the Redis Cluster can be reached"
    assert _refuses(f"redis+sentinel://{place}/leases") == "this Redis is no Sentinel: use redis://"
    assert _refuses(f"redis://{place}/99") == "Redis has no database of this number"
    assert _refuses("redis://no-such-host.invalid") == "the name of Redis has no address"


def test_a_missing_or_wrong_password_is_told_without_it(start_redis: Start) -> None:
    server = start_redis("--requirepass", "s3cret")

    assert _refuses(server.url) == "Redis wants the right user and password"
    assert _refuses(server.url, **{PASSWORD_ENV: "wr0ng"}) == "Redis wants the right user and password"
    _works(f"redis://:s3cret@127.0.0.1:{server.port}")


def test_a_user_with_the_least_rights_is_enough_and_one_with_less_is_told(start_redis: Start) -> None:
    server = start_redis(*_LEAST_RIGHTS)
    _works(server.url, **{USERNAME_ENV: "gate", PASSWORD_ENV: "s3cret"})
    Redis(port=server.port, username="gate", password="s3cret").close()

    fewer = start_redis("--user", *["gate", "on", ">s3cret", "~other:*", "+@all"])
    text = _refuses(f"redis://gate:s3cret@127.0.0.1:{fewer.port}")

    assert text == "Redis' ACL user lacks the right to a command, or to a key"


def test_a_database_of_another_number_needs_one_right_more(start_redis: Start) -> None:
    server, more = start_redis(*_LEAST_RIGHTS), start_redis(*_LEAST_RIGHTS, "+select")

    text = _refuses(f"redis://gate:s3cret@127.0.0.1:{server.port}/3")

    assert text == "Redis' ACL user lacks the right to a command, or to a key"
    _works(f"redis://gate:s3cret@127.0.0.1:{more.port}/3")


# Row 54: a replica is cut off, and comes back.


class Cut:
    """A TCP proxy that can let nothing through any more, in either direction, without closing anything."""

    def __init__(self, port: int) -> None:
        self.target, self.is_open = port, asyncio.Event()
        self.is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._relay(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                await self.is_open.wait()
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        self.server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def test_a_cut_off_replica_is_fenced_and_what_it_used_stays_out_for_as_long_as_it_may_last(
    start_redis: Start,
) -> None:
    server = start_redis()

    async def live() -> None:
        cut = Cut(server.port)
        port = await cut.start()
        async with _asker(f"redis://127.0.0.1:{port}") as lost, _asker(server.url) as left:
            left.name = "two"
            await lost.until_whole()
            for _ in range(3):
                await lost.renew()
                await left.renew()
            assert (lost.share(STREAMS), left.share(STREAMS)) == (8.0, 8.0)

            cut.is_open.clear()
            assert await lost.refusal() == "Redis did not answer in time"
            for _ in range(13):
                await asyncio.sleep(0.1)
                await left.renew()
            assert (left.share(STREAMS), left.share(RATE)) == (8.0, 10.0)
            cut.is_open.set()
            with pytest.raises(FencedError):
                await _through(lost)
        await cut.close()

    asyncio.run(live())


async def _through(asker: Asker) -> None:
    """Renew until an answer comes through: whatever was on its way comes first."""
    async with asyncio.timeout(5.0):
        while True:
            try:
                await asker.renew()
            except StoreUnavailableError:
                await asyncio.sleep(0.05)


# How Redis is reached.


def _certificates(folder: Path) -> tuple[str, str, str]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    names = tuple(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(names[0])
    certificate.cert_chain_pems[0].write_to_path(names[1])
    certificate.private_key_pem.write_to_path(names[2])
    return names[0], names[1], names[2]


def test_tls_with_an_authority_of_ones_own(start_redis: Start, tmp_path: Path) -> None:
    ca, cert, key = _certificates(tmp_path)
    files = (
        "--tls-cert-file",
        cert,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        ca,
        "--tls-auth-clients",
        "no",
    )
    server = start_redis(*files, tls=True)

    _works(f"rediss://127.0.0.1:{server.port}", ca_file=ca)
    stranger = "Redis' certificate is not trusted (`cluster.ca`), or another host's"
    assert _refuses(f"rediss://127.0.0.1:{server.port}") == stranger
    assert _refuses(f"rediss://localhost:{server.port}", ca_file=ca) == stranger
    assert _refuses(f"rediss+cluster://127.0.0.1:{server.port}") == stranger


def test_an_authority_without_a_key_usage_is_trusted_by_every_python(
    start_redis: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `openssl req -x509` makes it. Redis was not trusted from Python 3.13 on, whose default contexts are strict."""
    ca, cert, key = plain_authority(tmp_path, "127.0.0.1")
    names = ("--tls-ca-cert-file", ca, "--tls-cert-file", cert, "--tls-key-file", key)
    server = start_redis(*names, "--tls-auth-clients", "no", tls=True)
    make_default_contexts_strict(monkeypatch)

    _works(f"rediss://127.0.0.1:{server.port}", ca_file=ca)


def test_an_authority_that_is_changed_on_disk_counts_for_the_next_connection(
    start_redis: Start, tmp_path: Path
) -> None:
    """After a year the authority is another one. Every gate had to be started again, and none had a lease until then."""
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    (ca, *_), (later_ca, *_) = pairs = [_certificates(folder) for folder in folders]

    def serve(pair: tuple[str, str, str], port: int | None = None) -> RedisServer:
        names = ("--tls-ca-cert-file", "--tls-cert-file", "--tls-key-file")
        files = [word for option in zip(names, pair, strict=True) for word in option]
        return start_redis(*files, "--tls-auth-clients", "no", tls=True, port=port)

    async def live() -> None:
        first = serve(pairs[0])
        async with _asker(f"rediss://127.0.0.1:{first.port}", ca_file=ca) as asker:
            await asker.until_whole()
            first.kill()
            serve(pairs[1], first.port)
            assert "not trusted" in await asker.refusal("not trusted")
            copyfile(later_ca, ca)
            await asker.until_whole(anew=True)

    asyncio.run(live())


def test_sentinel_names_the_primary_and_the_next_one(start_redis: Start, tmp_path: Path) -> None:
    primary = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(primary.port))
    sentinel = _start_sentinel(start_redis, tmp_path, primary)
    _await_replica(primary)

    async def live() -> None:
        async with _asker(f"redis+sentinel://127.0.0.1:{sentinel.port}/leases") as asker:
            await asker.until_whole()
            primary.kill()
            await asker.refusal()
            asker.granted = None
            await asyncio.to_thread(_await_role, replica, "master")
            await asker.until_whole()

    asyncio.run(live())


def _start_sentinel(start_redis: Start, folder: Path, primary: RedisServer, more: str = "") -> RedisServer:
    port = free_port()
    (folder / f"sentinel-{port}.conf").write_text(
        f"port {port}\nbind 127.0.0.1\nsentinel monitor leases 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds leases 500\nsentinel failover-timeout leases 2000\n{more}"
    )
    return start_redis(port=port, sentinel=str(folder / f"sentinel-{port}.conf"))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_sentinel_whose_host_is_gone_without_a_word_keeps_no_replica_from_its_lease(
    start_redis: Start, tmp_path: Path, frozen: int
) -> None:
    primary = start_redis()
    sentinels = [_start_sentinel(start_redis, tmp_path, primary) for _ in range(3)]

    sentinels[frozen].stop()

    hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    _works(f"redis+sentinel://{hosts}/leases")
    text = _refuses(f"redis+sentinel://{hosts}/other")
    assert text in {
        "Redis did not answer in time",
        "no Sentinel names a primary: look at them, the service's name and the password",
    }


@pytest.mark.parametrize("own", ["", "requirepass s3cret\n", "requirepass an0ther\n"])
def test_sentinels_that_want_the_password_of_redis_get_it(
    start_redis: Start, tmp_path: Path, own: str
) -> None:
    primary = start_redis("--requirepass", "s3cret")
    sentinel = _start_sentinel(start_redis, tmp_path, primary, f"sentinel auth-pass leases s3cret\n{own}")
    address = f"redis+sentinel://:s3cret@127.0.0.1:{sentinel.port}/leases"

    if "an0ther" in own:
        text = _refuses(address)
        assert text == "no Sentinel names a primary: look at them, the service's name and the password"
    else:
        _works(address)


def _await_role(server: RedisServer, role: str) -> None:
    ends_at = time.monotonic() + 60.0
    while Redis(port=server.port).info("replication")["role"] != role:
        assert time.monotonic() < ends_at
        time.sleep(0.2)


def _await_replica(primary: RedisServer) -> None:
    ends_at = time.monotonic() + 60.0
    client = Redis(port=primary.port)
    while client.info("replication").get("slave0", {}).get("state") != "online":
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def _command(port: int, *words: str) -> bytes:
    answer: bytes = Redis(port=port).execute_command(*words)  # type: ignore[no-untyped-call]
    return answer


def _start_cluster(start_redis: Start, *options: str) -> list[RedisServer]:
    """Start three nodes, each with a third of the slots; the leases of `test` are on the second one."""
    ports = [free_port(with_bus=True) for _ in range(3)]
    nodes = [start_redis("--cluster-enabled", "yes", *options, port=port) for port in ports]
    slots = (range(5500), range(5500, 11000), range(11000, 16384))
    for node, range_ in zip(nodes, slots, strict=True):
        _command(node.port, "CLUSTER", "ADDSLOTSRANGE", str(range_.start), str(range_.stop - 1))
        _command(node.port, "CLUSTER", "MEET", "127.0.0.1", str(ports[0]))
    ends_at = time.monotonic() + 60.0
    while any(b"cluster_state:ok" not in _command(port, "CLUSTER", "INFO") for port in ports):
        assert time.monotonic() < ends_at
        time.sleep(0.1)
    return nodes


def test_a_cluster_of_three(start_redis: Start) -> None:
    ports = [node.port for node in _start_cluster(start_redis)]

    _works(f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    texts = {_refusal_or_none(f"redis://127.0.0.1:{port}") for port in ports}
    assert texts == {None, "Redis is a Cluster: use redis+cluster://"}


@pytest.mark.parametrize("frozen", [0, 2])
def test_a_node_that_hangs_keeps_no_starting_replica_from_its_lease(start_redis: Start, frozen: int) -> None:
    """The client asked the node with the first slots for all commands that there are, each time that it connected."""
    nodes = _start_cluster(start_redis, "--cluster-require-full-coverage", "no")
    nodes[frozen].stop()
    for _ in range(3):  # the client asks for slots in any order
        _works("redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in nodes))


def _refusal_or_none(url: str) -> str | None:
    async def ask() -> str | None:
        async with _asker(url) as asker:
            try:
                await asker.renew()
            except StoreUnavailableError as problem:
                return str(problem)
            return None

    return asyncio.run(ask())
