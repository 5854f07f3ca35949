"""One payload on its way in: every chunk is checked before it is kept, in memory that does not grow with the check."""

import base64
import hashlib

from millgate.dialects.line import LineChunk, Manifest, Need
from millgate.servers.line.buffer import Buffer


class Upload:
    """Takes the chunks of one manifest in order; a chunk that is refused may be sent again.

    The last chunk stays known by its digest: after a yield it is sent again, to ask again.
    """

    __slots__ = ("_digest", "_last_digest", "_next", "buffer", "manifest")

    def __init__(self, manifest: Manifest, buffer: Buffer) -> None:
        self.manifest = manifest
        self.buffer = buffer
        self._digest = hashlib.sha256()
        self._next = 0
        self._last_digest = b""

    @property
    def whole(self) -> bool:
        """Whether every chunk is here and verified."""
        return self._next == self.manifest.chunks

    def take(self, chunk: LineChunk) -> Need | None:
        """Keep this chunk, or return what is wrong with it; SERVER_BUSY when there is no memory for it now."""
        manifest = self.manifest
        if chunk.payload_id != manifest.payload_id:
            return Need.PAYLOAD_ID_MISMATCH
        again = self.whole
        if chunk.number != (manifest.chunks - 1 if again else self._next):
            return Need.CHUNK_EXPECTED_INDEX
        data = _decode(chunk.bytes_b64)
        if data is None:
            return Need.CHUNK_B64_INVALID
        if len(data) > manifest.chunk_bytes:
            return Need.CHUNK_TOO_LARGE
        digest = hashlib.sha256(data)
        if digest.hexdigest() != chunk.sha256.lower():
            return Need.CHUNK_HASH_MISMATCH
        if again:
            return None if digest.digest() == self._last_digest else Need.CHUNK_HASH_MISMATCH
        return self._append(data, digest.digest())

    def _append(self, data: bytes, digest: bytes) -> Need | None:
        manifest = self.manifest
        size = len(self.buffer) + len(data)
        if size > manifest.total_bytes:
            return Need.PAYLOAD_TOO_LARGE
        whole_digest = self._digest.copy()
        whole_digest.update(data)
        if self._next == manifest.chunks - 1:
            if size != manifest.total_bytes:
                return Need.PAYLOAD_SIZE_MISMATCH
            if manifest.sha256 and whole_digest.hexdigest() != manifest.sha256.lower():
                return Need.PAYLOAD_HASH_MISMATCH
        if not self.buffer.append(data):
            return Need.SERVER_BUSY
        self._digest = whole_digest
        self._last_digest = digest
        self._next += 1
        return None


def _decode(text: str) -> bytes | None:
    """Decode standard base64, line ends allowed as the published decoder allows them; None for anything else."""
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except ValueError:
        return None
