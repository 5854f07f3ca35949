"""What is read out of entries as Envoy writes them."""

import pytest

pytest.importorskip("envoy", reason="needs the extra extproc")

from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry

from millgate.core.words import FailureKind
from millgate.servers.extproc.running import LoggedRequest, read_entry
from millgate.servers.extproc.settings import FIRST_BODY_MS, METADATA, USAGE

STARTED_S = 1_800_000_000


def entry(kind: int = AccessLogType.DownstreamEnd, **read: float) -> HTTPAccessLogEntry:
    """Return an entry of a request that was there whole a quarter of a second after its head."""
    made = HTTPAccessLogEntry()
    common = made.common_properties
    common.access_log_type = kind
    common.start_time.seconds = STARTED_S
    common.time_to_last_rx_byte.nanos = 250_000_000
    common.time_to_first_upstream_rx_byte.nanos = 251_000_000
    common.metadata.filter_metadata[METADATA].fields["attempt"].string_value = "a-1"
    for name, number in read.items():
        common.metadata.filter_metadata[USAGE].fields[name].number_value = number
    made.response.response_code.value = 200
    made.response.response_body_bytes = 700
    return made


def test_the_first_token_is_the_body_s_beginning_not_the_head_s() -> None:
    """vLLM sends the head of a stream before it has read the prompt; an entry of a running request has no duration."""
    periodic = entry(AccessLogType.DownstreamPeriodic, **{FIRST_BODY_MS: 1000.0 * STARTED_S + 1750.0})

    found = read_entry(periodic)

    assert found == LoggedRequest("a-1", goes_on=True, first_body_s=1.5, body_bytes=700)


def test_without_that_time_no_first_token_is_known() -> None:
    found = read_entry(entry())

    assert found is not None
    assert found.first_body_s is None


def test_an_end_has_its_usage_and_a_stranger_is_none_of_ours() -> None:
    found = read_entry(entry(prompt_tokens=7, completion_tokens=3, output_tokens=4, cached_tokens=-1))

    assert found is not None
    assert found.usage == (7, 4, None)
    assert read_entry(HTTPAccessLogEntry()) is None


def test_what_anthropic_counts_beside_the_prompt_is_of_it_also_while_it_runs() -> None:
    found = read_entry(
        entry(
            AccessLogType.DownstreamPeriodic, prompt_tokens=8, cache_read_tokens=992, cache_written_tokens=100
        )
    )

    assert found is not None
    assert found.usage == (1100, None, 992)


def test_vllm_s_message_begins_with_its_whole_prompt_and_ends_with_what_was_cached_of_it() -> None:
    found = read_entry(entry(prompt_tokens=121, output_tokens=16, cached_tokens=96))

    assert found is not None
    assert found.usage == (121, 16, 96)


def test_a_client_that_left_and_an_engine_that_broke_are_told_apart() -> None:
    left, broken = entry(), entry()
    left.common_properties.response_flags.downstream_connection_termination = True
    broken.common_properties.response_flags.upstream_connection_termination = True

    told = [read_entry(each) for each in (left, broken)]

    assert [each.left for each in told if each] == [True, False]
    assert [each.failure[0] for each in told if each and each.failure] == [FailureKind.BROKEN]
