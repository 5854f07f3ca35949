"""An engine that fails what Envoy sends it is left alone, though its health page answers; and it gets work again when it is well."""

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from google.protobuf.json_format import MessageToDict

from gateway.harness import run, until
from millgate.core.words import FailureKind
from millgate.runtime.health import Stance
from millgate.servers.extproc.attempt import EnvoyAttempt
from millgate.servers.extproc.running import FailedAnswer, LoggedRequest, read_entry
from servers.extproc.envoys import DUPLEX, NONE, Conversation, Stand, standing
from servers.extproc.test_access_log import entry
from servers.extproc.test_process import STREAM

BROKEN = FailedAnswer(FailureKind.BROKEN)
STATUS_500 = FailedAnswer(FailureKind.STATUS, status=500)


async def _sent(
    stand: Stand, modes: tuple[int, int] = (DUPLEX, NONE), subset: str | None = None
) -> tuple[str, str, Conversation]:
    """Let one request through; return to which engine it went, what the access log calls it, and its stream."""
    talk = stand.open()
    await talk.head(modes=modes, subset=subset)
    await talk.body(STREAM)
    told = await talk.told()
    metadata = MessageToDict(told.dynamic_metadata)
    address = metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    return f"engine-{stand.destinations.index(address)}", metadata["millgate"]["attempt"], talk


def _logged(stand: Stand, name: str, failure: FailedAnswer | None) -> None:
    door = stand.gateway.extproc
    assert door is not None
    door._desk.running.heard(LoggedRequest(name, goes_on=False, first_body_s=0.01, failure=failure))


def _stance(stand: Stand, engine: str) -> Stance:
    return next(each.stance for each in stand.gateway.fleet.standings if each.name == engine)


async def _fail(stand: Stand, engine: str, failure: FailedAnswer, times: int) -> None:
    """Have this engine fail so many of its requests, and the other one answer its own."""
    while times:
        went, name, _ = await _sent(stand)
        _logged(stand, name, failure if went == engine else None)
        times -= went == engine


@pytest.mark.parametrize("failure", [STATUS_500, BROKEN])
def test_an_engine_that_fails_three_requests_in_a_row_gets_no_more(failure: FailedAnswer) -> None:
    """It is never full, so nearly all requests went there and failed, while another one was idle."""

    async def scene() -> None:
        async with standing(engines=2) as stand:
            await _fail(stand, "engine-0", failure, 3)

            assert _stance(stand, "engine-0") is Stance.DOWN
            assert {(await _sent(stand))[0] for _ in range(4)} == {"engine-1"}

    run(scene())


@pytest.mark.parametrize("failure", [None, BROKEN])
def test_after_its_probation_one_request_says_whether_an_engine_is_well(failure: FailedAnswer | None) -> None:
    async def scene() -> None:
        async with standing(engines=2) as stand:
            await _fail(stand, "engine-0", BROKEN, 3)
            await until(lambda: _stance(stand, "engine-0") is Stance.TRIAL)

            went = [await _sent(stand) for _ in range(4)]
            assert [engine for engine, _, _ in went].count("engine-0") == 1
            _logged(stand, next(name for engine, name, _ in went if engine == "engine-0"), failure)

            assert _stance(stand, "engine-0") is (Stance.UP if failure is None else Stance.DOWN)

    run(scene())


@pytest.mark.parametrize(
    "failure",
    [
        FailedAnswer(FailureKind.REFUSED, status=503),
        FailedAnswer(FailureKind.STATUS, status=404),
        FailedAnswer(FailureKind.CONNECT, status=None),
    ],
)
def test_what_is_no_fault_of_an_engine_costs_it_no_work(failure: FailedAnswer) -> None:
    async def scene() -> None:
        async with standing(engines=2) as stand:
            await _fail(stand, "engine-0", failure, 4)

            assert _stance(stand, "engine-0") is Stance.UP

    run(scene())


@pytest.mark.parametrize(("late", "stance"), [(True, Stance.DOWN), (False, Stance.UP)])
def test_clients_that_leave_a_silent_engine_after_its_time_take_it_out_and_impatient_ones_do_not(
    late: bool, stance: Stance
) -> None:
    async def scene() -> None:
        async with standing(engines=2) as stand:
            door = stand.gateway.extproc
            assert door is not None
            for _ in range(3):
                _, name, _ = await _sent(stand, subset=stand.destinations[0])
                attempt = door._desk.running._leases[name].request
                assert isinstance(attempt, EnvoyAttempt)
                attempt._first_event_by -= 3_600.0 if late else 0.0
                door._desk.running.heard(LoggedRequest(name, goes_on=False, left=True))

            assert _stance(stand, "engine-0") is stance

    run(scene())


def test_answers_that_pass_by_and_are_none_take_an_engine_out_too() -> None:
    async def scene() -> None:
        async with standing(engines=2) as stand:
            failed = 0
            while failed < 3:
                went, _, talk = await _sent(stand, (DUPLEX, DUPLEX))
                await talk.told()
                is_page = went == "engine-0"
                page, events = b"<html>", b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
                await talk.answer(
                    200, [page if is_page else events], "text/html" if is_page else "text/event-stream"
                )
                failed += is_page

            await until(lambda: _stance(stand, "engine-0") is Stance.DOWN)

    run(scene())


def _failure(made: HTTPAccessLogEntry) -> FailedAnswer | None:
    found = read_entry(made)
    assert found is not None
    return found.failure


def test_the_log_says_whose_failure_it_was() -> None:
    of_engine, of_envoy, unsent, reset = entry(), entry(), entry(), entry()
    for each in (of_engine, of_envoy):
        each.response.response_code.value = 500
    of_engine.response.response_code_details = "via_upstream"
    of_envoy.response.response_code_details = "ext_proc_error"
    unsent.common_properties.response_flags.upstream_overflow = True
    reset.common_properties.response_flags.upstream_remote_reset = True

    found = [_failure(each) for each in (of_engine, of_envoy, unsent, reset)]

    assert [each and (each.kind, each.status) for each in found] == [
        (FailureKind.STATUS, 500),
        (FailureKind.STATUS, None),
        (FailureKind.CONNECT, None),
        (FailureKind.BROKEN, 0),
    ]
