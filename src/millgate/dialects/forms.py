"""Fields of a multipart/form-data body (RFC 7578), read without looking at the files between them.

Only whole small fields are read; a file is skipped by searching for the next delimiter. Where two parsers could
read a form differently it is refused: an odd disposition, a field of ours twice, no closing delimiter.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from millgate.dialects.contract import BadInputError

MOST_PARTS: Final = 64
"""A transcription has about ten; OpenAI's longest form has sixteen fields."""
MOST_FIELD_BYTES: Final = 1024
_MOST_PART_HEAD_BYTES: Final = 4096

_BOUNDARY: Final = re.compile(
    rb"multipart/form-data\s*;(?:[^;]*;)*?\s*boundary=(?:\"([^\"\r\n]{1,70})\"|([^\s;\"]{1,70}))\s*(?:;.*)?\Z",
    re.IGNORECASE,
)
_DISPOSITION: Final = re.compile(
    rb"content-disposition:[ \t]*form-data((?:[ \t]*;[ \t]*[a-z]+\*?=(?:\"(?:[^\"\\\r\n]|\\.)*\"|[^;\s\"]+))*)[ \t]*\Z",
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(rb";[ \t]*([a-z]+\*?)=(?:\"((?:[^\"\\]|\\.)*)\"|([^;\s\"]+))", re.IGNORECASE)


class Form(NamedTuple):
    """The fields that were asked for, by name, and how many bytes of files came with them."""

    fields: Mapping[str, str]
    file_bytes: int


class _Part(NamedTuple):
    name: str
    is_file: bool
    begin: int
    end: int


def boundary(content_type: bytes) -> bytes | None:
    """Return the boundary of a multipart/form-data content type, None for anything else (RFC 2046: 1 to 70 bytes)."""
    found = _BOUNDARY.match(content_type)
    return None if found is None else found[1] or found[2]


def read_form(body: bytes, boundary: bytes, wanted: Collection[str]) -> Form:
    """Return the wanted fields of a form; raise BadInputError for one that is malformed or says a field twice."""
    fields: dict[str, str] = {}
    file_bytes = 0
    for part in _parts(body, boundary):
        if part.is_file:
            file_bytes += part.end - part.begin
        if part.name in wanted:
            if part.name in fields:
                raise BadInputError(f"{part.name}: the field appears more than once", part.name)
            fields[part.name] = _value(body, part)
    return Form(fields, file_bytes)


def _parts(body: bytes, boundary: bytes) -> Iterator[_Part]:
    """Go from delimiter to delimiter; the first may open the body, each other one follows a line end."""
    opening, delimiter = b"--" + boundary, b"\r\n--" + boundary
    if not body.startswith(opening):
        raise _malformed("the form does not begin with its boundary")
    at = len(opening)
    for _ in range(MOST_PARTS):
        if body.startswith(b"--", at):
            return
        if not body.startswith(b"\r\n", at):
            raise _malformed("something follows a boundary of the form")
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_PART_HEAD_BYTES)
        end = body.find(delimiter, head_end + 2) if head_end >= 0 else -1
        if end < 0:
            raise _malformed("a part of the form does not end")
        name, is_file = _disposition(body[at + 2 : head_end])
        yield _Part(name, is_file, head_end + 4, end)
        at = end + len(delimiter)
    raise _malformed(f"the form has more than {MOST_PARTS} parts")


def _disposition(head: bytes) -> tuple[str, bool]:
    """Return the name of a part and whether it is a file."""
    lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition")]
    found = _DISPOSITION.match(lines[0]) if len(lines) == 1 else None
    if found is None:
        raise _malformed("a part of the form has no Content-Disposition, or an odd one")
    parameters = [(name.lower(), quoted or plain) for name, quoted, plain in _PARAMETER.findall(found[1])]
    named = dict(parameters)
    if len(named) != len(parameters) or b"name" not in named:
        raise _malformed("a part of the form has no name, or two")
    return named[b"name"].decode("latin-1"), b"filename" in named or b"filename*" in named


def _value(body: bytes, part: _Part) -> str:
    if part.is_file or part.end - part.begin > MOST_FIELD_BYTES:
        raise BadInputError(f"{part.name}: expected text of at most {MOST_FIELD_BYTES} bytes", part.name)
    try:
        return body[part.begin : part.end].decode()
    except UnicodeDecodeError:
        raise BadInputError(f"{part.name}: is not valid UTF-8", part.name) from None


def _malformed(message: str) -> BadInputError:
    return BadInputError(f"body is not a valid form: {message}")
