"""Reading gauges out of metrics pages."""

import pytest
from hypothesis import given, strategies as st

from millgate.core.events import AdaptersSeen
from millgate.runtime.gauges import GAUGE_NAMES, MOST_PAGE_BYTES, GaugeNames, Gauges, read_gauges

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b\\" c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
"""

PAGES = {
    "vllm": VLLM,
    "sglang": b'sglang:num_running_reqs{model_name="m"} 5\nsglang:num_queue_reqs{model_name="m"} 4\nsglang:token_usage 0.75\n'
    b'sglang:cache_config_info{page_size="1",num_pages="16000"} 1.0\n',
    "trtllm": b"trtllm_num_requests_running 5\ntrtllm_num_requests_waiting 4\ntrtllm_kv_cache_utilization 0.75\n",
    "triton": b'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4\n'
    b'nv_trt_llm_request_metrics{model="m",request_type="context",version="1"} 77\n'
    b'nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 5\n'
    b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.75\n',
    "nim": b'num_requests_running{model_name="m"} 5\nnum_requests_waiting{model_name="m"} 4\ngpu_cache_usage_perc{model_name="m"} 0.75\n',
    "tgi": b"tgi_batch_current_size 5\ntgi_queue_size 4\n",
    "llamacpp": b"llamacpp:requests_processing 5\nllamacpp:requests_deferred 4\n",
}


@pytest.mark.parametrize("engine", [row.engine for row in GAUGE_NAMES])
def test_every_engine_in_the_table_is_read(engine: str) -> None:
    gauges = read_gauges(PAGES[engine])
    assert (gauges.engine, gauges.running, gauges.waiting) == (engine, 5, 4)
    assert gauges.kv_share == (None if engine in {"tgi", "llamacpp"} else 0.75)


def test_the_size_of_the_kv_cache_is_blocks_times_block_size() -> None:
    assert read_gauges(VLLM).kv_tokens == 16_000
    assert read_gauges(PAGES["sglang"]).kv_tokens == 16_000


def test_preemptions_are_counted_over_all_ranks_and_unknown_where_the_engine_is_silent() -> None:
    rank = b'vllm:num_preemptions_total{engine="%d",model_name="m"} %d.0\nvllm:num_preemptions_created{engine="%d"} 1.7e9\n'
    assert read_gauges(VLLM + rank % (0, 7, 0) + rank % (1, 2, 1)).preemptions == 9
    assert [read_gauges(PAGES[engine]).preemptions for engine in ("vllm", "sglang", "tgi")] == [None] * 3


_RANK = b'sglang:%s{model_name="m",engine_type="unified",tp_rank="%d",pp_rank="%d",moe_ep_rank="0"%s} %d.0\n'


def test_ranks_of_sglang_that_count_the_same_requests_count_once() -> None:
    """Stages of a pipeline, or all ranks with `--enable-metrics-for-all-schedulers`: the fullest one has all requests."""
    page = b"".join(
        _RANK % (name, rank % 2, rank // 2, b"", number)
        for name, number in ((b"num_running_reqs", 5), (b"num_queue_reqs", 4))
        for rank in range(4)
    )
    gauges = read_gauges(page)
    assert (gauges.running, gauges.waiting) == (5, 4)


def test_ranks_of_sglang_that_have_requests_of_their_own_are_added_up() -> None:
    """Attention by data-parallel ranks, as `--enable-dp-attention` has it: each rank has its own batch."""
    page = b"".join(
        _RANK % (name, rank, 0, b',dp_rank="%d"' % rank, number)
        for name, number in (
            (b"num_running_reqs", 5),
            (b"num_queue_reqs", 4),
            (b"max_total_num_tokens", 4_000),
        )
        for rank in range(4)
    )
    gauges = read_gauges(page)
    assert (gauges.running, gauges.waiting, gauges.kv_tokens) == (20, 16, 16_000)


def test_requests_by_priority_are_part_of_the_total() -> None:
    """SGLang's `--enable-priority-scheduling`: the total has an empty priority, and each priority a series of its own."""
    page = b"".join(
        _RANK % (b"num_running_reqs", 0, 0, b',priority="%b"' % priority, number)
        for priority, number in ((b"", 5), (b"0", 3), (b"10", 2))
    )
    assert read_gauges(page).running == 5


