"""The list of models of several engines: each that is up is asked, and the answers become one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from millgate.core.words import FailureKind
from millgate.dialects.bodies import no_such_model
from millgate.dialects.contract import Family
from millgate.http1.client import Call
from millgate.http1.server.contract import Exchange
from millgate.runtime.engines import Fetched, scrape
from millgate.servers.http.error_responses import ErrorResponses
from millgate.servers.requests.ongoing import Ongoing
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.routes import EngineRoute

_WITHIN_S: Final = 2.0
"""An engine that does not list its models by then is left out: a list is read from memory."""
_MOST_BYTES: Final = 1024 * 1024
_GOOD: Final = 200
_REFUSED: Final = (401, 403)
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class ModelList(Ongoing):
    """Owns the answer to one request for the list, or for the one model `wanted`; `done` is called once, when it is over.

    Of `only` these models the answer tells; None tells of all. Where engines stand `apart`, one is asked for the models that the settings
    name for it, and its list tells of no other. Those that are `named` by the settings are answered for, whether an engine
    lists them or not: providers leave aliases and deployments out, and want headers of their own dialect for their list.
    Where none gives a list and one refuses the client's own key, the client gets that refusal. One that is in no list is left to `otherwise`, if there is that.
    """

    def __init__(
        self,
        exchange: Exchange,
        reading: HeadReading,
        request_id: bytes,
        error_responses: ErrorResponses,
        done: Callable[[], None],
        *,
        wanted: str = "",
        only: frozenset[str] | None = None,
        apart: bool = False,
        named: Sequence[str] = (),
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        self._exchange = exchange
        self._reading = reading
        self._request_id = request_id
        self._error_responses = error_responses
        self._done: Callable[[], None] | None = done
        self._wanted = wanted
        self._only, self._apart = only, apart
        self._told: list[frozenset[str] | None] = []
        self._named = named
        self._otherwise = otherwise
        self._calls: list[Call] = []
        self._pages: list[bytes | None] = []
        self._refusal: Fetched | None = None
        self._left = 0

    def begin(self, engines: Sequence[EngineRoute], target: bytes) -> None:
        """Ask all of these engines at once; how they answer says nothing of their health."""
        self._pages = [None] * len(engines)
        self._told = [
            frozenset(each.models) if self._apart and each.models else self._only for each in engines
        ]
        self._left = len(engines)
        for number, engine in enumerate(engines):
            headers = self._reading.onward(self._exchange.head, engine, self._request_id)
            told = partial(self.listed, number)
            statuses = (_GOOD,) if engine.credential else (_GOOD, *_REFUSED)
            pages = engine.pages or engine.upstream
            call = scrape(pages, engine.base_path + target, _WITHIN_S, told, headers, statuses=statuses)
            self._calls.append(call)

    def listed(self, number: int, page: Fetched) -> None:
        """Take one engine's page, or what it says of the client's key."""
        if page.status == _GOOD:
            self._pages[number] = page.body
        elif page.body is not None:
            self._refusal = page
        self._left -= 1
        if not self._left and self._done is not None:
            self._answer()
            self._close()

    def gone(self) -> None:
        """Abort the calls for a client that has left."""
        self._close()
        for call in self._calls:
            call.abort()

    def _answer(self) -> None:
        listed = [
            (page, told)
            for page, told in zip(map(_read, self._pages), self._told, strict=True)
            if page is not None
        ]
        read = [page for page, _told in listed]
        if not read and self._refusal is not None:
            self._respond(self._refusal.body or b"", self._refusal.status)
            return
        models = _merged(listed)
        dialect = self._reading.dialect
        for name in self._named:
            models.setdefault(name, _entry(name, dialect.family))
        if self._otherwise is not None and self._wanted not in models:
            self._done = None  # that will call it
            self._otherwise()
        elif not models and not read:
            failed = dialect.refuser.failed(FailureKind.BROKEN, self._request_id)
            self._exchange.respond(failed.status, failed.headers, failed.body)
        elif not self._wanted:
            self._respond(_encode(_page_of(read, list(models.values()))))
        elif self._wanted in models:
            self._respond(_encode(models[self._wanted]))
        else:
            self._error_responses.reject(
                self._exchange, dialect, self._request_id, no_such_model(self._wanted)
            )

    def _respond(self, body: bytes, status: int = _GOOD) -> None:
        ids = [(b"x-request-id", self._request_id), (b"request-id", self._request_id)]
        self._exchange.respond(status, [(b"content-type", b"application/json"), *ids], body)

    def _close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()


def _read(page: bytes | None) -> dict[str, Any] | None:
    """Return a page of models as it is; None for what is none."""
    if page is None or len(page) > _MOST_BYTES:
        return None
    try:
        told = _decode(page)
    except (msgspec.DecodeError, RecursionError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("data"), list) else None


def _merged(listed: Sequence[tuple[Mapping[str, Any], frozenset[str] | None]]) -> dict[str, Any]:
    """Return models by id, each as the first engine that has it tells of it; of each page those alone that are told of, None for all."""
    models: dict[str, Any] = {}
    for page, only in listed:
        for model in page["data"]:
            name = model.get("id") if isinstance(model, dict) else None
            if isinstance(name, str) and (only is None or name in only):
                models.setdefault(name, model)
    return models


def _entry(name: str, family: Family) -> dict[str, Any]:
    """Return what is told of a model of which no engine tells."""
    if family == "anthropic":
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "millgate"}


def _page_of(pages: Sequence[Mapping[str, Any]], models: list[Any]) -> dict[str, Any]:
    """Return one page of these models, in the form of the first engine's; Anthropic's names its first and last."""
    page = {**(pages[0] if pages else {"object": "list"}), "data": models}
    for field, place in (("first_id", 0), ("last_id", -1)):
        if field in page:
            page[field] = models[place]["id"] if models else None
    if "has_more" in page:
        page["has_more"] = any(each.get("has_more") is True for each in pages)
    return page
