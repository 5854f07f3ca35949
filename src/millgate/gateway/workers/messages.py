"""What the supervisor and a worker say to each other, over the socket pair that the supervisor made before it started the worker.

The supervisor gives numbered orders, and the worker answers each; what a worker tells unasked has number 0. Frames are
MessagePack (cluster/frames).
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from millgate.observe.live.banner import Banner
from millgate.observe.prometheus import Records
from millgate.runtime.health import EngineStanding
from millgate.servers.line.contract import Readings

UNASKED: Final = 0


class WorkerVerb(StrEnum):
    """What a worker may be ordered to do; the first is `START`, once."""

    START = "start"
    REPORT = "report"
    PICTURE = "picture"
    HISTORY = "history"
    WHY = "why"
    DECISIONS = "decisions"
    EXPLAIN = "explain"
    COVER = "cover"
    UNCOVER = "uncover"
    RETIRE = "retire"
    KEPT = "kept"
    """No answer: these are kept, which others have told of."""
    TOLD = "told"
    """No answer: these clients others have told to come back."""


class WorkerOrder(NamedTuple):
    """One order; `content` is what the verb needs, encoded."""

    number: int
    verb: WorkerVerb
    content: bytes = b""


class Reply(NamedTuple):
    """The answer to an order, or what a worker tells unasked; `error` says what went wrong, empty when nothing did."""

    number: int
    content: bytes = b""
    error: str = ""


class Recipe(NamedTuple):
    """How a worker makes its configuration: what was `given` on the command line, and the `text` of the file that others run.

    What only a restart changes is that of `first_text`, with which the gate began.
    """

    given: bytes
    text: str
    first_text: str


class WorkerStart(NamedTuple):
    """What a worker needs to serve: `slot` counts the addresses' sockets from 0, `number` all workers from 1.

    `http` and `line` are the descriptors of the doors' sockets by slot, `line` empty without a line door. `store` is
    the address of the supervisor's store, empty where there is none, `ticket_key` signs tickets where the configuration
    names no key, and hides the credentials that tenants are named by. `version` is the supervisor's: another one's
    messages may mean something else.
    """

    slot: int
    number: int
    http: tuple[int, ...]
    line: tuple[int, ...]
    store: str
    ticket_key: bytes
    recipe: Recipe
    version: str


class News(StrEnum):
    """What a worker tells unasked."""

    READY = "ready"
    RELOADED = "reloaded"
    FAILED = "failed"
    LEFT = "left"
    KEPT = "kept"
    TOLD = "told"


class WorkerNews(NamedTuple):
    """One piece of it: `text` and `code` say why a worker could not start, or after a reload what the file says that is in force; `running` is what its banner would say, or the kind's content.

    `grace_s` is how long it drains.
    """

    kind: News
    text: str = ""
    code: int = 0
    running: bytes = b""
    grace_s: float = 0.0


class WorkerReport(NamedTuple):
    """One worker at one instant: what its metrics are read from, and what it says of itself."""

    records: Records
    line: Readings | None
    ready: bool
    detail: dict[str, str]
    standings: tuple[EngineStanding, ...]
    banner: Banner
    host: str


KeptRow = tuple[str, str, str]
"""The id of a stored answer, the engine that keeps it, and its tenant."""

encode = msgspec.msgpack.encode
read_kept = msgspec.msgpack.Decoder(list[KeptRow]).decode
read_order = msgspec.msgpack.Decoder(WorkerOrder).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode
read_start = msgspec.msgpack.Decoder(WorkerStart).decode
read_news = msgspec.msgpack.Decoder(WorkerNews).decode
read_report = msgspec.msgpack.Decoder(WorkerReport).decode
