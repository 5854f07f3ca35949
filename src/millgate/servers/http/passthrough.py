"""Requests that cost an engine nothing, like the list of models: passed on without a permit, a few at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millgate.core.words import FailureKind, Reason, Sent
from millgate.dialects.bodies import no_such_model
from millgate.dialects.contract import BadInputError, Usage
from millgate.dialects.openai_bodies import model_of
from millgate.dialects.responses import INPUT_TOKENS, goes_on_from
from millgate.http1.client import Call
from millgate.http1.server.contract import Exchange
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.runtime.verdicts import SAID_NOTHING, Said
from millgate.servers.http.answers import WholeAnswer, tell_broken, tell_failure
from millgate.servers.http.contract import AnswerOwner, HttpDesk, Telling
from millgate.servers.http.kept_answers import not_kept
from millgate.servers.http.model_list import ModelList
from millgate.servers.http.paths import MODELS, kept_answer, listed_model, wants_stream
from millgate.servers.http.streams import StreamAnswer
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.judgement import let_end
from millgate.servers.requests.ongoing import Ongoing
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.routes import EngineRoute


class LightRequest(AnswerOwner):
    """Owns the answer to one light request; `done` is called once, when it is over, and of a stream `begun` when it begins.

    `send` posts it to one of `engines`: to the first, and to the second if the first cannot be reached.
    """

    def __init__(
        self,
        exchange: Exchange,
        request_id: bytes,
        reading: HeadReading,
        done: Callable[[], None],
        begun: Callable[[], None] | None,
        send: Callable[[EngineRoute, "LightRequest"], Call],
        engines: Sequence[EngineRoute],
    ) -> None:
        self._call: Call | None = None
        self._done: Callable[[], None] | None = done
        self._begun = begun
        self._send = send
        self._engines = list(engines[:2])
        self.exchange = exchange
        self.extra: Pairs = []
        self.own_key = False
        self.request_id = request_id
        self.dialect = reading.dialect
        self._reading = reading

    def begin(self) -> None:
        """Ask the first engine that has not been asked."""
        try:
            engine = self._engines.pop(0)
            self.own_key = self._reading.is_own_key(engine)
            self._call = self._send(engine, self)
        except Exception:
            self.broken()
            raise

    def unsent(self, kind: FailureKind, said: Said = SAID_NOTHING, tell: Telling = None) -> None:
        """Ask the next engine, once; without one tell the client."""
        del said
        if self._done is None:
            return
        if self._engines:
            self.begin()
        else:
            (tell or partial(tell_failure, self, kind))()
            self._close()

    def begun(self) -> None:
        """Let an answer take its client's time, and a stream no other request's place."""
        if self._call is not None:
            self._call.expire_at(None)
        if self._begun is not None:
            self._begun()

    def first_token(self) -> None:
        """Nothing: it was counted when it was made."""

    def finished(self, usage: Usage) -> None:
        """Be over, but for the end of the framing."""
        del usage
        if self._done is not None:
            let_end(self._call)
        self._close()

    def failed(self, kind: FailureKind, sent: Sent, said: Said = SAID_NOTHING) -> None:
        """Be over."""
        del kind, sent, said
        self._close()

    def broken(self) -> None:
        """Tell the client that there is no answer, or cut it off, and be over."""
        if self._done is None:
            return
        try:
            tell_broken(self)
        finally:
            self._close()

    def gone(self) -> None:
        """Abort the call for a client that has left."""
        self.break_off()
        self._close()

    def _close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()


_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 1.0


class _Tenant:
    """What one tenant has under way: how many requests in a place, and its streams with the time at which each was asked for."""

    def __init__(self) -> None:
        self.placed = 0
        self.streams: dict[Exchange, float] = {}


class Passthrough:
    """Passes on what needs no permit, in `light_at_once` places; `ongoing` is the door's list of exchanges.

    A stream of a stored answer gives its place back when it begins, and a tenant has at most `light_at_once` of them. Where there are
    several tenants, each has at most as many places as stay free: half of them when it is alone.
    """

    def __init__(self, house: HttpDesk, ongoing: dict[Exchange, Ongoing]) -> None:
        self._house = house
        self._ongoing = ongoing
        self._places: dict[Exchange, _Tenant] = {}
        self._tenants: dict[str, _Tenant] = {}
        """Those that have something under way."""

    def pass_on(self, exchange: Exchange, reading: HeadReading, request_id: bytes, body: bytes) -> None:
        """Relay a light request to the engine that it is for, or refuse it when too many are under way; BadInputError where there is none."""
        house, dialect, path = self._house, reading.dialect, exchange.head.path
        streams = kept_answer(path) is not None and wants_stream(exchange.head.target)
        refused = self._refusal(reading, streams=streams)
        if refused is not None:
            reason, hint_s = refused
            answer = dialect.refuser.refuse(reason, hint_s, retry=True, request_id=request_id)
            exchange.respond(answer.status, answer.headers, answer.body)
            return
        engines = self._engines(path, reading, body)
        if not engines:
            raise not_kept()
        self._places[exchange] = tenant = self._tenants.setdefault(reading.caller.tenant, _Tenant())
        tenant.placed += 1
        if streams:
            tenant.streams[exchange] = asyncio.get_running_loop().time()
        relay = partial(self._relay, exchange, reading, request_id, body, engines, streams=streams)
        wanted, is_plain = listed_model(path), len(house.engines) == 1 and not engines[0].models
        if wanted is None or (is_plain and not wanted):
            relay()
        else:
            # vLLM has no page for one model. A provider has one, and knows aliases that it does not list.
            self._list_models(exchange, reading, request_id, wanted, relay if is_plain else None)

    def _relay(
        self,
        exchange: Exchange,
        reading: HeadReading,
        request_id: bytes,
        body: bytes,
        engines: list[EngineRoute],
        *,
        streams: bool,
    ) -> None:
        """Send it as it came to the first of these engines that can be reached."""
        send = partial(_send, reading, body, streams=streams)
        done = partial(self._done, exchange, reading.caller.tenant)
        begun = partial(self._give_back, exchange) if streams else None
        request = LightRequest(exchange, request_id, reading, done, begun, send, engines)
        self._ongoing[exchange] = request
        request.begin()

    def _refusal(self, reading: HeadReading, *, streams: bool) -> tuple[Reason, float] | None:
        """Return why this tenant has to come back, and in how many seconds; None where there is room."""
        most = self._house.settings.light_at_once
        free, tenant = most - len(self._places), self._tenants.get(reading.caller.tenant)
        if free <= 0:
            return Reason.SATURATED, _RETRY_S
        if tenant is None:
            return None
        if streams and len(tenant.streams) >= most:
            # How long a stored answer goes on is not known: as long again as the first has, by what has been seen.
            return Reason.TENANT_LIMIT, asyncio.get_running_loop().time() - min(tenant.streams.values())
        if reading.callers.separates and tenant.placed >= free:
            return Reason.TENANT_LIMIT, _RETRY_S
        return None

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
        if path in reading.dialect.light:
            engines = self._serving(model_of(body), engines)
        up = {engine.name for engine in house.driver.snapshot().engines if engine.up}
        return [engine for engine in engines if engine.name in up] or engines[:1]

    def _serving(self, model: str, engines: list[EngineRoute]) -> list[EngineRoute]:
        """Return those of the engines that answer this model, all where it is named for none; BadInputError where the gate answers for others alone."""
        named = [each for each in engines if model in each.models]
        named = named or [each for each in engines if not each.models]
        only = self._house.settings.models
        if model and only is not None and model not in only:
            raise no_such_model(model)
        return named or engines

    def _list_models(
        self,
        exchange: Exchange,
        reading: HeadReading,
        request_id: bytes,
        wanted: str,
        otherwise: Callable[[], None] | None,
    ) -> None:
        """Ask every engine that is up for its models, and answer with all of them and those that the settings name, or with the one that is `wanted`.

        `otherwise` answers for one that is in no list.
        """
        house, head = self._house, exchange.head
        done = partial(self._done, exchange, reading.caller.tenant)
        only = house.settings.models
        named = tuple(dict.fromkeys(name for each in house.engines.values() for name in each.models))
        models = ModelList(
            exchange,
            reading,
            request_id,
            house.error_responses,
            done,
            wanted=wanted,
            only=only,
            apart=len({each.models for each in house.engines.values()}) > 1,
            named=named,
            otherwise=otherwise if only is None else None,
        )
        self._ongoing[exchange] = models
        _path, mark, query = head.target.partition(b"?")
        models.begin(self._engines(head.path, reading), MODELS + mark + query)

    def _give_back(self, exchange: Exchange) -> None:
        """Free its place, unless it has been: a stream that has begun goes on without one."""
        tenant = self._places.pop(exchange, None)
        if tenant is not None:
            tenant.placed -= 1

    def _done(self, exchange: Exchange, name: str) -> None:
        self._give_back(exchange)
        self._ongoing.pop(exchange, None)
        tenant = self._tenants[name]
        tenant.streams.pop(exchange, None)
        if not (tenant.placed or tenant.streams):
            del self._tenants[name]


def _named_in(body: bytes) -> str | None:
    """Return the kept answer that a count goes on from; a longer body than may be read here is refused."""
    if len(body) > LONG_BYTES:
        raise BadInputError(
            f"body: tokens are counted of at most {LONG_BYTES} bytes", status=413, code="request_too_large"
        )
    return goes_on_from(body) or None


def _send(
    reading: HeadReading, body: bytes, engine: EngineRoute, request: LightRequest, *, streams: bool
) -> Call:
    head = request.exchange.head
    receiver = StreamAnswer(request, strip_usage=False, is_kept=True) if streams else WholeAnswer(request)
    headers = reading.onward(head, engine, request.request_id)
    if head.method != b"POST":
        body = b""  # an engine that expects none would take it for the next request on its connection
    call = engine.upstream.request(head.method, engine.base_path + head.target, headers, body, receiver)
    call.expire_at(asyncio.get_running_loop().time() + _TIMEOUT_S)
    return call
