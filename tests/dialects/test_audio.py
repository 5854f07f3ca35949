"""Sound: forms in, events or any kind of text out."""

import pytest

from millgate.dialects.audio import AUDIO, BYTES_PER_POSITION
from millgate.dialects.contract import BadInputError, RequestFacts, Usage

PATH = b"/v1/audio/transcriptions"


def part(name: str, value: bytes, extra: str = "") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"


SOUND = part("file", b"\x00\xff\r\n--c\r\n" * 160, '; filename="a.mp3"\r\nContent-Type: audio/mpeg')


def read(*parts: bytes) -> RequestFacts:
    return AUDIO.forms[PATH](b"".join(parts) + b"--b--\r\n", b"b")


def test_model_and_stream_are_read_and_the_sound_is_its_length() -> None:
    facts = read(SOUND, part("model", b"whisper-1"), part("stream", b"true"))
    assert (facts.model, facts.stream, facts.max_tokens) == ("whisper-1", True, None)
    assert (facts.fixed_tokens, facts.text_bytes) == (9 * 160 // BYTES_PER_POSITION + 1, 0)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ((part("model", b"a"), SOUND, part("model", b"b")), "model"),
        ((part("model", b"x" * 2000),), "model"),
        ((part("model", b"a\nb"),), "model"),
        ((part("model", b"a", '; filename="x"'),), "model"),
        ((part("model", b"\xff"),), "model"),
        ((part("stream", b"perhaps"),), "stream"),
    ],
)
def test_a_bad_field_is_named(parts: tuple[bytes, ...], field: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read(*parts)
    assert caught.value.field == field


def test_speech_is_json() -> None:
    speech = AUDIO.readers[b"/v1/audio/speech"]
    assert speech(b'{"model":"tts","input":"hi","stream_format":"sse"}').stream
    assert not speech(b'{"model":"tts","input":"hi","stream_format":"audio"}').stream


def test_both_kinds_of_streams_are_read() -> None:
    assert AUDIO.read_event(b'data: {"type":"transcript.text.delta","delta":"I"}\n\n').content
    ended = AUDIO.read_event(
        b'data: {"type":"transcript.text.done","text":"I","usage":{"input_tokens":14,"output_tokens":45}}\n\n'
    )
    assert (ended.done, ended.usage) == (True, Usage(14, 45))
    assert AUDIO.read_event(b'data: {"type":"speech.audio.done"}\n\n').done
    assert AUDIO.read_event(b'data: {"choices":[{"delta":{"content":"I"}}]}\n\n').content
    assert AUDIO.read_event(b"data: [DONE]\n\n").done
    assert AUDIO.read_event(b'data: {"error":{"message":"x","code":503}}\n\n').error is not None


def test_a_whole_transcription_says_its_tokens_and_one_that_is_charged_by_its_length_says_none() -> None:
    """A transcription without a stream was charged 256 tokens whatever it said: its usage was looked for under other names."""
    said = b'{"text":"I","usage":{"type":"tokens","input_tokens":14,"output_tokens":45,"total_tokens":59}}'
    assert AUDIO.read_usage(said) == Usage(14, 45)
    assert AUDIO.read_usage(b'{"text":"I","usage":{"type":"duration","seconds":9}}') == Usage(None, None)
    assert AUDIO.read_usage(b"I") is None
