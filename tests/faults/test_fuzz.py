"""The fuzzer itself: what it may execute, and that a payload which does harm is kept (`make fuzz` runs it long)."""

import random
from pathlib import Path

from lab.upstream import FakeUpstream

from faults import corpus
from faults.findings import save
from faults.fuzz import BATCH, Run, strictly_readable
from faults.fuzz_answers import BATCH as ANSWERS, WITH_LINE, AnswerRun, goes_on_listening
from faults.process import GateProcess
from faults.starter import Starter


def test_two_batches_do_no_harm(start: Starter, upstream: FakeUpstream) -> None:
    run = Run(start(upstream.url), upstream, random.Random(1))
    run.batch()
    run.batch()
    assert (run.sent, run.findings) == (2 * BATCH, [])
    assert run.statuses["400"] > 0


def test_a_batch_of_mutated_answers_does_no_harm(start: Starter, upstream: FakeUpstream) -> None:
    run = AnswerRun(start(upstream.url, max_inflight=ANSWERS, settings=WITH_LINE), upstream, random.Random(1))
    run.batch()
    assert (run.sent, run.findings) == (ANSWERS, [])
    assert run.statuses["502"] > 0
    assert run.statuses["200"] > 0


def test_an_engine_that_goes_on_behind_its_end_is_let_go_of(start: Starter, upstream: FakeUpstream) -> None:
    assert list(goes_on_listening(start(upstream.url), upstream)) == []


def test_the_answers_that_killed_the_gateway_are_kept(upstream: FakeUpstream, tmp_path: Path) -> None:
    gate = GateProcess(upstream.url, errors=tmp_path / "stderr.txt", settings=WITH_LINE)
    run = AnswerRun(gate, upstream, random.Random(1))
    run.batch()
    gate.process.kill()
    gate.process.wait()
    run.account()
    gate.stop()
    assert run.is_over
    assert run.findings[-1].text.startswith("the gate has died")
    assert run.findings[-1].payloads


def test_what_was_sent_when_the_gateway_died_is_saved(upstream: FakeUpstream, tmp_path: Path) -> None:
    gate = GateProcess(upstream.url, errors=tmp_path / "stderr.txt")
    run = Run(gate, upstream, random.Random(1))
    gate.process.kill()
    gate.stop()
    run.batch()
    assert run.is_over
    (finding,) = run.findings
    assert finding.text.startswith("the gateway has died")
    save(run.findings, tmp_path / "found", seed=7)
    files = sorted((tmp_path / "found").iterdir())
    assert [file.read_bytes() for file in files] == list(finding.payloads)
    assert files[0].name == "seed-7-finding-1-01.bin"


def test_a_strict_reader_sees_whole_requests_and_stops_at_what_is_none() -> None:
    whole = corpus.post(b"Content-Length: %d" % len(corpus.BODY), body=corpus.BODY)
    (first, second) = strictly_readable(whole + corpus.GOOD + b"POST")
    assert (first.method, first.target, first.body) == (b"POST", corpus.PATH, corpus.BODY)
    assert second.body == b""
    assert strictly_readable(whole[:-1]) == []
    unexecuted = b"HEAD /health HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert [each.method for each in strictly_readable(unexecuted + whole)] == [b"HEAD", b"OPTIONS", b"POST"]
    assert strictly_readable(b"x" + whole) == []
