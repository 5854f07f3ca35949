"""Where light requests are passed on: to which engine, and not too many at a time."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from millgate.core.words import Reason
from millgate.dialects.contract import BadInputError
from millgate.dialects.responses import INPUT_TOKENS, goes_on_from
from millgate.http1.client import Call
from millgate.http1.server.contract import Exchange
from millgate.runtime.driver import Driver
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.http.answers import WholeAnswer
from millgate.servers.http.contract import DoorSettings, Ongoing
from millgate.servers.http.error_responses import ErrorResponses
from millgate.servers.http.kept_answers import KeptAnswers, not_kept
from millgate.servers.http.light import LightRequest
from millgate.servers.http.model_list import ModelList
from millgate.servers.http.paths import MODELS, kept_answer, listed_model, wants_stream
from millgate.servers.http.streams import StreamAnswer
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.routes import EngineRoute

_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 1.0


class House(Protocol):
    """What it asks of its door."""

    driver: Driver
    engines: Mapping[str, EngineRoute]
    settings: DoorSettings
    kept_answers: KeptAnswers
    error_responses: ErrorResponses


class Passthrough:
    """Passes on what needs no permit, `light_at_once` of them together; `ongoing` is the door's list of exchanges."""

    def __init__(self, house: House, ongoing: dict[Exchange, Ongoing]) -> None:
        self._house = house
        self._ongoing = ongoing
        self._under_way = 0

    def pass_on(self, exchange: Exchange, reading: HeadReading, request_id: bytes, body: bytes) -> None:
        """Relay a light request to the engine that it is for, or refuse it when too many are under way."""
        house, dialect = self._house, reading.dialect
        if self._under_way >= house.settings.light_at_once:
            answer = dialect.refuser.refuse(Reason.SATURATED, _RETRY_S, retry=True, request_id=request_id)
            exchange.respond(answer.status, answer.headers, answer.body)
            return
        engines = self._engines(exchange.head.path, reading, body)
        if not engines:
            house.error_responses.reject(exchange, dialect, request_id, not_kept())
            return
        self._under_way += 1
        wanted = listed_model(exchange.head.path)
        if wanted is not None and len(house.engines) > 1:
            self._list_models(exchange, reading, request_id, wanted)
            return
        send = partial(_send, reading, body)
        request = LightRequest(exchange, request_id, dialect, partial(self._done, exchange), send, engines)
        self._ongoing[exchange] = request
        request.begin()

    def _engines(self, path: bytes, reading: HeadReading, body: bytes = b"") -> list[EngineRoute]:
        """Return the engine that keeps what is asked for; none when none of several does, or it may be another tenant's.

        What every engine knows is asked of those that are up, and of one that is down rather than of none.
        """
        house = self._house
        answer_id = _named_in(body) if path == INPUT_TOKENS else kept_answer(path)
        if answer_id is not None:
            separates = reading.callers.separates
            if not house.kept_answers.may_ask(answer_id, reading.caller.tenant, separates=separates):
                return []
            keeper = house.kept_answers.find(answer_id)
            if keeper is not None:
                kept_at = house.engines.get(keeper.engine)
                return [kept_at] if kept_at is not None else []
        engines = list(house.engines.values())
        if len(engines) == 1:
            return engines
        if answer_id is not None:
            return []
        up = {engine.name for engine in house.driver.snapshot().engines if engine.up}
        return [engine for engine in engines if engine.name in up] or engines[:1]

    def _list_models(self, exchange: Exchange, reading: HeadReading, request_id: bytes, wanted: str) -> None:
        """Ask every engine that is up for its models, and answer with all of them, or with the one that is `wanted`."""
        house, head = self._house, exchange.head
        done = partial(self._done, exchange)
        only = house.settings.models
        models = ModelList(
            exchange, reading, request_id, house.error_responses, done, wanted=wanted or None, only=only
        )
        self._ongoing[exchange] = models
        _path, mark, query = head.target.partition(b"?")
        models.begin(self._engines(head.path, reading), MODELS + mark + query)

    def _done(self, exchange: Exchange) -> None:
        self._under_way -= 1
        self._ongoing.pop(exchange, None)


def _named_in(body: bytes) -> str | None:
    """Return the kept answer that a count goes on from; a longer body than may be read here is refused."""
    if len(body) > LONG_BYTES:
        raise BadInputError(
            f"body: tokens are counted of at most {LONG_BYTES} bytes", status=413, code="request_too_large"
        )
    return goes_on_from(body) or None


def _send(reading: HeadReading, body: bytes, engine: EngineRoute, request: LightRequest) -> Call:
    head = request.exchange.head
    streams = kept_answer(head.path) is not None and wants_stream(head.target)
    receiver = StreamAnswer(request, strip_usage=False) if streams else WholeAnswer(request)
    headers = reading.onward(head, engine, request.request_id)
    if head.method != b"POST":
        body = b""  # an engine that expects none would take it for the next request on its connection
    call = engine.upstream.request(head.method, engine.base_path + head.target, headers, body, receiver)
    call.expire_at(asyncio.get_running_loop().time() + _TIMEOUT_S)
    return call
