"""A run in the files that `millgate sim validate --measured` reads."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lab.real_engine.users import Heard

_NAME = "real"


def record(folder: Path, heard: Sequence[Heard], told: argparse.Namespace) -> str:
    """Write the requests and the engine's limits, and say how many there are.

    Times are the users': what lies between engine and user counts as the engine's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = [each for each in heard if each.answered]
    rows = [
        {
            "input_toks": each.prompt_tokens,
            "output_toks": each.output_tokens,
            "queued_ts": each.asked.at_s,
            "first_token_ts": each.first_s,
            "last_token_ts": each.last_s,
        }
        for each in done
    ]
    (folder / f"{_NAME}__requests.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    meta = {
        "engine_kwargs": {"max_num_seqs": told.streams, "max_num_batched_tokens": told.step_tokens},
        "kv_cache": {"num_gpu_blocks": told.blocks, "block_size": told.block_tokens},
    }
    config = {"nodes": [{"instances": [{"model_name": told.like, "tp_size": 1}]}]}
    for ending, content in (("meta", meta), ("config", config)):
        (folder / f"{_NAME}__{ending}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return f"{len(rows)} of {len(heard)} requests answered; written to {folder}"
