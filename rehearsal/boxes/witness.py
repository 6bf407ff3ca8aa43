"""What the relay overhears: the reply in a body that passes, read as the provider on the box will read it."""

from __future__ import annotations

import zlib

from rehearsal.runner.exchange import MAX_BODY_BYTES
from rehearsal.runner.wire import Reply, read_reply

_GZIP = 31  # zlib's number for it


class Overheard:
    """A copy of the one body that is passing: `add` its bytes as they came, then ask for the `reply`.

    `api` is 'plain' or 'openai-chat'; `encoding` is the answer's Content-Encoding, of which the provider takes
    'identity' and 'gzip' and nothing else.
    """

    def __init__(self, api: str, encoding: str) -> None:
        self._api = api
        self._body = bytearray()
        self._gzip = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        self._readable = encoding in ("identity", "gzip")

    def add(self, block: bytes) -> None:
        """The next bytes; beyond MAX_BODY_BYTES, unpacked, nothing is kept."""
        if not self._readable:
            return
        room = MAX_BODY_BYTES + 1 - len(self._body)
        try:
            self._body += self._gzip.decompress(block, room) if self._gzip else block[:room]
        except zlib.error:
            self._readable = False
        self._readable = self._readable and len(self._body) <= MAX_BODY_BYTES

    def reply(self) -> Reply | None:
        """The reply as a row holds it (text, finish_reason, model); None where there is none."""
        if not self._readable or (self._gzip and (not self._gzip.eof or self._gzip.unused_data)):
            return None
        return read_reply(bytes(self._body), self._api)
