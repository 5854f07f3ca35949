"""The two ends of an answer that passes by: its usage stands in its first bytes or in its last ones."""

from typing import Final

from millgate.dialects.contract import Dialect, Usage

HEAD_BYTES: Final = 4 * 1024
"""Engines that write the usage first (vLLM's rerank, llama.cpp's embeddings) write it right behind the ids."""


class AnswerEnds:
    """Keeps the first bytes of an answer, and of its end `tail_bytes` or the newest piece, whichever is longer."""

    def __init__(self, tail_bytes: int) -> None:
        self._head = b""
        self._tail = bytearray()
        self._tail_bytes = tail_bytes

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        self._tail += data
        kept = max(self._tail_bytes, len(data))
        if len(self._tail) > 2 * kept:
            del self._tail[:-kept]

    def wipe(self) -> None:
        """Forget all of it."""
        self._head = b""
        self._tail.clear()

    @property
    def tail(self) -> bytes:
        """The end, which of a short answer is the whole."""
        return bytes(self._tail)

    def usage(self, dialect: Dialect) -> Usage | None:
        """Find the usage at the end, completed by what the beginning says."""
        last = dialect.read_usage(self.tail)
        if last is not None and last.prompt_tokens is not None and last.output_tokens is not None:
            return last
        first = dialect.read_usage(self._head)
        return first if last is None else last if first is None else last.after(first)
