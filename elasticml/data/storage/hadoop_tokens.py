"""Read Hadoop delegation tokens from the token file that YARN puts into a container."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from elasticml.errors import ConfigError

#: The environment variable in which YARN names a container's token file.
TOKEN_FILE: Final = "HADOOP_TOKEN_FILE_LOCATION"
_MAGIC: Final = b"HDTS\x00"
_HDFS_KINDS: Final = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One delegation token."""

    kind: str
    #: The service it is for: ``ip:port``, or ``ha-hdfs:name`` of a name service.
    service: str
    #: The token as web services accept it: URL-safe Base64.
    text: str


def read_tokens(content: bytes, name: str) -> list[Token]:
    """Parse the content of a Hadoop token file.

    Raises
    ------
    ConfigError
        When it is not a token file, or is truncated.
    """
    if not content.startswith(_MAGIC):
        raise ConfigError(
            f"{name} is not a Hadoop token file in binary form; write it with hdfs fetchdt"
        )
    reader = _Reader(content, len(_MAGIC))
    try:
        return [_read_token(reader) for _ in range(reader.count())]
    except (IndexError, UnicodeDecodeError):
        raise ConfigError(f"{name} is cut short; write it again") from None


def hdfs_token(tokens: Sequence[Token], services: Sequence[str]) -> str | None:
    """Choose the token for a file system: by its service, else the only HDFS token."""
    fitting = [token for token in tokens if token.kind in _HDFS_KINDS]
    named = [token for token in fitting if token.service in services]
    if not named and len(fitting) > 1:
        return None
    return next((token.text for token in named or fitting), None)


def _read_token(reader: _Reader) -> Token:
    reader.block()  # the alias
    start = reader.position
    reader.block()
    reader.block()
    kind, service = reader.block().decode(), reader.block().decode()
    content = reader.content[start : reader.position]
    text = base64.urlsafe_b64encode(content).rstrip(b"=").decode()
    return Token(kind=kind, service=service, text=text)


class _Reader:
    """Reads counts and byte strings in the encoding of Hadoop's ``WritableUtils``."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content = content
        self.position = position

    def count(self) -> int:
        first = self.content[self.position]
        self.position += 1
        if first < 0x80:
            return first
        # Counts of tokens and bytes are positive: 0x8f means that one byte follows, 0x8e two, ...
        width = 0x90 - first
        if not 1 <= width <= 4:
            raise IndexError
        return int.from_bytes(self._take(width), "big")

    def block(self) -> bytes:
        return self._take(self.count())

    def _take(self, n: int) -> bytes:
        block = self.content[self.position : self.position + n]
        if len(block) < n:
            raise IndexError
        self.position += n
        return block
