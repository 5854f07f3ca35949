"""Malformed requests are refused and their connection closed; nothing of them reaches the application."""

import pytest

from http1.server.malformed import CASES, Case
from http1.server.wire import Client, Recorder, post, run, serving


def refused(case: Case, said: bytes, application: Recorder) -> None:
    """Check that the last thing said is one refusal, and how many requests were served before it."""
    answers = said.split(b"HTTP/1.1 ")[1:]
    statuses = [int(answer[:3]) for answer in answers]
    assert statuses[:-1] == [200] * case.served, statuses
    assert statuses[-1] in case.statuses
    assert b"connection: close\r\n" in answers[-1]
    assert len(application.bodies) == case.served


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_malformed_request_is_refused_and_its_connection_closed(case: Case) -> None:
    async def body() -> None:
        async with serving(body_s=0.2) as stand:
            client = await stand.connect()
            client.send(case.payload)
            refused(case, await client.rest(), stand.application)

    run(body())


@pytest.mark.parametrize(
    ("opening", "status", "name"),
    [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", 400, b"the PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12), 400, b"the PROXY protocol"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5), 505, b"HTTP/2"),
    ],
)
def test_a_balancer_that_speaks_another_protocol_is_told_which(
    opening: bytes, status: int, name: bytes
) -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(opening + post(b"x"))
            said = await client.rest()
            assert said.startswith(b"HTTP/1.1 %d " % status)
            assert name + b" is not spoken here" in said
            assert not stand.application.bodies

    run(body())


PIECEWISE = [case for case in CASES if len(case.payload) < 300]


@pytest.mark.parametrize("case", PIECEWISE, ids=[case.name for case in PIECEWISE])
def test_a_malformed_request_is_refused_too_when_it_comes_byte_by_byte(case: Case) -> None:
    async def body() -> None:
        async with serving(body_s=1.5) as stand:
            client = await stand.connect()
            await send_while_it_is_read(client, case.payload)
            refused(case, await client.rest(), stand.application)

    run(body())


async def send_while_it_is_read(client: Client, payload: bytes) -> None:
    """Send byte by byte; a server that has closed by then is no fault."""
    try:
        await client.send_bytewise(payload)
    except ConnectionError:
        return
