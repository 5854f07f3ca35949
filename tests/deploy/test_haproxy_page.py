"""The balancers of the page on high availability, HAProxy and nginx with the page's own blocks: they find a gate ready or not, and pass hang-ups on."""

import asyncio
import csv
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from examples.pages import blocks
from gateway.harness import Asked, Client, chat, run, standing, until
from millgate.demos.stage import find_haproxy
from ports import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "high-availability.md"
AROUND = """\
global
    log stdout format raw local0
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen numbers
    bind 127.0.0.1:{port}
    stats enable
    stats uri /numbers
"""


async def last_check(port: int) -> str:
    """Return how HAProxy's last look at the server `a` ended, empty before the first."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return ""
    writer.write(b"GET /numbers;csv HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode().partition("# ")[2]
    writer.close()
    rows = csv.DictReader(page.splitlines())
    return next((row["check_status"] for row in rows if row["svname"] == "a"), "")


def test_the_probes_of_the_pages_haproxy_are_answered(tmp_path: Path) -> None:
    """HAProxy probes in HTTP/1.0 without Host unless it is told otherwise."""
    program = find_haproxy()
    if program is None:
        pytest.skip("haproxy is not installed")
    (block,) = [each.text for each in blocks(PAGE) if "option httpchk" in each.text]
    file = tmp_path / "haproxy.cfg"

    async def body() -> None:
        async with standing() as stand:
            port = free_port()
            here = block.replace("10.0.0.1:8080 check", f"127.0.0.1:{stand.gateway.port} check inter 100ms")
            file.write_text(AROUND.format(port=port) + here)
            haproxy = await asyncio.create_subprocess_exec(program, "-f", str(file), "-q")
            try:
                seen: set[str] = set()

                async def sees(status: str) -> None:
                    while status not in seen:
                        seen.add(await last_check(port))
                        await asyncio.sleep(0.05)

                await sees("L7OK")
                assert "L7STS" not in seen
                stand.gateway.draining = True
                await sees("L7STS")
            finally:
                haproxy.kill()
                await haproxy.wait()

    run(body())


HAPROXY_DOOR = """
frontend door
    bind 127.0.0.1:{door}
    default_backend gates
"""
AROUND_NGINX = """daemon off;
pid {folder}/pid;
error_log {folder}/errors;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/1;
    uwsgi_temp_path {folder}/2;
    scgi_temp_path {folder}/3;
{block}
}}
"""


@asynccontextmanager
async def balancing(name: str, folder: Path, gate: int, other: int = 0) -> AsyncIterator[int]:
    """Run this balancer before two gates as the page says, and give its port; the other one is gone where it has no port."""
    program = (
        find_haproxy() if name == "haproxy" else shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    )
    if program is None:
        pytest.skip(f"{name} is not installed")
    sign = "option httpchk" if name == "haproxy" else "proxy_pass http://gates"
    (block,) = [each.text for each in blocks(PAGE) if sign in each.text]
    door, file = free_port(), folder / name
    block = block.replace("10.0.0.1:8080", f"127.0.0.1:{gate}")
    block = block.replace("10.0.0.2:8080", f"127.0.0.1:{other or free_port()}")
    if name == "haproxy":
        file.write_text(AROUND.format(port=free_port()) + block + HAPROXY_DOOR.format(door=door))
        command = [program, "-f", str(file), "-q"]
    else:
        block = block.replace("443 ssl", f"127.0.0.1:{door}")
        file.write_text(AROUND_NGINX.format(folder=folder, block=block))
        command = [program, "-e", str(folder / "errors"), "-c", str(file)]
    balancer = await asyncio.create_subprocess_exec(*command)
    try:
        yield door
    finally:
        balancer.terminate()
        await balancer.wait()


async def connect(port: int) -> Client:
    """Return a client of this balancer, which may be about to start."""
    while True:
        try:
            return Client(*await asyncio.open_connection("127.0.0.1", port))
        except ConnectionError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_a_gate_that_is_gone_costs_no_request_behind_the_pages_balancer(name: str, tmp_path: Path) -> None:
    """HAProxy answered with a 503 of its own, without a hint, until it had probed the gate three times."""

    async def body() -> None:
        async with standing() as stand, balancing(name, tmp_path, stand.gateway.port) as port:
            for number in range(8):  # of which half are for the other gate
                client = await connect(port)
                client.ask(chat(), headers={"authorization": f"Bearer {number}"})
                assert (await client.head()).status == 200
                client.leave()

    run(body())


@pytest.mark.parametrize("field", ["authorization", "x-api-key"])
@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_the_pages_balancer_keeps_a_client_on_its_gate_by_the_key_of_either_api(
    name: str, field: str, tmp_path: Path
) -> None:
    """It looked at `Authorization` alone: clients of Anthropic's API, whose key is in `x-api-key`, came to either gate in turn."""

    async def body() -> None:
        async with (
            standing() as one,
            standing() as two,
            balancing(name, tmp_path, one.gateway.port, two.gateway.port) as port,
        ):
            gates: set[str] = set()
            for number in range(20):
                own: set[str] = set()
                for _ in range(3):
                    client = await connect(port)
                    client.ask(chat(), headers={field: f"Bearer {number * 7919}"})
                    own.add((await client.head()).headers["x-request-id"].partition("-")[0])
                    client.leave()
                assert len(own) == 1
                gates |= own
            assert len(gates) == 2

    run(body())


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_a_client_that_leaves_the_pages_balancer_leaves_the_gate_and_the_engine(
    name: str, tmp_path: Path
) -> None:
    """Before an answer HAProxy did not pass it on: the page did not say `option abortonclose`, which a backend alone does nothing with."""
    asked: list[Asked] = []

    async def thinks(request: Asked) -> None:
        asked.append(request)

    async def body() -> None:
        async with standing(thinks) as stand, balancing(name, tmp_path, stand.gateway.port) as port:
            client = await connect(port)
            client.ask(chat())
            await until(lambda: bool(asked))
            client.leave()
            await until(lambda: stand.gateway.door.ongoing == 0)

    run(body())
