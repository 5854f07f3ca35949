"""The engine's accounts: exposition format, bounded series, and what a reset resets."""

from prometheus_client.parser import text_string_to_metric_families

from millgate.engine.batching import Batch
from millgate.engine.profile import find_profile
from millgate.engine.sequences import EngineSequence
from millgate.observe.histogram import Buckets
from millgate.servers.emulator.meters import SERIES_ROWS, Meters, histogram_lines


def engine() -> tuple[Batch, Meters]:
    profile = find_profile("demo")
    batch = Batch(profile.step_model(), profile.limits())
    return batch, Meters(profile.limits(), 'mo"del', 0.0, batch.statistics(0.0))


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    histogram = Buckets((1.0, 2.0))
    histogram.add(1.0)
    histogram.add(1.5, 3)
    histogram.add(9.0)

    assert histogram_lines("x", 'a="b"', histogram.read()) == [
        "# TYPE x histogram",
        'x_bucket{a="b",le="1.0"} 1',
        'x_bucket{a="b",le="2.0"} 4',
        'x_bucket{a="b",le="+Inf"} 5',
        'x_sum{a="b"} 14.5',
        'x_count{a="b"} 5',
    ]


def test_metrics_parse_and_carry_the_names_that_gateways_read() -> None:
    batch, meters = engine()
    for number in range(20):
        batch.add(EngineSequence(number, 100, 1000), 0.0)
    meters.ttft.add(0.2)
    statistics = batch.statistics(1.0)
    families = {
        family.name: family for family in text_string_to_metric_families(meters.metrics(statistics).decode())
    }

    assert families["vllm:num_requests_running"].samples[0].value == 16
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == 'mo"del'
    assert families["vllm:num_requests_waiting"].samples[0].value == 4
    assert 0 < families["vllm:kv_cache_usage_perc"].samples[0].value < 1
    assert families["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"] == "2048"
    assert families["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"
    assert families["vllm:num_preemptions"].samples[0].value == 0
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:inter_token_latency_seconds"].type == "histogram"


def test_a_reset_starts_the_counts_of_stats_again_and_leaves_those_of_metrics() -> None:
    batch, meters = engine()
    batch.add(EngineSequence(1, 100, 5), 0.0)
    meters.received = 1
    before = meters.stats(9.0, batch.statistics(9.0))
    metrics = meters.metrics(batch.statistics(9.0))
    batch.reset_peaks(9.0)
    meters.reset(9.0, batch.statistics(9.0))
    after = meters.stats(10.0, batch.statistics(10.0))

    names = ("received", "executed", "finished", "output_tokens", "peak_running", "peak_running_and_waiting")
    assert [before[name] for name in names] == [1, 1, 1, 5, 1, 1]
    assert [after[name] for name in names] == [0, 0, 0, 0, 0, 0]
    assert after["since_s"] == 1.0
    assert meters.metrics(batch.statistics(10.0)) == metrics


def test_the_series_keeps_the_newest_rows_and_their_differences() -> None:
    batch, meters = engine()
    batch.add(EngineSequence(1, 100, 2000), 0.0)
    for second in range(1, SERIES_ROWS + 11):
        meters.second(float(second), batch.statistics(float(second)))
    series = meters.stats(0.0, batch.statistics(1000.0))["series"]

    assert isinstance(series, list)
    assert len(series) == SERIES_ROWS
    assert series[0]["at_s"] == 11.0
    assert 60 < series[0]["output_tokens"] < 90
