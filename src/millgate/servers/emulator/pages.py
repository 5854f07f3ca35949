"""What the embedded engine answers at once: metrics, models, health, its own accounts, kept responses, pooled texts."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from millgate.http1.server.contract import Exchange, Headers, RequestHead
from millgate.servers.emulator.answers import KeptResponses, error_body
from millgate.servers.emulator.meters import Meters
from millgate.servers.emulator.pacer import Pacer
from millgate.servers.emulator.pooling import PoolingAnswers
from millgate.servers.emulator.requests import BadRequestError
from millgate.servers.emulator.settings import EmulatorSettings
from millgate.servers.emulator.troubles import Troubles

JSON: Final[Headers] = ((b"content-type", b"application/json"),)
TEXT: Final[Headers] = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
KEPT_PATH: Final = b"/v1/responses/"
_KEPT_METHODS: Final = frozenset({b"GET", b"DELETE", b"POST"})
METHODS: Final = {
    b"/v1/models": b"GET",
    b"/metrics": b"GET",
    b"/health": b"GET",
    b"/stats": b"GET",
    b"/stats/reset": b"POST",
}


@dataclass(frozen=True)
class EnginePages:
    """Everything that needs no tokens to be written, and what it shows of the engine."""

    settings: EmulatorSettings
    created: int
    meters: Meters
    pacer: Pacer
    troubles: Troubles
    pooling: PoolingAnswers
    kept: KeptResponses
    loop: asyncio.AbstractEventLoop

    def method_of(self, head: RequestHead) -> bytes | None:
        """Return the method that this path takes, None for a path that is not here."""
        if head.path.startswith(KEPT_PATH) and head.method in _KEPT_METHODS:
            return head.method
        return b"POST" if head.path in self.pooling.paths else METHODS.get(head.path)

    def answer(self, exchange: Exchange, body: bytes) -> None:
        """Answer a request to one of these paths."""
        path = exchange.head.path
        if path in self.pooling.paths:
            self._read(exchange, path, body)
        elif path.startswith(KEPT_PATH):
            self._find_kept(exchange, path)
        elif path == b"/metrics":
            page = self.meters.metrics(self.pacer.statistics(), self.pacer.adapters)
            exchange.respond(200, TEXT, page)
        elif path == b"/v1/models":
            exchange.respond(200, JSON, _models(self.settings, self.created))
        elif path == b"/health":
            exchange.respond(200, (), b"")
        else:
            if path == b"/stats/reset":
                self._reset()
            exchange.respond(200, JSON, self._stats())

    def _read(self, exchange: Exchange, path: bytes, body: bytes) -> None:
        try:
            exchange.respond(200, JSON, self.pooling.answer(path, body))
        except BadRequestError as error:
            exchange.respond(400, JSON, error_body(400, str(error), "BadRequestError", error.field))

    def _find_kept(self, exchange: Exchange, path: bytes) -> None:
        """Show, cancel (too late) or delete a response that is kept."""
        body = self.kept.ask(exchange.head.method, path.removeprefix(KEPT_PATH))
        if body is None:
            message = "there is no response under this id"
            exchange.respond(404, JSON, error_body(404, message, "NotFoundError"))
        else:
            exchange.respond(200, JSON, body)

    def _stats(self) -> bytes:
        stats = self.meters.stats(self.loop.time(), self.pacer.statistics())
        return msgspec.json.encode({**stats, "troubles": self.troubles.counts})

    def _reset(self) -> None:
        now = self.loop.time()
        self.pacer.batch.reset_peaks(now)
        self.meters.reset(now, self.pacer.statistics())


def _models(settings: EmulatorSettings, created: int) -> bytes:
    """List the model and its adapters, which name it as their parent."""
    name = settings.model_name
    base = {"object": "model", "created": created, "owned_by": "millgate"}
    named = [(name, None), *((each, name) for each in settings.lora_modules)]
    cards = [{"id": each, **base, "root": each, "parent": parent} for each, parent in named]
    return msgspec.json.encode({"object": "list", "data": cards})
