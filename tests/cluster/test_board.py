"""The board of a cluster in a real Redis, and the refused clients that replicas tell each other of by it."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis import Redis

from cluster.asker import Asker
from cluster.redis_server import RedisServer
from gateway.harness import Asked, Stand, answer, chat, run, until
from gateway.stand import core_settings, gating
from millgate.cluster.connect import PASSWORD_ENV, USERNAME_ENV, connect, read_address
from millgate.cluster.contract import BoardRefusedError, Heard, StoreUnavailableError
from millgate.cluster.redis_store import MOST_KEPT, RedisStore
from millgate.core.decisions import Yield
from millgate.core.settings import LaneSettings
from millgate.core.words import Reason
from millgate.gateway.settings import ClusterSettings
from millgate.gateway.told_news import MOST_SAID, ToldNews
from millgate.servers.http import DoorSettings
from millgate.servers.requests.tickets import KeptBody

Start = Callable[..., RedisServer]
Story = Callable[[RedisStore], Coroutine[Any, Any, None]]


def _tell(server: RedisServer, story: Story, **environment: str) -> None:
    """Run this story with a store that holds a lease, for one without asks for no board."""

    async def live() -> None:
        store = RedisStore(
            connect(read_address(server.url, environment), 0.5), "test", time.monotonic, timeout_s=0.5
        )
        try:
            await Asker(store).until_whole()
            await story(store)
        finally:
            await store.close()

    asyncio.run(live())


def test_what_one_replica_says_all_others_hear_once(start_redis: Start) -> None:
    async def story(store: RedisStore) -> None:
        mine = await store.exchange("one", b"first \xff", "")
        assert mine.said == ()
        heard = await store.exchange("two", b"", "")
        assert heard.said == (b"first \xff",)
        assert (await store.exchange("two", b"", heard.place)).said == ()
        await store.exchange("one", b"second", mine.place)
        assert (await store.exchange("two", b"third", heard.place)).said == (b"second",)
        assert (await store.exchange("one", b"", mine.place)).said == (b"third",)

    _tell(start_redis(), story)


def test_the_board_is_bounded_and_forgotten(start_redis: Start) -> None:
    server = start_redis()

    async def story(store: RedisStore) -> None:
        for _ in range(2 * MOST_KEPT):
            await store.exchange("one", b"said", "9999999999999")

    _tell(server, story)
    with Redis(port=server.port) as redis:
        # Redis trims by whole nodes of a hundred entries.
        assert MOST_KEPT <= redis.xlen("millgate:{test}:told") <= MOST_KEPT + 100
        assert 0 < redis.pttl("millgate:{test}:told") <= 120_000


def test_a_server_that_has_lost_the_script_gets_it_again(start_redis: Start) -> None:
    server = start_redis()

    async def story(store: RedisStore) -> None:
        await store.exchange("one", b"first", "")
        with Redis(port=server.port) as redis:
            redis.script_flush()
        assert (await store.exchange("two", b"", "")).said == (b"first",)

    _tell(server, story)


def test_a_user_without_the_rights_to_the_board_has_its_leases_all_the_same(start_redis: Start) -> None:
    rights = ["+evalsha", "+eval", "+hgetall", "+hset", "+hdel", "+pexpire", "+time", "+hello", "+auth"]
    user = ["gate", "on", ">s3cret", "~millgate:*", "resetchannels", "-@all", *rights]
    less = start_redis("--user", "default", "off", "--user", *user)
    enough = start_redis("--user", "default", "off", "--user", *user, "+xadd", "+xread")
    environment = {USERNAME_ENV: "gate", PASSWORD_ENV: "s3cret"}

    async def refused(store: RedisStore) -> None:
        for _ in range(5):
            with pytest.raises(BoardRefusedError, match="Redis' ACL user"):
                await store.exchange("one", b"said", "")
        asker = Asker(store)
        await asker.until_whole()
        assert asker.granted is not None

    async def works(store: RedisStore) -> None:
        await store.exchange("one", b"said", "")
        assert (await store.exchange("two", b"", "")).said == (b"said",)

    _tell(less, refused, **environment)
    _tell(enough, works, **environment)


def test_a_store_that_is_gone_is_no_news_of_the_board(start_redis: Start) -> None:
    server = start_redis()

    async def story(store: RedisStore) -> None:
        server.kill()
        with pytest.raises(StoreUnavailableError) as told:
            await store.exchange("one", b"said", "")
        assert not isinstance(told.value, BoardRefusedError)

    _tell(server, story)


class _Paper:
    """A board in memory, which may be refused."""

    def __init__(self) -> None:
        self.said: list[tuple[str, bytes]] = []
        self.problem: StoreUnavailableError | None = None

    async def exchange(self, replica: str, said: bytes, place: str) -> Heard:
        if self.problem is not None:
            raise self.problem
        if said:
            self.said.append((replica, said))
        others = tuple(each for who, each in self.said[int(place or 0) :] if who != replica)
        return Heard(others, str(max(int(place or 0), len(self.said))))


def _refused(news: ToldNews, body: bytes) -> None:
    now = asyncio.get_running_loop().time()
    refusal = Yield(1, Reason.SATURATED, 0.1, retry=True, first_seen=now)
    news.clients.refused("acme", KeptBody(body), refusal)


def test_news_are_said_once_bounded_and_garbage_is_passed_over() -> None:
    async def body() -> None:
        board, now, problems = _Paper(), asyncio.get_running_loop().time, list[str]()
        one, two = (ToldNews(board, name, b"k" * 32, 60.0, now) for name in ("one", "two"))
        two.on_problem = problems.append
        board.said.append(("old", b"\x93garbage"))
        for number in range(MOST_SAID + 10):
            _refused(one, b"%d" % number)
        await one.exchange()
        await two.exchange()
        assert len(two.clients) == MOST_SAID
        assert len(one.clients) == 0
        board.problem = BoardRefusedError("no right")
        _refused(one, b"lost")
        await one.exchange()
        await two.exchange()
        await two.exchange()
        board.problem = StoreUnavailableError("gone")
        await two.exchange()
        board.problem = None
        await one.exchange()
        await two.exchange()
        assert problems == ["no right", ""]
        assert len(two.clients) == MOST_SAID

        one.start()
        _refused(one, b"at the end")
        await one.leave()
        await two.exchange()
        assert len(two.clients) == MOST_SAID + 1

    run(body())


def test_while_there_is_news_it_is_heard_sooner_than_the_shortest_hint_ends() -> None:
    async def body() -> None:
        board, loop = _Paper(), asyncio.get_running_loop()
        one, two = (ToldNews(board, name, b"k" * 32, 60.0, loop.time) for name in ("one", "two"))
        one.start()
        two.start()
        _refused(two, b"first")
        await until(lambda: len(board.said) == 1)
        for number in range(5):
            _refused(one, b"%d" % number)
            await until(lambda: len(two.clients) == number + 1)  # noqa: B023 - it is awaited here
        await one.leave()
        await two.leave()

    run(body())


def test_a_board_that_begins_anew_with_lesser_places_is_read_after_two_minutes() -> None:
    async def body() -> None:
        board, now = _Paper(), 0.0
        one, two = (ToldNews(board, name, b"k" * 32, 60.0, lambda: now) for name in ("one", "two"))
        for number in range(5):
            _refused(one, b"%d" % number)
            await one.exchange()
        await two.exchange()
        board.said.clear()
        _refused(one, b"anew")
        await one.exchange()
        for now in (60.0, 121.0, 122.0):  # noqa: B007 - the clock of both
            await two.exchange()
        assert len(two.clients) == 6

    run(body())


async def _comes_to(other: Stand, gate: Stand, tokens: int, ticket: bool) -> int:
    """Have this gate, which is full, refuse a client, and send it to another one when it was told; return how many that one has recognised."""
    refused = await gate.ask(chat(max_tokens=tokens), x_millgate_ticket="1" if ticket else "")
    assert refused.status == 503
    assert other.snapshot.retries.recognised == 0
    await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
    brought = refused.headers.get("x-millgate-ticket", "")
    # With a ticket it is known whatever its body is.
    back = await other.ask(chat(max_tokens=tokens + ticket), x_millgate_ticket=brought)
    assert back.status == 200
    return other.snapshot.retries.recognised


@pytest.mark.parametrize("apart_s", [0.0, 30.0, -30.0])
@pytest.mark.parametrize("ticket", [False, True], ids=["", "ticket"])
def test_a_client_that_a_balancer_sends_to_another_replica_keeps_its_age_whatever_the_clocks_of_both_say(
    start_redis: Start, monkeypatch: pytest.MonkeyPatch, apart_s: float, ticket: bool
) -> None:
    """By clocks that are 2 s apart it was a newcomer for good: replicas told each other times of their own clocks."""
    clocks = iter([apart_s, 0.0])
    monkeypatch.setattr("millgate.cluster.redis_store.time", lambda: time.time() + next(clocks))

    async def body() -> None:
        url, key, over = start_redis().url, os.urandom(32), asyncio.Event()

        async def answers(asked: Asked) -> None:
            if b"long" in asked.body:
                await over.wait()
            asked.reply(answer())

        core = core_settings(max_inflight=2, lanes=[LaneSettings("lane", max_queue=0)])
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(
                    gating(
                        answers,
                        core=core,
                        cluster=ClusterSettings(url, "test", name, renew_every_s=0.05),
                        door=DoorSettings(ticket_key=key),
                    )
                )
                for name in ("one", "two")
            ]
            await until(lambda: all(each.snapshot.engines[0].limit == 1 for each in (one, two)))
            long = await one.client()
            long.ask(chat("long"))
            await one.engine.next()
            # On a machine that is busy it may be late, and is a newcomer then.
            assert await _comes_to(two, one, 20, ticket) or await _comes_to(two, one, 30, ticket)
            over.set()
            assert (await long.answer()).status == 200

    run(body())
