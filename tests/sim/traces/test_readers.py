"""Published traces, read as they are and complained of by line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millgate.sim.jobs import PREFIX_UNIT_TOKENS
from millgate.sim.randomness import Streams
from millgate.sim.traces.mooncake import QUANTUM_S, read_mooncake
from millgate.sim.traces.sources import open_trace
from millgate.sim.traces.tables import TraceError, read_azure, read_clients27


def test_azure_conversation_has_its_published_size_and_rate(shared_data: Callable[[str], Path]) -> None:
    jobs = list(read_azure(shared_data("traces/AzureLLMInferenceTrace_conv.csv")))

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
    jobs = list(read_clients27(shared_data("traces/vtc_real_trace_27clients.csv")))

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
        ("a.csv", "", "a.csv:1: the columns must be TIMESTAMP,ContextTokens,GeneratedTokens, not ''"),
        ("a.csv", "TIMESTAMP,GeneratedTokens,ContextTokens\n", "a.csv:1: the columns must be TIMESTAMP,"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a.csv:2: there is no request"),
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
        ("c.csv", "req_time_s,client,prompt_len,output_len\nx,1,2,3\n", "c.csv:2: not a request"),
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


def test_a_file_of_mooncakes_form_with_finer_times_keeps_its_order(tmp_path: Path) -> None:
    """Each request was spread over three seconds, so that most overtook the next, which was then too late by as much."""
    path = tmp_path / "m.jsonl"
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1}}\n'
    path.write_text("".join(line.format(100 * number, number + 1) for number in range(50)))

    jobs = list(open_trace(str(path), Streams(1), 1.0, 1.0))

    assert [job.prompt_tokens for job in jobs] == list(range(1, 51))
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert all(0.1 * n <= job.at_s <= 0.1 * (n + 1) for n, job in enumerate(jobs[:-1]))
