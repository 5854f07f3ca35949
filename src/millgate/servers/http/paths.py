"""Which paths are served, by which methods: a closed list (design section 6), and pages that an operator has opened."""

import re
from typing import Final
from urllib.parse import unquote

from millgate.dialects import BY_PATH

_GET: Final = (b"GET",)
_GET_OR_HEAD: Final = (b"GET", b"HEAD")
_POST: Final = (b"POST",)
_GET_OR_DELETE: Final = (b"GET", b"DELETE")
HEALTH: Final = b"/health"
"""Answered by the gate itself: whether work should come here. Load tools do not start without it."""
HEALTHZ: Final = b"/healthz"
"""Where an operator has opened it, answered by the gate itself: the process lives."""
MODELS: Final = b"/v1/models"
_ONE_MODEL: Final = re.compile(
    rb"/v1/models/[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*(?:(?:/|%2F)[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*)*\Z"
)
# A kept response, its cancellation, and the list of what went into it; two words are no ids but paths of OpenAI's.
_KEPT: Final = re.compile(
    rb"/v1/responses/(?!(?:input_tokens|compact)\Z)([A-Za-z0-9_-]{1,128})(/cancel|/input_items)?\Z"
)
# What clients write before a path: no `/v1`, another one, or a deployment as Azure's do.
_BEFORE: Final = re.compile(rb"(?:/+(?:v1|openai|api|deployments/[^/]*)(?=/))*/+")
_WHOLE: Final = re.compile(rb"(?:(?:chat/)?completions|messages|responses|embeddings)(?=/)")
"""A whole path, given to an SDK as its base address; the SDK has put another one behind it."""
_STREAM: Final = re.compile(rb"[?&]stream=(?:true|True|1)(?:&|\Z)")


def methods(path: bytes, pages: frozenset[bytes] = frozenset()) -> tuple[bytes, ...]:
    """Return the methods that this path takes, none for a path that is not served; `pages` are served beside the list."""
    if path in BY_PATH:
        return _POST
    if path == HEALTH:
        return _GET_OR_HEAD
    if path == MODELS or path in pages or _ONE_MODEL.match(path):
        return _GET
    kept = _KEPT.match(path)
    if kept is None:
        return ()
    if kept[2] is None:
        return _GET_OR_DELETE
    return _POST if kept[2] == b"/cancel" else _GET


def meant(path: bytes) -> bytes:
    """Return the served path that a request for one that is not served probably means, empty where none is near."""
    near, rest = _near(path.lower())
    whole = None if near else _WHOLE.match(rest)
    return near if whole is None else _near(rest[whole.end() :])[0]


def _near(path: bytes) -> tuple[bytes, bytes]:
    """Return the served path that differs from this one only in what stands before it, or empty, and the path without that."""
    rest = _BEFORE.sub(b"", path, 1).rstrip(b"/")
    served = (near for near in (b"/v1/" + rest, b"/" + rest) if near in BY_PATH or near == MODELS)
    return next(served, b""), rest


def takes_permit(path: bytes) -> bool:
    """Whether what is posted here is work for an engine, and so an attempt."""
    dialect = BY_PATH.get(path)
    return dialect is not None and path not in dialect.light


def kept_answer(path: bytes) -> str | None:
    """Return the id of the kept answer that this path is about, None for other paths."""
    kept = _KEPT.match(path)
    return None if kept is None else kept[1].decode()


def listed_model(path: bytes) -> str | None:
    """Return the model that this path asks about, empty for the list of all; None for other paths."""
    if path == MODELS:
        return ""
    return unquote(path[len(MODELS) + 1 :].decode("ascii")) if _ONE_MODEL.match(path) else None


def wants_stream(target: bytes) -> bool:
    """Whether this request for a kept answer asks to have it as a stream."""
    return _STREAM.search(target) is not None
