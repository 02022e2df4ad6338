"""Chunk bodies of files, which are verified by their checksum when one of their arrays is accessed.

A chunk with such a body knows its number of rows and its layout, and has labels and weights.
"""

from __future__ import annotations

import threading

from elasticml.data.chunks.body import check_structure, read_header
from elasticml.errors import DataError


class LazyBody:
    """A chunk's body that is not verified yet.

    Parameters
    ----------
    stored : memoryview
        The bytes of the body.
    expected : int
        Their checksum.
    name, place : str
        Names of the chunk and of the file, for messages.

    Raises
    ------
    DataError
        When the bytes are not a body, or are truncated.
    """

    __slots__ = ("expected", "header", "lock", "name", "place", "stored")

    def __init__(self, stored: memoryview, expected: int, name: str, place: str) -> None:
        self.stored = stored
        self.header = read_header(stored, name)
        self.expected = expected
        self.name = name
        self.place = place
        #: Held while the body is verified.
        self.lock = threading.Lock()

    def verify(self) -> None:
        """Verify the body; the caller holds the lock.

        Raises
        ------
        DataError
            When the body is damaged.
        """
        # Imported here: a process that only starts a container need not load compiled code.
        from elasticml.data.chunks.checksums import checksum

        why = "its checksum is not what it was"
        if checksum(self.stored) == self.expected:
            why = check_structure(self.header, self.stored)
        if why:
            raise DataError(
                f"{self.place} is damaged: chunk {self.name}: {why}; remove it and make it again"
            )
