"""The trace of 27 clients: `req_time_s,client,prompt_len,output_len`.

Source: Ying1123/VTC-artifact, Apache-2.0 (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from millgate.sim.jobs import Job
from millgate.sim.traces.contract import TraceError, count_of


def read_clients27(path: Path) -> Iterator[Job]:
    """Yield the requests of a file in order; the client's number is the tenant."""
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                at_s = float(row["req_time_s"])
                client, prompt, output = row["client"], row["prompt_len"], row["output_len"]
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(path, number, f"not a request: {error}") from None
            yield Job(
                at_s,
                max(1, count_of(prompt, path, number)),
                max(1, count_of(output, path, number)),
                tenant=f"client-{client}",
            )
