"""The balancer of the page on high availability: a real HAProxy with the page's own block finds a gate ready, and a draining one not."""

import asyncio
import csv
from pathlib import Path

import pytest

from examples.pages import blocks
from gateway.harness import run, standing
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
    default-server inter 100ms
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
            here = block.replace("10.0.0.1:8080", f"127.0.0.1:{stand.gateway.port}")
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
