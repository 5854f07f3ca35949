"""What a run's files may not hold is said in words, with the file or the field."""

import json
from pathlib import Path

import pytest

from millgate.sim.measured.judge import replay
from millgate.sim.measured.run import read_run
from millgate.sim.measured.tables import MeasuredError

DESCRIBED = {"model_name": "meta-llama/Llama-3.1-8B", "max_num_seqs": 8, "max_num_batched_tokens": 2048}
LAYERS = ("embedding", "layernorm", "qkv_proj", "o_proj", "gate_up_proj", "act_fn", "down_proj")
FILES = {
    "run__config.json": json.dumps({**DESCRIBED, "npu_mem": {"mem_size": 24, "mem_util": 0.9}}),
    "run__requests.jsonl": "".join(
        f'{{"input_toks":10,"output_toks":5,"queued_ts":{at},"first_token_ts":{at + 1},"last_token_ts":{at + 2}}}\n'
        for at in range(4)
    ),
    "run_dense.csv": "layer,tokens,time_us\n" + "".join(f"{layer},{1},{10}\n" for layer in LAYERS),
    "run_per_sequence.csv": "layer,sequences,time_us\nlm_head,1,5\nsampler,1,5\n",
    "run_attention.csv": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,100,12\n16,0,0,0,2\n",
}


def _described(**other: object) -> bytes:
    return json.dumps({**DESCRIBED, **other}).encode()


def test_a_run_made_by_hand_is_read(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert read_run(tmp_path).limits.max_num_seqs == 8


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("run__config.json", _described(max_num_seqs="inf"), "max_num_seqs: 'inf'; must be a whole number"),
        ("run__config.json", _described(max_num_seqs="nan"), "max_num_seqs: 'nan'; must be a whole number"),
        ("run__config.json", _described(npu_mem={"mem_size": "24GB"}), "mem_size: '24GB'; must be a number"),
        ("run__config.json", _described(npu_mem={"mem_size": [24]}), r"mem_size: \[24\]; must be a number"),
        (
            "run__config.json",
            _described(npu_mem={"mem_size": 24, "mem_util": "most"}),
            "mem_util: 'most'; must be a number",
        ),
        ("run__config.json", b'{"a":' * 100_000, "run__config.json: maximum recursion"),
        ("run__meta.json", b'{"kv_cache":{"num_gpu_blocks":1e999}}', "num_gpu_blocks: inf; must be a whole"),
        ("run__requests.jsonl", b'{"input_toks":1e999}\n', "jsonl:1: not a request"),
        ("run__requests.jsonl", b'{"model":"\xe9"}\n', "jsonl:1: not a request"),
        ("run_dense.csv", b"layer,tokens,time_us\n\xe9,1,2\n", "run_dense.csv: not a table in UTF-8"),
        ("run_dense.csv", b"layer,tokens,time_us\n" + b"a" * 200_000, "run_dense.csv: not a table"),
    ],
)
def test_a_file_that_cannot_be_is_named(tmp_path: Path, name: str, held: bytes, said: str) -> None:
    for each, text in FILES.items():
        (tmp_path / each).write_text(text)
    (tmp_path / name).write_bytes(held)
    with pytest.raises(MeasuredError, match=said):
        read_run(tmp_path)


def test_a_run_whose_memory_is_only_known_by_what_it_held_is_replayed(tmp_path: Path) -> None:
    for each, text in FILES.items():
        (tmp_path / each).write_text(text)
    (tmp_path / "run__config.json").write_bytes(_described(npu_mem={"mem_size": 1}))
    one_by_one = (
        f'{{"input_toks":20,"output_toks":5,"queued_ts":{at},"first_token_ts":{at + 1},"last_token_ts":{at + 2}}}\n'
        for at in range(0, 40, 10)
    )
    (tmp_path / "run__requests.jsonl").write_text("".join(one_by_one))
    run = read_run(tmp_path)
    assert len(replay(run, run.model)) == 4
