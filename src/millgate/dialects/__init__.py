"""The languages of clients and engines, pure: read a request, read usage, say no."""

from collections.abc import Mapping

from millgate.dialects.anthropic import ANTHROPIC
from millgate.dialects.audio import AUDIO
from millgate.dialects.contract import Dialect, Reader
from millgate.dialects.openai import OPENAI, PAGE_PATHS, PAGES
from millgate.dialects.pooling import POOLING
from millgate.dialects.responses import RESPONSES

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (OPENAI, POOLING, AUDIO, RESPONSES, ANTHROPIC)
}
"""Every dialect by name; a new one is a file beside this one and a line here."""

BY_PATH: Mapping[bytes, Dialect] = {
    path: dialect
    for dialect in DIALECTS.values()
    for path in (*dialect.readers, *dialect.forms, *dialect.light)
}
"""The dialect of every path that requests are posted to."""

READERS: Mapping[bytes, Reader] = {
    path: read for dialect in DIALECTS.values() for path, read in dialect.readers.items()
}
"""The reader of every path whose requests are JSON and take a permit."""

_ANTHROPIC_PATHS = (b"/v1/messages", b"/v1/complete")
_RESPONSES_PATH = b"/v1/responses"


def dialect_of(path: bytes, *, names_anthropic: bool) -> Dialect:
    """Return the dialect to answer in; `names_anthropic` says that the request has an `anthropic-version` header.

    The path decides where it belongs to one family; paths that both have, and unknown ones, go by the header, which
    Anthropic's SDK always sends.
    """
    known = BY_PATH.get(path)
    if known is not None:
        return known
    if path in PAGE_PATHS:
        return PAGES
    if path.startswith(_RESPONSES_PATH):
        return RESPONSES
    return ANTHROPIC if names_anthropic or path.startswith(_ANTHROPIC_PATHS) else OPENAI
