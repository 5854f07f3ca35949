"""`python -m lab cluster`: the cluster under faults, with real processes."""

import argparse
import asyncio
import tempfile
from pathlib import Path

from lab.cluster import caps, outage, quotas
from lab.cluster.processes import REDIS
from lab.knobs import ABOVE_0, within

_WHAT = ("caps", "quotas", "outage")


def main(arguments: list[str]) -> int:
    """Measure, and print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m lab cluster", description=__doc__)
    parser.add_argument("what", nargs="?", choices=_WHAT, help="what to measure (all)")
    parser.add_argument(
        "--seconds", type=within(float, ABOVE_0), default=600.0, help="how long faults go on (600)"
    )
    parser.add_argument(
        "--apart", type=within(float, ABOVE_0), default=20.0, help="seconds between two faults (20)"
    )
    parser.add_argument(
        "--gone", type=within(float, ABOVE_0), default=60.0, help="seconds without Redis (60)"
    )
    parser.add_argument(
        "--policy",
        choices=outage.POLICIES,
        default="closed",
        help="what a replica does without Redis, under faults (closed: then no replica passes its share)",
    )
    parser.add_argument(
        "--balanced", action="store_true", help="caps: clients come over a balancer that looks at readiness"
    )
    parser.add_argument("--seed", type=int, default=1, help="of order, times and clients (1)")
    asked = parser.parse_args(arguments)
    if REDIS is None:
        parser.error("redis-server is not installed")
    for what in (asked.what,) if asked.what else _WHAT:
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(_measure(what, Path(folder), asked)), end="\n\n", flush=True)
    return 0


async def _measure(what: str, folder: Path, asked: argparse.Namespace) -> str:
    if what == "caps":
        how = asked.seconds, asked.apart, asked.seed, asked.policy
        return caps.table(await caps.measure(folder, *how, balanced=asked.balanced))
    if what == "quotas":
        how = asked.seconds, asked.apart, asked.seed, asked.policy
        reports = [
            await quotas.measure(folder / str(skewed), *how, skewed=skewed) for skewed in (False, True)
        ]
        return quotas.table(reports)
    return outage.table(
        [await outage.measure(folder / policy, policy, asked.gone, asked.seed) for policy in outage.POLICIES]
    )
