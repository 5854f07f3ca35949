"""The places of requests that need no permit: one tenant leaves room for the others, whatever it keeps open."""

import asyncio

import pytest

from gateway.harness import Asked, Client, Stand, run, until
from gateway.stand import gating
from gateway.test_entry import CORE, GUARDED, KEY, OTHER
from millgate.runtime.callers import CallerSettings
from millgate.servers.http import DoorSettings, passthrough

PLACES = 4
STREAM = b"/v1/responses/resp_1?stream=true"
BEGUN = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
ENDED = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1"}}\n\n'


class Storing:
    """An engine that keeps a response: it streams until `release`, and begins each stream only if `begins`."""

    def __init__(self, begins: bool) -> None:
        self.begins = begins
        self.release = asyncio.Event()

    async def __call__(self, asked: Asked) -> None:
        if asked.line.startswith(b"POST /v1/responses "):
            asked.reply(b'{"id":"resp_1","status":"completed"}')
        elif b"/v1/responses/" not in asked.line:
            asked.reply(b'{"object":"list","data":[]}')
        else:
            asked.open_stream()
            if self.begins:
                asked.send(BEGUN)
            await self.release.wait()
            asked.send(ENDED)
            asked.end_stream()


async def store(stand: Stand) -> None:
    stored = await stand.ask(b'{"input":"hi"}', b"/v1/responses", authorization=f"Bearer {KEY}")
    assert stored.status == 200


async def opened(stand: Stand) -> Client:
    client = await stand.client()
    client.ask(b"", STREAM, b"GET", {"authorization": f"Bearer {KEY}"})
    assert (await client.head()).status == 200
    assert await client.chunk() == BEGUN
    return client


async def models(stand: Stand, key: str) -> int:
    return (await stand.ask(b"", b"/v1/models", b"GET", authorization=f"Bearer {key}")).status


@pytest.mark.parametrize("callers", [GUARDED, CallerSettings()], ids=["two tenants", "one tenant"])
def test_streams_that_stay_open_take_no_place_and_have_a_bound_of_their_own(callers: CallerSettings) -> None:
    async def body() -> None:
        engine = Storing(begins=True)
        door = DoorSettings(light_at_once=PLACES)
        async with gating(engine, callers=callers, core=CORE, door=door) as stand:
            await store(stand)
            clients = [await opened(stand) for _ in range(PLACES)]
            await asyncio.sleep(0.3)
            refused = await stand.ask(b"", STREAM, b"GET", authorization=f"Bearer {KEY}")
            assert (refused.status, refused.headers["x-millgate-reason"]) == (429, "tenant_limit")
            assert 300 <= int(refused.headers["retry-after-ms"]) < 5000, "as long as the first has been open"
            for key in (KEY, OTHER):
                assert [await models(stand, key) for _ in range(2 * PLACES)] == [200] * 2 * PLACES
            clients.pop().leave()
            await until(lambda: stand.gateway.door.ongoing == PLACES - 1)
            clients.append(await opened(stand))
            engine.release.set()
            for client in clients:
                assert await client.chunk() == ENDED
                assert not await client.chunk()
            await until(lambda: stand.gateway.door.ongoing == 0)
            assert not stand.gateway.door._light._tenants

    run(body())


def test_a_tenant_whose_streams_do_not_begin_has_half_of_the_places() -> None:
    """They are given up after ten seconds; asked for again at once, they would leave nothing to others for good."""

    async def body() -> None:
        engine = Storing(begins=False)
        door = DoorSettings(light_at_once=PLACES)
        async with gating(engine, callers=GUARDED, core=CORE, door=door) as stand:
            await store(stand)
            for _ in range(PLACES // 2):
                client = await stand.client()
                client.ask(b"", STREAM, b"GET", {"authorization": f"Bearer {KEY}"})
            await until(lambda: len(stand.engine.asked) == 1 + PLACES // 2)
            refused = await stand.ask(b"", STREAM, b"GET", authorization=f"Bearer {KEY}")
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert (await models(stand, KEY), await models(stand, OTHER)) == (429, 200)
            engine.release.set()
            await until(lambda: stand.gateway.door.ongoing == 0)
            assert await models(stand, KEY) == 200

    run(body())


def test_an_only_tenant_has_every_place() -> None:
    async def body() -> None:
        engine = Storing(begins=False)
        door = DoorSettings(light_at_once=PLACES)
        async with gating(engine, core=CORE, door=door) as stand:
            await store(stand)
            for _ in range(PLACES):
                client = await stand.client()
                client.ask(b"", STREAM, b"GET")
            await until(lambda: len(stand.engine.asked) == 1 + PLACES)
            assert await models(stand, KEY) == 503
            engine.release.set()

    run(body())


@pytest.mark.parametrize(
    ("path", "method"), [(b"/v1/responses/resp_1", b"GET"), (b"/tokenize", b"POST")], ids=["stored", "tokens"]
)
def test_a_long_answer_is_never_cut_while_its_client_reads(
    monkeypatch: pytest.MonkeyPatch, path: bytes, method: bytes
) -> None:
    """A stored answer or the tokens of a long prompt, over a slow line: they were cut after ten seconds."""
    monkeypatch.setattr(passthrough, "_TIMEOUT_S", 0.3)
    long = b'{"tokens":[%b0]}' % (b"100000," * 1_000_000)

    async def storing(asked: Asked) -> None:
        is_stored = asked.line.startswith(b"POST /v1/responses ")
        asked.reply(b'{"id":"resp_1","status":"completed"}' if is_stored else long)

    async def body() -> None:
        async with gating(storing, callers=GUARDED, core=CORE) as stand:
            await store(stand)
            client = await stand.client()
            client.ask(b"{}", path, method, {"authorization": f"Bearer {KEY}"})
            answer = await client.head()
            assert answer.status == 200
            await asyncio.sleep(0.6)
            assert await client.reader.readexactly(int(answer.headers["content-length"])) == long
            await until(lambda: stand.gateway.door.ongoing == 0)
            assert not stand.gateway.door._light._tenants

    run(body())
