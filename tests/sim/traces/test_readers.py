"""Published traces, read as they are and complained of by line."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.sources import QUANTUM_S, open_trace, read_mooncake
from millgate.sim.traces.tables import TraceError, read_table

CLIENTS = "req_time_s,client,prompt_len,output_len"


def test_azure_conversation_has_its_published_size_and_rate(shared_data: Callable[[str], Path]) -> None:
    jobs = list(read_table(shared_data("traces/AzureLLMInferenceTrace_conv.csv")))

    assert (len(jobs), jobs[0].at_s, jobs[0].prompt_tokens, jobs[0].output_tokens) == (19_366, 0.0, 374, 44)
    assert len(jobs) / jobs[-1].at_s == pytest.approx(5.53, rel=0.01)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)


def test_mooncake_is_spread_over_its_quantum_in_order_and_by_seed(shared_data: Callable[[str], Path]) -> None:
    path = shared_data("traces/mooncake_conversation_trace.jsonl")
    one, same, other = (list(read_mooncake(path, Streams(seed))) for seed in (1, 1, 2))
    times = [job.at_s for job in one]

    assert len(one) == 12_031
    assert times == sorted(times)
    assert times == [job.at_s for job in same]
    assert times != [job.at_s for job in other]
    assert all(abs(left.at_s - right.at_s) < QUANTUM_S for left, right in zip(one, other, strict=True))
    assert all(len(job.prefix_ids) == job.prompt_tokens // PREFIX_UNIT_TOKENS for job in one)


def test_the_27_clients_are_tenants(shared_data: Callable[[str], Path]) -> None:
    jobs = list(read_table(shared_data("traces/vtc_real_trace_27clients.csv")))

    assert (len(jobs), len({job.tenant for job in jobs})) == (1500, 27)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "a.csv:2: 'never' is not a time"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,x,2\n",
            "a.csv:2: 'x' is not",
        ),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "a.csv:2: expected 3 columns"),
        ("a.csv", "", "a.csv:1: the columns must be TIMESTAMP,.* or req_time_s,.*, not ''"),
        ("a.csv", "TIMESTAMP,ContextTokens\n", "a.csv:1: the columns must be TIMESTAMP,"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a.csv:1: there is no request"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:02.5,1,2\n2023-11-16 18:00:00.0,1,2\n",
            "a.csv:3: comes 2.5 s before the line above it: sort by time",
        ),
        (
            "m.jsonl",
            "\n".join(f'{{"timestamp": {at}, "input_length": 1, "output_length": 1}}' for at in (9, 5)),
            "m.jsonl:2: comes 0.004 s before",
        ),
        ("c.csv", "req_time_s,client,prompt_len,output_len\n2,1,2,3\n1,1,2,3\n", "c.csv:3: comes 1 s before"),
        ("m.jsonl", '{"timestamp": 0}\n', "m.jsonl:1: not a request"),
        (
            "c.csv",
            f"{CLIENTS}\n0,1,2,3\n1700000000,1,2,3\n",
            "c.csv:3: comes 1.7e.09 s after the line above it",
        ),
        ("c.csv", f"{CLIENTS}\nx,1,2,3\n", "c.csv:2: 'x' is not a time: write a date, or seconds"),
        ("c.csv", f"{CLIENTS}\n0,1,2,3\n\nnan,1,2,3\n", "c.csv:4: 'nan' is not a time in seconds"),
        ("c.csv", f"{CLIENTS}\ninf,1,2,3\n", "c.csv:2: 'inf' is not a time in seconds"),
        ("c.csv", f"{CLIENTS}\n1772355600014,1,2,3\n", "c.csv:2: '1772355600014' is not a time in seconds"),
        ("s.jsonl", '{"block_tokens": 512, "requests": []}\n', "s.jsonl:1: there is no request"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        list(open_trace(str(path), Streams(1), 1.0, 1.0))


def test_an_unknown_trace_is_answered_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="azure_conversation"):
        open_trace("nothing", Streams(1), 1.0, 1.0)


def test_a_file_of_mooncakes_form_with_finer_times_keeps_them(tmp_path: Path) -> None:
    """Each request was moved at random towards the next, by up to three seconds, which smoothed bursts."""
    path = tmp_path / "m.jsonl"
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1}}\n'
    path.write_text("".join(line.format(100 * number, number + 1) for number in range(50)))

    jobs = list(open_trace(str(path), Streams(1), 1.0, 1.0))

    assert [job.prompt_tokens for job in jobs] == list(range(1, 51))
    assert [job.at_s for job in jobs] == pytest.approx([0.1 * number for number in range(50)])


def jobs_of(tmp_path: Path, name: str, text: str | bytes) -> list[Job]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(open_trace(str(path), Streams(1), 1.0, 1.0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", f"\ufeff{CLIENTS}\r\n0,1,20,30\r\n\r\n2.5,1,20,30\r\n"),
        ("c.csv", f"{CLIENTS}\n1772355600.5,1,20,30\n1772355603,1,20,30\n"),
        ("c.csv", f"{CLIENTS}\n-3,1,20,30\n-0.5,1,20,30\n"),
        ("c.csv", f'client,more,{CLIENTS.replace("client,", "")}\n1,x,"0",20,30\n1,"a,b",2.5,20,30\n'),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-03-01T09:00:00.5Z,20,30\n2026-03-01T10:00:03+01:00,20,30\n",
        ),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1772355600,20,30\n1772355602.5,20,30\n"),
    ],
    ids=[
        "a mark of the byte order, CRLF and a blank line",
        "seconds since 1970",
        "seconds below 0",
        "other columns and another order",
        "zones",
        "seconds in place of dates",
    ],
)
def test_tables_as_people_have_them_begin_at_0(tmp_path: Path, name: str, text: str) -> None:
    """Times since 1970 were played from 1970 on, so that a run never ended; zones were cut off."""
    jobs = jobs_of(tmp_path, name, text)

    assert [(job.at_s, job.prompt_tokens, job.output_tokens) for job in jobs] == [(0, 20, 30), (2.5, 20, 30)]


def test_lines_of_json_may_have_a_mark_of_the_byte_order_times_since_1970_and_blank_lines(
    tmp_path: Path,
) -> None:
    line = '{{"timestamp": {}, "input_length": 20, "output_length": 30}}\n'
    text = "\ufeff" + line.format(1772355600000) + "\n" + line.format(1772355604000) + "\n"
    first, second = jobs_of(tmp_path, "log.json", text)

    assert 0.0 <= first.at_s <= 3.0
    assert 4.0 <= second.at_s <= 7.0


def test_tenant_lane_and_the_clients_bound_are_read_where_a_trace_has_them(tmp_path: Path) -> None:
    (row,) = jobs_of(tmp_path, "c.csv", f"{CLIENTS},tenant,lane,max_tokens\n0,7,2,3,ann,night,64\n")
    (bare,) = jobs_of(tmp_path, "c.csv", f"{CLIENTS},tenant,lane,max_tokens\n0,7,2,3,,,\n")
    (line,) = jobs_of(
        tmp_path,
        "m.jsonl",
        '{"timestamp": 0, "input_length": 2, "output_length": 3, "tenant": "ann", "lane": "night", "max_tokens": 64}',
    )

    assert (row.tenant, row.lane, row.max_tokens) == ("ann", "night", 64)
    assert (bare.tenant, bare.lane, bare.max_tokens) == ("client-7", None, None)
    assert (line.tenant, line.lane, line.max_tokens) == ("ann", "night", 64)


@pytest.mark.parametrize(
    "text",
    [gzip.compress(CLIENTS.encode(), mtime=0), CLIENTS.encode("utf-16"), b"a\0b\n" * 9],
    ids=["gzip", "utf-16", "zeros"],
)
def test_what_is_no_table_is_named_with_its_file(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(TraceError, match=r"c.csv:1: "):
        jobs_of(tmp_path, "c.csv", text)
