"""Many connections at once are taken in few turns of the loop, however long a turn is."""

import asyncio
import socket

from http1.server.wire import Recorder, get, run, serving, until

CROWD = 32


def test_a_crowd_at_the_door_is_taken_in_a_few_turns_of_the_loop() -> None:
    """At one connection a turn, users would wait in the kernel for as many turns as there are users before them."""

    async def body() -> None:
        async with serving(Recorder()) as stand:
            crowd = []
            for _ in range(CROWD):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", stand.port))
                crowd.append(sock)
            turns = 0
            while stand.server.connections < CROWD:
                turns += 1
                assert turns <= CROWD // 2
                await asyncio.sleep(0)
            for sock in crowd:
                sock.close()
            await until(lambda: stand.server.connections == 0)

    run(body())


def test_a_server_that_has_stopped_listening_accepts_on_none_of_its_descriptors() -> None:
    async def body() -> None:
        async with serving(Recorder()) as stand:
            client = await stand.connect()
            stand.server.listeners.close()
            await asyncio.sleep(0.01)
            with socket.socket() as sock:
                sock.settimeout(1.0)
                assert sock.connect_ex(("127.0.0.1", stand.port)) != 0
            client.send(get())
            assert (await client.answer()).status == 200

    run(body())
