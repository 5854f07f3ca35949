"""OpenAI's dialect for sound: transcriptions and translations, which come as forms, and speech.

The sound itself is never parsed: its length in bytes is its size. Streams are OpenAI's own (`transcript.text.delta`
to `transcript.text.done`, `speech.audio.delta` to `speech.audio.done`) or vLLM's, which look like chat completions.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from millgate.dialects.bodies import LIMITS, MOST_MODEL_CHARS, decode, named_model
from millgate.dialects.contract import (
    UNREADABLE,
    BadInputError,
    FormReader,
    Reader,
    RequestFacts,
    StreamEvent,
    Usage,
)
from millgate.dialects.forms import read_form
from millgate.dialects.openai import OpenAI
from millgate.dialects.openai_bodies import EVENT, SPEECH
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.responses import RESPONSES
from millgate.dialects.sse import payload

BYTES_PER_POSITION: Final = 320
"""Whisper's encoder makes 1,500 positions of 30 s (Radford et al. 2022, section 2.2); 128 kbit/s are 16,000 bytes/s."""

_FIELDS: Final = ("model", "stream")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


def _read_recording(body: bytes, boundary: bytes) -> RequestFacts:
    form = read_form(body, boundary, _FIELDS)
    model, stream = form.fields.get("model", ""), _FLAGS.get(form.fields.get("stream", "").lower())
    if len(model) > MOST_MODEL_CHARS:
        raise BadInputError(f"model: allowed: {LIMITS['model']}", "model")
    if stream is None:
        raise BadInputError("stream: expected true or false", "stream")
    return RequestFacts(
        named_model(model),
        stream,
        max_tokens=None,
        answers=1,
        include_usage=True,
        fixed_tokens=-(-form.file_bytes // BYTES_PER_POSITION),
        text_bytes=0,
    )


def _read_speech(body: bytes) -> RequestFacts:
    request, reserved = decode(SPEECH, body)
    stream = request.stream is True or request.stream_format == "sse"
    return RequestFacts(named_model(request.model), stream, None, 1, include_usage=True, reserved=reserved)


class Audio(OpenAI):
    """Transcriptions, translations and speech; the singleton `AUDIO` is the dialect."""

    name: ClassVar[str] = "openai-audio"
    readers: ClassVar[Mapping[bytes, Reader]] = {b"/v1/audio/speech": _read_speech}
    forms: ClassVar[Mapping[bytes, FormReader]] = dict.fromkeys(
        (b"/v1/audio/transcriptions", b"/v1/audio/translations"), _read_recording
    )
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {}
    light: ClassVar[frozenset[bytes]] = frozenset()
    answer_kinds: ClassVar[tuple[bytes, ...]] = tuple(
        b"json audio/ text/plain text/vtt subrip octet-stream".split()
    )

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole event, of either kind of stream."""
        data = payload(event)
        if not data:
            return StreamEvent(silent=True)
        try:
            said = EVENT.decode(data)
        except UNREADABLE:
            return super().read_event(event)
        if said.type.endswith(".delta"):
            return StreamEvent(content=True)
        if said.type in {"transcript.text.done", "speech.audio.done"}:
            return StreamEvent(done=True, usage=self.read_usage(data))
        return super().read_event(event)

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the usage of a transcription or of speech, which names its tokens as a response does."""
        return RESPONSES.read_usage(answer)


AUDIO = Audio()
