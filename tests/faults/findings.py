"""What a fuzzer has found, and where it is kept."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """What must not be, and the payloads of which one, or all together, did it; none for a leak over the whole run."""

    text: str
    payloads: Sequence[bytes] = ()


def save(findings: Sequence[Finding], folder: Path, seed: int) -> None:
    """Write the payloads of each finding into files of their own, and say where."""
    for number, finding in enumerate(findings, 1):
        folder.mkdir(parents=True, exist_ok=True)
        for place, payload in enumerate(finding.payloads, 1):
            (folder / f"seed-{seed}-finding-{number}-{place:02d}.bin").write_bytes(payload)
        sys.stdout.write(f"saved {len(finding.payloads)} as {folder}/seed-{seed}-finding-{number}-*.bin\n")
