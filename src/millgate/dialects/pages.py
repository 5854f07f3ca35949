"""Pages of an engine about itself, which an operator may let clients see: whatever they hold is passed on."""

from collections.abc import Mapping
from typing import ClassVar, Final

from millgate.dialects.contract import Reader
from millgate.dialects.openai import OpenAI
from millgate.dialects.prefix_chain import ConversationReader

PAGE_PATHS: Final = (b"/ping", b"/version", b"/metrics")


class Pages(OpenAI):
    """Pages of any kind, asked for with GET; the singleton `PAGES` is the dialect."""

    name: ClassVar[str] = "pages"
    readers: ClassVar[Mapping[bytes, Reader]] = {}
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {}
    light: ClassVar[frozenset[bytes]] = frozenset()
    answer_kinds: ClassVar[tuple[bytes, ...]] = (b"",)


PAGES = Pages()
