"""What is read of requests for speech, and of the events of sound's streams.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

from typing import Final

import msgspec

from millgate.dialects.bodies import Model


class Speech(msgspec.Struct, gc=False):
    """A request for speech."""

    model: Model | None = None
    stream: bool | None = None
    stream_format: str | None = None


class AudioCounts(msgspec.Struct, gc=False):
    """Usage as engines write it."""

    input_tokens: int | None = None
    output_tokens: int | None = None


class AudioEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""
    usage: AudioCounts | None = None


SPEECH: Final = msgspec.json.Decoder(Speech)
EVENT: Final = msgspec.json.Decoder(AudioEvent)