def test_sglang_says_the_size_of_its_cache_by_a_gauge_since_0_5_11() -> None:
    page = b"sglang:num_running_reqs 1\nsglang:max_total_num_tokens 16000.0\nsglang:num_retracted_requests_total 7.0\n"
    assert read_gauges(page).kv_tokens == 16_000
    assert read_gauges(page).preemptions == 7


def test_requests_that_wait_for_the_other_engine_wait() -> None:
    """SGLang with `--disaggregation-mode`: what is being handed over stands in neither of the two usual counts."""
    page = (
        b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\n"
        b"sglang:num_decode_prealloc_queue_reqs 3\nsglang:num_decode_transfer_queue_reqs 4\n"
    )
    assert read_gauges(page).waiting == 9


def test_an_older_name_is_read_too() -> None:
    page = VLLM.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")
    assert read_gauges(page).kv_share == 0.75


@pytest.mark.parametrize("value", [b"NaN", b"-1", b"+Inf", b"many", b"", b"1e30"])
def test_a_value_that_makes_no_sense_is_unknown_and_spoils_nothing_else(value: bytes) -> None:
    gauges = read_gauges(b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 4\n")
    assert (gauges.running, gauges.waiting) == (None, 4)


@pytest.mark.parametrize(
    ("label", "model"),
    [
        (b'{engine="0",model_name="Qwen/Qwen2.5-0.5B"}', "Qwen/Qwen2.5-0.5B"),
        (b'{model_name="a b"}', None),
        (b'{model_name="it\'s"}', None),
        (b'{model_name="\\\\"}', None),
        (b'{model_name=""}', None),
        (b"", None),
    ],
)
def test_the_model_of_the_first_series_is_told_where_its_name_is_harmless(
    label: bytes, model: str | None
) -> None:
    assert read_gauges(b"vllm:num_requests_running" + label + b" 1\n").model == model


@pytest.mark.parametrize("share", [b"1.5", b"-0.1", b"NaN"])
def test_a_share_outside_of_zero_to_one_is_unknown(share: bytes) -> None:
    page = b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc " + share
    assert read_gauges(page) == Gauges("vllm", running=1)


def test_blocks_that_are_not_known_yet_are_unknown() -> None:
    page = b'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
    assert read_gauges(page).kv_tokens is None


@pytest.mark.parametrize(
    ("blocks", "block_tokens"),
    [
        (b"-5", b"16"),
        (b"0", b"16"),
        (b"1", b"16"),
        (b"-1000", b"-16"),
        (b"1e3", b"16"),
        (b"1_000", b"16"),
        (b"9999999999", b"9999999999"),
        (b"9" * 5000, b"16"),
    ],
)
def test_a_size_of_the_kv_cache_that_no_engine_has_is_unknown(blocks: bytes, block_tokens: bytes) -> None:
    """Believed, it would have every request refused as too large."""
    page = b'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="%b",num_gpu_blocks="%b"} 1\n'
    assert read_gauges(page % (block_tokens, blocks)) == Gauges("vllm", running=1)


def test_one_rank_with_an_absurd_size_makes_the_whole_cache_unknown() -> None:
    odd = b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="-5"} 1.0\n'
    assert read_gauges(VLLM).kv_tokens == 16_000
    assert read_gauges(VLLM + odd).kv_tokens is None


