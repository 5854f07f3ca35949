"""Rows 1-7 and 17: what is no HTTP/1.1, or could be read in two ways, is refused; nothing of it reaches an engine."""

import time

import pytest
from lab.upstream import FakeUpstream

from faults import corpus
from faults.corpus import GOOD, Odd
from faults.process import GateProcess
from faults.talk import Talk
from http1.server import malformed
from http1.server.malformed import Case

AT_ONCE = 64
"""Payloads under way together: some end only with a deadline."""


def verdict(case: Case, talk: Talk) -> str:
    """Return what is wrong with the answer to one payload, empty when nothing is."""
    try:
        said = talk.rest(5.0)
    except AssertionError as still_open:
        return str(still_open)
    finally:
        talk.close()
    answers = said.split(b"HTTP/1.1 ")[1:]
    statuses = [int(answer[:3]) for answer in answers]
    if statuses[:-1] != [200] * case.served or statuses[-1:] == [] or statuses[-1] not in case.statuses:
        return f"answered {statuses}, expected one of {case.statuses}"
    if b"connection: close\r\n" not in answers[-1] or b'{"error":' not in answers[-1]:
        return f"the last answer is {answers[-1][:300]!r}"
    return ""


def all_refused(
    gate: GateProcess, upstream: FakeUpstream, *families: list[Case], at_once: int = AT_ONCE
) -> None:
    """Send every payload of these families; fail with the list of those that were not refused."""
    cases = [case for family in families for case in family]
    wrong = []
    for begin in range(0, len(cases), at_once):
        talks = [(case, gate.connect()) for case in cases[begin : begin + at_once]]
        for case, talk in talks:
            talk.try_send(case.payload)
        wrong += [f"{case.name}: {told}" for case, talk in talks if (told := verdict(case, talk))]
    assert not wrong, "\n".join(wrong)
    good = [request.target for request in upstream.received]
    assert good == [b"/v1/models"] * sum(case.served for case in cases)
    assert gate.ended() == {}


def real(*families: list[Case]) -> list[Case]:
    return [corpus.real(case) for family in families for case in family]


def test_row_1_and_2_two_framings_and_unknown_codings_are_refused(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    all_refused(gate, upstream, real(malformed.LENGTHS, malformed.FRAMING), corpus.FRAMING)


def test_row_3_malformed_chunks_are_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    all_refused(gate, upstream, real(malformed.CHUNKS), corpus.CHUNKS)


def test_row_4_malformed_lines_are_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    all_refused(gate, upstream, real(malformed.LINES), corpus.LINES)


def test_row_5_anything_but_one_valid_host_is_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    all_refused(gate, upstream, real(malformed.HOSTS), corpus.HOSTS)


def test_row_6_other_versions_and_upgrades_are_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    all_refused(gate, upstream, real(malformed.OPENINGS, malformed.UPGRADES), corpus.OPENINGS)


def test_row_7_heads_beyond_the_caps_are_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    all_refused(gate, upstream, real(malformed.SIZES), corpus.SIZES)


def test_row_17_other_protocols_on_the_plain_port_are_refused(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    all_refused(gate, upstream, corpus.PROTOCOLS, real(malformed.EXPECTATIONS))


def test_what_is_refused_is_refused_too_behind_a_good_request(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    # The good request before is the list of models, of which a gate serves sixteen at once.
    all_refused(gate, upstream, real(malformed.BEHIND), corpus.BEHIND, at_once=8)


def test_a_refused_connection_executes_nothing_that_comes_later(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    """What follows a bad request in the same segment or in the next one is never read as a request."""
    for case in (*corpus.FRAMING[:3], *corpus.HOSTS[:3], *corpus.OPENINGS[:3]):
        talk = gate.connect()
        talk.try_send(case.payload + corpus.SMUGGLED)
        time.sleep(0.005)
        talk.try_send(corpus.SMUGGLED * 3)
        talk.rest(5.0)
    assert upstream.received == []
    assert gate.ended() == {}


@pytest.mark.parametrize("odd", corpus.ODD, ids=[odd.name for odd in corpus.ODD])
def test_an_odd_but_valid_request_is_served_exactly_as_often_as_it_was_sent(
    gate: GateProcess, upstream: FakeUpstream, odd: Odd
) -> None:
    talk = gate.connect()
    talk.send(odd.payload)
    answers = [talk.answer() for _ in range(odd.times)]
    assert [answer.status for answer in answers] == [200] * odd.times
    assert len(upstream.received) == odd.times
    for request in upstream.received:
        assert request.body in {b"", corpus.BODY}
        assert request.header(b"host") == f"127.0.0.1:{upstream.port}".encode()
        assert request.header(b"transfer-encoding") is None
        assert request.header(b"content-length") in {None, corpus.SIZE}
    talk.send(GOOD)
    assert talk.answer().status == 200


@pytest.mark.parametrize("cut", [False, True], ids=["served", "completed by what follows"])
def test_what_follows_a_chunked_request_never_joins_its_body(
    gate: GateProcess, upstream: FakeUpstream, cut: bool
) -> None:
    """Two requests in one segment: the first is served with its own body or refused, never with the other's."""
    body, rest = (corpus.BODY[:-1], b"}") if cut else (corpus.BODY, b"{}")
    talk = gate.connect()
    talk.send(
        corpus.post(b"Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        + corpus.post(b"Content-Length: %d" % len(rest), body=rest)
    )
    assert talk.answer().status == (400 if cut else 200)
    assert [request.body for request in upstream.received] == ([] if cut else [corpus.BODY])


@pytest.mark.parametrize("path", corpus.PATHS, ids=[case.name for case in corpus.PATHS])
def test_row_14_a_path_that_is_not_served_is_never_forwarded(
    gate: GateProcess, upstream: FakeUpstream, path: Case
) -> None:
    talk = gate.connect()
    talk.send(path.payload)
    answer = talk.answer()
    assert answer.status in path.statuses
    assert answer.error["type"] == "invalid_request_error"
    assert upstream.received == []
