"""Forms that two parsers could read differently are refused; the others are read without their files."""

import pytest
from hypothesis import given, strategies as st

from millgate.dialects.contract import BadInputError
from millgate.dialects.forms import MOST_PARTS, boundary, read_form


def part(disposition: bytes, value: bytes = b"v") -> bytes:
    return b"--b\r\n" + disposition + b"\r\n\r\n" + value + b"\r\n"


NAMED = b'Content-Disposition: form-data; name="model"'


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        (b"multipart/form-data;boundary=abc; charset=utf-8", b"abc"),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/form-data; boundary=" + b"x" * 71, None),
        (b"multipart/mixed; boundary=abc", None),
        (b"application/json", None),
    ],
)
def test_the_boundary_is_in_the_content_type(given: bytes, found: bytes | None) -> None:
    assert boundary(given) == found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"preamble\r\n" + part(NAMED) + b"--b--",
        part(NAMED),
        part(NAMED) + b"--bx",
        part(b"content-disposition: form-data") + b"--b--",
        part(NAMED + b'; name="stream"') + b"--b--",
        part(NAMED + b"\r\n" + NAMED) + b"--b--",
        part(b'content-disposition: form-data; name="model" junk') + b"--b--",
        part(b"content-type: text/plain") + b"--b--",
        part(b"x: " + b"y" * 5000 + b"\r\n" + NAMED) + b"--b--",
        part(NAMED) * (MOST_PARTS + 1) + b"--b--",
    ],
)
def test_an_odd_form_is_refused(body: bytes) -> None:
    with pytest.raises(BadInputError):
        read_form(body, b"b", ())


def test_a_name_inside_a_file_name_is_none() -> None:
    tricky = part(b'Content-Disposition: form-data; name="file"; filename="; name=\\"model\\""')
    form = read_form(tricky + part(NAMED, b"right") + b"--b--", b"b", ("model",))
    assert form.fields == {"model": "right"}
    assert form.file_bytes == 1


@given(st.binary(max_size=300), st.text("abcmodel", min_size=1, max_size=20))
def test_whatever_the_file_holds_the_fields_are_read(sound: bytes, model: str) -> None:
    if b"\r\n--b" in b"\r\n" + sound:
        return
    file = part(b'content-disposition: form-data; name="file"; filename="x"', sound)
    form = read_form(file + part(NAMED, model.encode()) + b"--b--\r\n", b"b", ("model", "stream"))
    assert form.fields == {"model": model}
    assert form.file_bytes == len(sound)
