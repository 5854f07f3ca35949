"""Limits are checked where they are made, with field and bound."""

import pytest

from millgate.engine.sequences import BatchLimits


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens"),
        ({"kv_tokens": 15}, "kv_tokens"),
        ({"block_tokens": 0}, "kv_tokens"),
        ({"watermark_share": 1.0}, "watermark_share"),
    ],
)
def test_a_wrong_limit_is_named(fields: dict[str, int], name: str) -> None:
    good = {"kv_tokens": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 64}

    assert BatchLimits(**good).blocks == 62
    with pytest.raises(ValueError, match=name):
        BatchLimits(**(good | fields))
