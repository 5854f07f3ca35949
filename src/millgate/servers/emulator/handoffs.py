"""Prefill here, decode there: how the embedded engine hands the KV of a prompt to another one, or begins with it.

Two protocols. With `nixl` a body with `kv_transfer_params: {do_remote_decode: true}` keeps its prompt's KV and the answer says
where; a body with that object begins with it (vLLM's NIXL connector, pull). With `sglang-prefill` and `sglang-decode` both
engines get one body with `bootstrap_host`, `bootstrap_port` and `bootstrap_room`, in any order; lists of these where there are several
sequences, and a body without them is refused. The one that prefills answers when the other one has the prompt. What is kept may be
read once, within its lease, which is SGLang's bootstrap timeout too. The wire between two embedded engines is their own: a POST to `/kv/read` on the HTTP port, which is therefore
what `remote_port` and `bootstrap_port` name. Of vLLM's protocol the heartbeats are left out, since the decoding engine reads a
prompt when its request comes and not when it has room. A real one keeps the lease alive while it waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from millgate.engine.sequences import EngineSequence
from millgate.servers.emulator.meters import Meters
from millgate.servers.emulator.pacer import Pacer
from millgate.servers.emulator.requests import BadRequestError, GenerationRequest
from millgate.servers.emulator.settings import EmulatorSettings

READ_PATH: Final = b"/kv/read"
_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on
_ASK_S: Final = 5.0
"""How long one question to the other engine may take."""
_POLL_S: Final = 0.02
TRANSFER_SETUP_S: Final = 0.002

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Value = TypeVar("Value")


class KvLoadError(Exception):
    """The KV of a prompt cannot be had: it was read before, its lease has ended, or its engine is gone."""


class Handoff(NamedTuple):
    """One request's part: it `gives` its prompt's KV under `key`, or takes what another engine keeps there.

    `patience_s` is how long a taking one waits for a key that is not known yet.
    """

    gives: bool
    key: str
    host: str = ""
    port: int = 0
    patience_s: float = 0.0


class _KvTransfer(msgspec.Struct):
    do_remote_prefill: bool = False
    do_remote_decode: bool = False
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: Port | None = None


class _Body(msgspec.Struct):
    kv_transfer_params: _KvTransfer | None = None
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: Port | list[Port] | None = None
    bootstrap_room: int | list[int] | None = None


class _Asked(msgspec.Struct):
    id: str


class _Kept(NamedTuple):
    sequence_ids: tuple[int, ...]
    tokens: int
    timer: asyncio.TimerHandle
    given: Callable[[bool], None]


class Handoffs:
    """What this engine keeps for others, and how it asks them."""

    def __init__(
        self, settings: EmulatorSettings, pacer: Pacer, meters: Meters, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings = settings
        self._pacer = pacer
        self._meters = meters
        self._loop = loop
        self._kept: dict[str, _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def of(self, body: bytes, request: GenerationRequest) -> tuple[GenerationRequest, Handoff | None]:
        """Return a request as it is to be run here, and its part in a hand-over if it has one.

        NIXL never hands over requests of several answers: what is kept has one reader. In SGLang's protocol the prefilling
        engine gets the whole request, and stops after the first token of each answer.
        """
        handoff = self._part_of(body, request)
        if handoff is not None and handoff.gives and self.gives_at_once:
            answers = [each._replace(output_tokens=1, finish_reason="length") for each in request.answers]
            request = request._replace(answers=tuple(answers))
        return request, handoff

    @property
    def gives_at_once(self) -> bool:
        """Whether an answer waits until its prompt has gone to the other engine."""
        return self._settings.kv_transfer == "sglang-prefill"

    def _part_of(self, body: bytes, request: GenerationRequest) -> Handoff | None:
        kind = self._settings.kv_transfer
        if not kind or (kind == "nixl" and len(request.answers) != 1):
            return None
        try:
            fields = msgspec.json.decode(body, type=_Body)
        except msgspec.ValidationError as error:
            raise BadRequestError("kv_transfer_params", str(error)) from None
        if kind == "nixl":
            return self._nixl(fields.kv_transfer_params)
        return _bootstrap(fields, len(request.answers), self._settings.kv_lease_s, gives=self.gives_at_once)

    def _nixl(self, params: _KvTransfer | None) -> Handoff | None:
        if params is None:
            return None
        if params.do_remote_decode:
            self._number += 1
            return Handoff(gives=True, key=f"prefill-{self._number:08x}")
        if not params.do_remote_prefill:
            return None
        if not params.remote_host or params.remote_port is None or params.remote_request_id is None:
            raise BadRequestError(
                "kv_transfer_params", "remote_host, remote_port and remote_request_id must name what is kept"
            )
        return Handoff(False, params.remote_request_id, params.remote_host, params.remote_port)

    # ---- the engine that prefills

    def keep(
        self, handoff: Handoff, sequences: Sequence[EngineSequence], given: Callable[[bool], None]
    ) -> None:
        """Keep the KV of a prompt that has been computed, and tell whether it was read before its lease ended."""
        timer = self._loop.call_later(self._settings.kv_lease_s, self._expire, handoff.key)
        self._forget(handoff.key)
        ids, tokens = (
            tuple(each.sequence_id for each in sequences),
            sum(each.prompt_tokens for each in sequences),
        )
        self._kept[handoff.key] = _Kept(ids, tokens, timer, given)

    def kept(self, handoff: Handoff | None, sequence: EngineSequence, answer: bytes, port: int) -> bytes:
        """Keep the KV of a prompt, and return its answer with the object that vLLM's decoding engine is to be given."""
        assert handoff is not None
        self.keep(handoff, (sequence,), _ignore)
        params = self._params(handoff, sequence.prompt_tokens, port)
        return b'%s,"kv_transfer_params":%s}' % (answer[:-1], msgspec.json.encode(params))

    def leave(self, handoff: Handoff | None, taking: asyncio.Task[None] | None) -> None:
        """The client of this request has left: keep nothing of it, and fetch nothing for it."""
        if taking is not None:
            taking.cancel()
        elif handoff is not None and handoff.gives:
            self._forget(handoff.key)

    def _forget(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._let_go(kept)

    def _params(self, handoff: Handoff, tokens: int, port: int) -> dict[str, object]:
        host = "127.0.0.1" if self._settings.host in _ANY_ADDRESS else self._settings.host
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-tokens // self._pacer.batch.limits.block_tokens)))],
            "remote_engine_id": f"{host}:{port}",
            "remote_request_id": handoff.key,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def read(self, body: bytes) -> tuple[int, bytes]:
        """Give what is kept to the engine that asks, once; return a status and a body."""
        try:
            key = msgspec.json.decode(body, type=_Asked).id
        except msgspec.DecodeError:
            return 400, b'{"error":"a key must be named"}'
        kept = self._kept.pop(key, None)
        if kept is None:
            return 404, b'{"error":"nothing is kept under this key"}'
        self._meters.kv_given += 1
        self._let_go(kept)
        kept.given(True)
        return 200, b'{"tokens":%d}' % kept.tokens

    def _expire(self, key: str) -> None:
        self._meters.kv_expired += 1
        kept = self._kept.pop(key)
        self._let_go(kept)
        kept.given(False)

    def _let_go(self, kept: _Kept) -> None:
        kept.timer.cancel()
        for sequence_id in kept.sequence_ids:
            self._pacer.unpin(sequence_id)

    # ---- the engine that decodes

    def take(
        self, handoff: Handoff, tokens: int, ready: Callable[[], None], failed: Callable[[str], None]
    ) -> asyncio.Task[None]:
        """Fetch a prompt's KV and call `ready` when it is here, or `failed` with the reason; cancel it to do neither."""
        task = self._loop.create_task(self._take(handoff, tokens, ready, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(
        self, handoff: Handoff, tokens: int, ready: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        try:
            await self._read(handoff, tokens)
            await asyncio.sleep(TRANSFER_SETUP_S + tokens / self._settings.kv_tokens_per_s)
        except KvLoadError as error:
            self._meters.kv_failed += 1
            failed(str(error))
        else:
            self._meters.kv_taken += 1
            self._meters.kv_taken_tokens += tokens
            ready()

    async def _read(self, handoff: Handoff, tokens: int) -> None:
        """Read what the other engine keeps; KvLoadError where it is not this prompt."""
        found = await self._asked(handoff)
        if found != tokens:
            raise KvLoadError(f"{found} tokens are kept of a prompt of {tokens}")

    async def _asked(self, handoff: Handoff) -> int:
        """Ask the other engine, again and again while the key may still come."""
        give_up_at = self._loop.time() + handoff.patience_s
        while True:
            try:
                async with asyncio.timeout(_ASK_S):
                    status, tokens = await _question(handoff)
            except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
                raise KvLoadError(f"the engine that keeps it cannot be asked: {error}") from None
            if status == 200:
                return tokens
            if self._loop.time() >= give_up_at:
                raise KvLoadError("it is not kept: it was read before, or its lease has ended")
            await asyncio.sleep(_POLL_S)

    def stop(self) -> None:
        """Fetch nothing any more."""
        for kept in self._kept.values():
            kept.timer.cancel()
        for task in self._tasks:
            task.cancel()


def _bootstrap(fields: _Body, sequences: int, patience_s: float, *, gives: bool) -> Handoff:
    rooms = _each(fields.bootstrap_room)
    if not rooms:
        raise BadRequestError("bootstrap_room", "Disaggregated request received without bootstrap room id")
    hosts, ports = _each(fields.bootstrap_host), _each(fields.bootstrap_port)
    if not hosts or not ports:
        raise BadRequestError("bootstrap_host", "must come with bootstrap_port and bootstrap_room")
    if len({*rooms}) != sequences:
        raise BadRequestError("bootstrap_room", f"{sequences} sequences need as many rooms")
    return Handoff(gives, f"room-{rooms[0]}", hosts[0], ports[0], patience_s)


def _ignore(_read: bool) -> None:
    """An answer that has gone out changes no more."""


def _each(given: Value | list[Value] | None) -> list[Value]:
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


async def _question(handoff: Handoff) -> tuple[int, int]:
    """Ask the engine that keeps a prompt for it; return its status and the tokens of it."""
    reader, writer = await asyncio.open_connection(handoff.host, handoff.port)
    try:
        body = msgspec.json.encode({"id": handoff.key})
        head = f"POST /kv/read HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    status = int(answer.split(b" ", 2)[1])
    _, _, said = answer.partition(b"\r\n\r\n")
    return status, int(msgspec.json.decode(said)["tokens"]) if status == 200 else 0
