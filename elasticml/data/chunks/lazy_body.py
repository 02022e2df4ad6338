"""Lazily loaded chunk bodies: compressed, or not yet verified.

A chunk with such a body knows its number of rows and its layout, but has no arrays yet. Accessing
one of them loads the body: it is decompressed if necessary, and verified by its checksum the first
time. A decompressed body can be evicted again, unless it is pinned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticml.data.chunks.body import Header, check_structure, read_header
from elasticml.errors import DataError

if TYPE_CHECKING:
    from elasticml.data.chunks.compressed_body import CompressedBody


class LazyBody:
    """A chunk's body that is loaded on access.

    Parameters
    ----------
    stored : memoryview
        The stored bytes of the body, plain or compressed.
    header : Header
        Header of the body.
    expected : int
        Checksum of the body.
    compressed : Packed, optional
        The compressed body; None if it is stored plain.
    name, place : str
        Names of the chunk and of the file, for messages.
    """

    __slots__ = (
        "compressed",
        "expected",
        "header",
        "is_loaded",
        "is_verified",
        "lock",
        "name",
        "pins",
        "place",
        "stored",
    )

    def __init__(
        self,
        stored: memoryview,
        header: Header,
        expected: int,
        compressed: CompressedBody | None,
        name: str,
        place: str,
    ) -> None:
        self.stored = stored
        self.header = header
        self.expected = expected
        self.compressed = compressed
        self.name = name
        self.place = place
        #: Held while the body is loaded or evicted.
        self.lock = threading.Lock()
        self.is_loaded = False
        self.is_verified = False
        #: Number of pins: a pinned body is not evicted.
        self.pins = 0

    def read(self, allocate: Callable[[int], memoryview]) -> memoryview:
        """Return the body, decompressed and verified; the caller holds the lock.

        Parameters
        ----------
        allocate : callable (int) -> memoryview
            Returns a buffer of the given bytes.

        Raises
        ------
        DataError
            When the body is damaged.
        """
        body = self.stored
        if self.compressed is not None:
            try:
                body = allocate(self.compressed.nbytes)
                self.compressed.unpack(body)
            except DataError as error:
                raise self.damaged(error.message) from None
            except MemoryError:
                why = f"it announces {self.compressed.nbytes} bytes, which do not fit into memory"
                raise self.damaged(why) from None
        from elasticml.data.chunks.checksums import checksum

        if not self.is_verified:
            if checksum(body) != self.expected:
                raise self.damaged("its checksum is not what it was")
            why = check_structure(self.header, body)
            if why:
                raise self.damaged(why)
        self.is_verified = True
        return body.toreadonly()

    def head(self) -> memoryview:
        """Return the head of a compressed body: header, labels and weights.

        Raises
        ------
        DataError
            When it cannot be decompressed.
        """
        assert self.compressed is not None
        try:
            return self.compressed.head()
        except DataError as error:
            raise self.damaged(error.message) from None

    def damaged(self, why: str) -> DataError:
        """Return the error for a damaged body."""
        return DataError(
            f"{self.place} is damaged: chunk {self.name}: {why}; remove it and make it again",
            path=self.place,
        )


def open_lazy_body(
    stored: memoryview, name: str, place: str, expected: int | None = None
) -> LazyBody:
    """Return the lazy body of stored or received bytes, plain or compressed.

    Parameters
    ----------
    stored : memoryview
        The bytes; a compressed body is recognised by its header.
    name, place : str
        Names of the chunk and of the file, for messages.
    expected : int, optional
        Checksum of the body; a compressed body contains its own.

    Raises
    ------
    DataError
        When the bytes are not a body, are truncated, or have another checksum than ``expected``.
    """
    # Imported here: a process that only starts a container need not load compiled code.
    from elasticml.data.chunks.compressed_body import is_compressed, read_compressed

    if not is_compressed(stored):
        header = read_header(stored, name)
        assert expected is not None, "a plain body does not contain its checksum"
        return LazyBody(stored, header, expected, None, name, place)
    compressed = read_compressed(stored, name)
    if expected not in (None, compressed.checksum):
        raise DataError(
            f"chunk {name} has checksum {compressed.checksum:016x}, wanted {expected:016x}",
            chunk=name,
        )
    return LazyBody(stored, compressed.header, compressed.checksum, compressed, name, place)
