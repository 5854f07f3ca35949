"""The numbers of the upstream client, with the source of each default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Deadlines and bounds of one engine's connections.

    `kept_idle_s` is below uvicorn's keep-alive of 5 s, which vLLM and SGLang inherit, so that a kept connection
    is rarely found dead. `chunk_idle_s` is how long a started answer may be silent, and
    `deserted_idle_s` how long once the engine refuses connections: vLLM 0.32 that is stopped may end its core before
    that has said `abort`, and then keeps its streams open without a word. `informational_answers` is
    how many 1xx heads may precede the answer, `head_bytes` how long all these heads may be together.
    `receive_bytes` is SO_RCVBUF: left to itself Linux takes megabytes in for a client that has stopped reading, and
    the engine generates them, and one read may bring all of it, which then is what a client that does not read holds.
    32 KiB carries 32 MB/s within a data centre, but 0.6 MB/s over a link of 50 ms: enough for any stream of tokens, not
    for megabytes of audio or embeddings. So an answer that is no stream, has grown beyond 64 KiB, and is read as fast
    as it comes gets `wide_receive_bytes`, until its client falls behind.
    """

    connect_s: float = 5.0
    kept_idle_s: float = 4.0
    chunk_idle_s: float = 60.0
    deserted_idle_s: float = 5.0
    kept_connections: int = 256
    head_bytes: int = 64 * 1024
    informational_answers: int = 64
    receive_bytes: int = 32 * 1024
    wide_receive_bytes: int = 512 * 1024
