"""Room for uploads: booked as bytes come, shared among peers, and never held by parts that wait for each other."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from gateway.harness import chat, run, until
from millgate.client.line import AsyncLineClient, LineError
from millgate.dialects.line import LineReply, Status
from millgate.http1.server.budget import ByteBudget
from millgate.servers.line import LineLimits
from servers.line.stand import Stand, brief, chunk, manifest
from servers.line.talk import Gate, Peer, line_standing

PAYLOAD = b"0123456789"
PEER, OTHER = "10.0.0.1", "10.0.0.2"


def of_peer(budget: ByteBudget, address: str) -> Stand:
    """Return a connection of this peer, booked as the door books it."""
    return Stand(share=budget.share(f"line door {address}", "line door"))


def send(stand: Stand, index: int, job: str = "J", payload: bytes = PAYLOAD) -> str:
    """Send one chunk and return in a word what becomes of it: ok, yield, or asked."""
    said = stand.send(chunk(payload, index, job))
    return str(said[0].status) if said else "asked"


def test_large_uploads_that_do_not_fit_together_all_end() -> None:
    """Each had room for a part, and all waited for each other until none was left."""
    stand = Stand(budget_bytes=17)
    stand.send(manifest(PAYLOAD, "A") + manifest(PAYLOAD, "B"))
    assert [send(stand, 0, "A"), send(stand, 0, "B")] == ["ok", "ok"]
    assert send(stand, 1, "A") == "ok"
    assert send(stand, 1, "B") == "yield"  # the last two bytes of A would find no room
    assert send(stand, 2, "A") == "asked"
    assert send(stand, 1, "B") == "yield"
    stand.done(1)
    assert [send(stand, 1, "B"), send(stand, 2, "B")] == ["ok", "asked"]
    stand.done(2)
    assert (stand.budget.held_bytes, stand.budget.whole) == (0, {})


def test_a_promise_of_bytes_takes_no_room() -> None:
    """An upload booked all that it announced with its first chunk: few bytes locked every other peer out."""
    budget = ByteBudget(1000)
    large = bytes(450)
    idle = [of_peer(budget, PEER) for _ in range(8)]
    for stand in idle:
        stand.send(manifest(large))
        assert send(stand, 0, payload=large) == "ok"
    assert budget.held_bytes == 8 * 4
    other = of_peer(budget, PEER)
    other.send(manifest(bytes(400)))
    assert [send(other, index, payload=bytes(400)) for index in range(100)] == ["ok"] * 99 + ["asked"]


def test_eight_idle_half_uploads_of_one_peer_do_not_stop_another_peer() -> None:
    budget = ByteBudget(1000)
    large = bytes(200)
    idle = [of_peer(budget, PEER) for _ in range(8)]
    for stand in idle:
        stand.send(manifest(large))
        for index in range(25):
            send(stand, index, payload=large)
    assert budget.tenants[f"line door {PEER}"] >= 400
    other = of_peer(budget, OTHER)
    for turn in range(3):
        other.send(manifest(large, f"J{turn}"))
        got = [send(other, index, f"J{turn}", large) for index in range(50)]
        assert got == ["ok"] * 49 + ["asked"]
        other.done(turn + 1)


def test_an_upload_that_stalls_loses_its_place_to_those_that_wait() -> None:
    budget = ByteBudget(2 * len(PAYLOAD))
    stalled, waiting = of_peer(budget, PEER), of_peer(budget, PEER)
    for stand in (stalled, waiting):
        stand.send(manifest(PAYLOAD))
    assert [send(stalled, 0), send(stalled, 1)] == ["ok", "ok"]
    for second in range(0, 60, 5):
        waiting.now = float(second)
        assert send(waiting, 0) == "yield"
    reply, _ = stalled.tick(60.0)
    assert brief(reply) == "confirm/abort idle_timeout J 4"
    assert [send(waiting, 0), send(waiting, 1), send(waiting, 2)] == ["ok", "ok", "asked"]


def test_a_job_whose_rest_never_fits_is_sent_away_with_a_hint_and_gives_its_part_back() -> None:
    """HTTP holds most of the budget for as long as its users write: the job waited until its client gave up."""
    budget = ByteBudget(100)
    stand = of_peer(budget, PEER)
    stand.send(manifest(PAYLOAD))
    assert send(stand, 0) == "ok"
    budget.reserve(90)
    for second in range(0, 120, 5):
        stand.now = float(second)
        assert send(stand, 1) == "yield"
    stand.now = 120.0
    (reply,) = stand.send(chunk(PAYLOAD, 1))
    assert brief(reply) == "confirm/abort server_busy J 4"
    assert (reply.error, reply.retry_hint_ms) == ("busy", 5000)
    assert reply.message == "no room in limits.byte_budget for 120 s; send the job again later"
    assert budget.held_bytes == 90

    stand.send(manifest(PAYLOAD))
    assert send(stand, 0) == "yield"
    budget.release(90)
    assert [send(stand, index) for index in range(3)] == ["ok", "ok", "asked"]


def test_a_job_that_gets_on_between_waits_is_not_sent_away() -> None:
    budget = ByteBudget(100)
    stand = of_peer(budget, PEER)
    stand.send(manifest(PAYLOAD))
    for index in range(3):
        of_http = budget.limit_bytes - budget.held_bytes
        budget.reserve(of_http)
        for second in range(0, 115, 5):
            stand.now = 115.0 * index + second
            assert send(stand, index) == "yield"
        budget.release(of_http)
        assert send(stand, index) in {"ok", "asked"}


def test_a_payload_that_can_never_fit_is_refused_at_once_with_the_limit() -> None:
    """It was yielded until its client had no retry left."""
    budget = ByteBudget(1000)
    stand = of_peer(budget, PEER)
    (reply,) = stand.send(manifest(bytes(501)))
    assert (reply.status, reply.need) == (Status.NEED, "manifest_invalid")
    assert reply.message == "the payload has 501 bytes, the most is 500: half of limits.byte_budget"
    assert [each.status for each in stand.send(manifest(bytes(500)))] == [Status.OK]
    (reply,) = Stand(LineLimits(payload_bytes=400)).send(manifest(bytes(401)))
    assert reply.message == "the payload has 401 bytes, the most is 400: the bound of the line door"


def test_a_large_upload_is_not_starved_by_the_small_jobs_that_wait_for_slots() -> None:
    """The door is full of jobs that were yielded: what one of them gives back, the large one may take as it comes."""
    door = of_peer(ByteBudget(200), PEER)
    number, index = 0, 3

    def small_ones() -> None:
        """Go on with small uploads until there is no room."""
        nonlocal number, index
        while True:
            if index == 3:
                number, index = number + 1, 0
                door.send(manifest(PAYLOAD, f"S{number}"))
            if send(door, index, f"S{number}") == "yield":
                return
            index += 1

    small_ones()
    door.send(manifest(bytes(80), "L"))
    taken = 0
    for turn in range(40):
        door.done(door.asks[turn].job)
        while taken < 20 and send(door, taken, "L", bytes(80)) != "yield":
            taken += 1
        small_ones()
    assert taken == 20


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 100), min_size=2, max_size=12),
    peers=st.lists(st.sampled_from([PEER, OTHER, "10.0.0.3"]), min_size=12, max_size=12),
    seed=st.integers(0, 1 << 30),
)
def test_whatever_the_order_every_upload_that_goes_on_ends(
    sizes: list[int], peers: list[str], seed: int
) -> None:
    budget, order = ByteBudget(200), random.Random(seed)
    stands = [of_peer(budget, peer) for peer in peers[: len(sizes)]]
    left = [iter_chunks(size) for size in sizes]
    sent = [next(each) for each in left]
    for stand, size in zip(stands, sizes, strict=True):
        stand.send(manifest(bytes(size)))
    unfinished = set(range(len(sizes)))
    while unfinished:
        moved = False
        for number in order.sample(sorted(unfinished), len(unfinished)):
            got = send(stands[number], sent[number], payload=bytes(sizes[number]))
            moved |= got != "yield"
            if got == "ok":
                sent[number] = next(left[number])
            elif got == "asked":
                unfinished.discard(number)
        if not moved:
            working = [stand for stand in stands if stand.session.busy]
            assert working, "uploads wait for each other"
            order.choice(working).done(1)
    for stand in stands:
        if stand.session.busy:
            stand.done(1)
    assert (budget.held_bytes, budget.tenants, budget.peers, budget.whole) == (0, {}, {}, {})


def iter_chunks(size: int) -> Iterator[int]:
    return iter(range(-(-size // 4)))


async def half(peer: Peer, payload: bytes, step: int) -> list[LineReply]:
    """Begin an upload, send half of it, and say nothing more."""
    peer.send(manifest(payload, step=step))
    said = [await peer.reply()]
    for index in range(-(-len(payload) // step) // 2):
        peer.send(chunk(payload, index, step=step))
        said.append(await peer.reply())
        if said[-1].status is not Status.OK:
            break
    return said


def large_chat(size: int) -> bytes:
    return chat("x" * size)


def test_several_large_uploads_at_once_all_finish_on_real_sockets() -> None:
    """Together they are five times as large as the room that the door has."""

    async def body() -> None:
        async with line_standing(Gate(work_s=0.01), max_inflight=10) as stand:
            stand.gateway.server.budget.limit_bytes = 2_000_000
            payload = large_chat(600_000)
            address = f"127.0.0.1:{stand.gateway.line_port}"

            async def one() -> None:
                async with AsyncLineClient(address) as client:
                    sent = await client.send(payload, want_result=True)
                    assert sent.result is not None

            await asyncio.gather(*[one() for _ in range(8)])
            assert stand.door.executed == 8
            await stand.settle()

    run(body())


def test_idle_half_uploads_of_one_address_do_not_stop_another_on_real_sockets() -> None:
    async def body() -> None:
        async with line_standing(Gate(work_s=0.0)) as stand:
            budget = stand.gateway.server.budget
            budget.limit_bytes = 2_000_000
            for _ in range(8):
                await half(await stand.peer(), large_chat(400_000), 48 * 1024)
            assert budget.held_bytes > 500_000
            other = await stand.peer(local_addr=("127.0.0.2", 0))
            payload = large_chat(300_000)
            other.send(manifest(payload, step=48 * 1024))
            for index in range(-(-len(payload) // (48 * 1024))):
                await other.reply()
                other.send(chunk(payload, index, step=48 * 1024))
            assert (await other.final()).status is Status.DONE

    run(body())


def test_an_answer_finds_room_in_a_door_that_is_full_of_uploads() -> None:
    """The engine had worked, and its answer was thrown away because payloads that waited had taken all of the share."""

    async def body() -> None:
        gate = Gate(content="x" * 50_000)
        async with line_standing(gate) as stand:
            budget = stand.gateway.server.budget
            budget.limit_bytes = 2_000_000
            first = await stand.peer()
            first.send(manifest(large_chat(10), step=4096, want_result=True))
            first.send(chunk(large_chat(10), 0, step=4096))
            await until(lambda: gate.running == 1)
            for _ in range(8):
                await half(await stand.peer(), large_chat(400_000), 48 * 1024)
            gate.go.set()
            assert (await first.final()).status is Status.DONE

    run(body())


def test_a_client_reads_which_limit_its_payload_exceeds() -> None:
    async def body() -> None:
        async with line_standing() as stand:
            stand.gateway.server.budget.limit_bytes = 1_000_000
            async with AsyncLineClient(f"127.0.0.1:{stand.gateway.line_port}") as client:
                with pytest.raises(LineError, match=r"the most is 500,000: half of limits\.byte_budget"):
                    await client.send(large_chat(600_000))

    run(body())
