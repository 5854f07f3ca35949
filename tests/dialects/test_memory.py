"""Reading a body takes a small multiple of its own memory, whatever it is made of, in every dialect.

Tiny elements become twenty times their text and more where they are made into objects before they are counted.
"""

import contextlib
import json
import tracemalloc
from collections.abc import Callable

import pytest

from millgate.dialects import DIALECTS
from millgate.dialects.clip import clipped, may_clip
from millgate.dialects.contract import BadInputError
from millgate.dialects.line import read_request

SIZE_BYTES = 500_000

MOST_TIMES = 5
"""A body, a copy of it without its text, a copy of its one long array, and what 65,536 messages stand for."""

LARGEST_LINE_BYTES = 262_144
MOST_LINE_BYTES = 32 * LARGEST_LINE_BYTES
"""A line of the line door is read whole by a decoder of the standard library: 22 times the largest one for `[],`."""

TINY = {
    "numbers": "1,",
    "empty texts": '"",',
    "texts": '"ab",',
    "names": '"model",',
    "objects": "{},",
    "members": '{"a":1},',
    "arrays": "[],",
    "arrays of one": "[1],",
    "nulls": "null,",
}

# Every field that may hold an array or an object, in any dialect, and some that nobody knows.
FIELDS = (
    "messages",
    "tools",
    "stop",
    "stop_sequences",
    "logit_bias",
    "prompt",
    "prompt_embeds",
    "content",
    "input",
    "documents",
    "text_1",
    "queries",
    "data_1",
    "metadata",
    "modalities",
    "functions",
    "system",
    "stream_options",
    "include",
    "response_format",
    "model",
    "texts",
    "images",
    "data",
    "x",
)

# One reader may serve several paths.
READERS = {
    f"{dialect.name} {path.decode()}": read
    for dialect in DIALECTS.values()
    for read, path in {read: path for path, read in dialect.readers.items()}.items()
}

NEEDED = {"messages": "[{}]", "documents": '["a"]', "input": '"a"', "max_tokens": "5"}


def array(element: str) -> str:
    return f"[{element * (SIZE_BYTES // len(element))}{element[:-1]}]"


def members(count: int) -> str:
    return ",".join(f'"{number}":1' for number in range(count))


def body(**fields: str) -> bytes:
    """Return an object with these fields as they are written, and what some reader may need."""
    return ("{" + ",".join(f'"{name}":{value}' for name, value in (NEEDED | fields).items()) + "}").encode()


ARRAYS = {f"{name} in {field}": (field, element) for field in FIELDS for name, element in TINY.items()}

OTHER = {
    "countless members": body(x="1")[:-1] + b"," + members(SIZE_BYTES // 10).encode() + b"}",
    "countless members and a name twice": body(x='["model","model"]')[:-1]
    + b","
    + members(SIZE_BYTES // 10).encode()
    + b"}",
    "countless members of an object": body(logit_bias="{" + members(SIZE_BYTES // 10) + "}"),
    "a name twice and arrays": body(x='["model","model"]', y=array("[],")),
    "an escaped letter and arrays": body(x='"\\u0061"', y=array("[],")),
    "an escaped letter and objects": body(x='"\\u0061"', y=array('{"a":1},')),
    "an escaped letter and numbers": body(x='"\\u0061"', y=array("1.5,")),
    "one emoji": body(x='"😀' + "a" * SIZE_BYTES + '"'),
    "images": body(
        messages='[{"type":"image","x":";base64,'
        + "A" * 300
        + '"}'
        + array('{"type":"image","x":";base64,' + "A" * 300 + '"},')[1:]
    ),
    "marks of images": body(x='"' + ";base64," * (SIZE_BYTES // 8) + '"', y='{"type":"image"}'),
}


@pytest.fixture(scope="module", autouse=True)
def decoders_are_there() -> None:
    """Read long arrays once: what is made for the first of them, and kept, belongs to no body."""
    for read in READERS.values():
        for field in FIELDS:
            with contextlib.suppress(BadInputError):
                read(body(**{field: "[" + '"",' * 4000 + '""]'}))


def peak_bytes(read: Callable[[bytes], object], body: bytes) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(BadInputError):
            read(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
def test_no_array_becomes_many_times_its_size(reader: str) -> None:
    read = READERS[reader]
    for what, (field, element) in ARRAYS.items():
        hostile = body(**{field: array(element)})
        assert peak_bytes(read, hostile) <= MOST_TIMES * len(hostile), what


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", OTHER)
def test_nor_does_anything_else(reader: str, what: str) -> None:
    assert peak_bytes(READERS[reader], OTHER[what]) <= MOST_TIMES * len(OTHER[what])


@pytest.mark.parametrize("what", OTHER)
def test_nor_does_a_body_that_is_rewritten(what: str) -> None:
    def rewrite(read: bytes) -> None:
        if may_clip(read):
            clipped(read, 5, path=b"/v1/chat/completions")

    assert peak_bytes(rewrite, OTHER[what]) <= MOST_TIMES * len(OTHER[what])


@pytest.mark.parametrize(
    "form",
    [
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + b"\x00" * SIZE_BYTES
        + b"\r\n--b--",
        b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n\r\n' * 20_000 + b"--b--",
        b"--b\r\n" + b"a: b\r\n" * 150_000 + b"\r\n\r\n--b--",
        b"--b" * 300_000,
    ],
    ids=["a file", "parts", "lines in a part's head", "boundaries"],
)
def test_nor_does_a_form(form: bytes) -> None:
    (read_form,) = set(DIALECTS["openai-audio"].forms.values())
    assert peak_bytes(lambda read: read_form(read, b"b"), form) <= MOST_TIMES * len(form)


@pytest.mark.parametrize("element", TINY.values(), ids=TINY)
def test_a_line_of_the_line_door_stays_within_a_bound(element: str) -> None:
    times = (LARGEST_LINE_BYTES - 20) // len(element)
    line = f'{{"v":0,"x":[{element * times}1]}}'.encode()
    assert len(line) <= LARGEST_LINE_BYTES
    assert peak_bytes(read_request, line) <= MOST_LINE_BYTES


def test_an_object_is_clipped_only_while_its_members_can_be_counted() -> None:
    assert may_clip(json.dumps({str(number): 1 for number in range(1024)}).encode())
    assert not may_clip(json.dumps({str(number): 1 for number in range(1025)}).encode())