@pytest.mark.parametrize(
    "labels",
    [
        b'{engine="0" ,model_name = "m", }',
        b"{}",
        b'{a="\\\\",b="\\"} 9"}',
        b'{a="x y{z}"}',
    ],
)
def test_labels_may_be_written_in_any_way_of_the_format(labels: bytes) -> None:
    assert read_gauges(b"vllm:num_requests_running" + labels + b" 5\n").running == 5


@pytest.mark.parametrize(
    "line",
    [b"{" + b"a" * 9_000 + b"} 1", b'{a="} 1', b"{a=b} 1", b'{a="b" 1', b'{"a"} 1', b'{a="b"}'],
)
def test_a_line_whose_labels_cannot_be_read_is_unknown_and_spoils_its_gauge_alone(line: bytes) -> None:
    page = b"vllm:num_requests_waiting 4\nvllm:num_requests_running 3\nvllm:num_requests_running" + line
    gauges = read_gauges(page)
    assert (gauges.engine, gauges.running, gauges.waiting) == ("vllm", None, 4)


@pytest.mark.parametrize(
    "flood",
    [
        b'vllm:num_requests_running{engine="%d"} 1\n' * 2_000,
        b"vllm:num_requests_running{" + b'a="",' * 1_000 + b"} 1\n",
        b"vllm:num_requests_running " + b"1" * 10_000 + b"\n",
    ],
)
def test_a_gauge_with_more_lines_bytes_or_labels_than_are_read_is_unknown(flood: bytes) -> None:
    gauges = read_gauges(flood * 9 + b"vllm:num_requests_waiting 4\n")
    assert (gauges.engine, gauges.running, gauges.waiting) == ("vllm", None, 4)


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b"\0" * 100, b"go_threads 5\n", b"x" * (MOST_PAGE_BYTES + 1)]
)
def test_a_page_of_something_else_is_unknown(page: bytes) -> None:
    assert read_gauges(page) == Gauges()


def test_a_last_line_without_its_end_is_read() -> None:
    assert read_gauges(b"vllm:num_requests_running 7").running == 7


def test_a_timestamp_behind_the_value_is_ignored() -> None:
    assert read_gauges(b"vllm:num_requests_running 7 1700000000000\n").running == 7


def test_names_can_be_given() -> None:
    names = (GaugeNames("mine", "active{kind=llm}", ("queued",)),)
    page = b'active{kind="llm"} 2\nactive{kind="other"} 5\nqueued 1\n'
    assert read_gauges(page, names) == Gauges("mine", 2, 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(noise: bytes) -> None:
    read_gauges(VLLM + noise)
    read_gauges(b"vllm:num_requests_running" + noise)


def _adapters(max_lora: str, running: str, at: str = "1.7e9") -> bytes:
    labels = f'max_lora="{max_lora}",running_lora_adapters="{running}",waiting_lora_adapters="tea"'
    return f"vllm:lora_requests_info{{{labels}}} {at}\n".encode()


def test_the_newest_line_about_adapters_counts() -> None:
    lines = _adapters("4", "law", "1.7e9") + _adapters("4", "law,tax", "1.8e9") + _adapters("4", "", "1.75e9")

    assert read_gauges(VLLM + lines).adapters == AdaptersSeen(4, ("law", "tax"))
    assert read_gauges(VLLM + _adapters("4", "")).adapters == AdaptersSeen(4, ())
    assert read_gauges(VLLM).adapters is None


@pytest.mark.parametrize(
    "line",
    [
        _adapters("0", ""),
        _adapters("10001", ""),
        _adapters("-1", ""),
        _adapters("four", ""),
        _adapters("1", "law,tax"),
        _adapters("4", "l aw"),
        _adapters("4", "law", "NaN"),
        _adapters("4", "law", "-1"),
        _adapters("4", "law") * 1_025,
    ],
)
def test_what_makes_no_sense_of_adapters_is_unknown_and_spoils_nothing_else(line: bytes) -> None:
    gauges = read_gauges(VLLM + line)

    assert gauges.adapters is None
    assert (gauges.running, gauges.waiting) == (5, 4)
