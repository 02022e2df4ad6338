"""Bodies that are not here, or that nobody has looked at yet: compressed ones, and unchecked ones.

A chunk of such a body has its rows' number and layout, but none of its arrays: whoever looks at one
has the body brought here, which unpacks it where it is compressed, and proves by its checksum, the
first time, that it is what was written. A body that was unpacked can be let go again, unless
somebody has pinned it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticml.data.body import Header, read_header
from elasticml.errors import DataError

if TYPE_CHECKING:
    from elasticml.data.packed import Packed


class Away:
    """Where a chunk's body is.

    Parameters
    ----------
    stored : memoryview
        The body as it lies in a file, or compressed.
    header : Header
        Of the body.
    expected : int
        The body's checksum.
    packed : Packed, optional
        What is known of the compressed body.
    name, place : str
        Of the chunk and of the file, for errors.
    """

    __slots__ = (
        "expected",
        "header",
        "is_checked",
        "is_here",
        "lock",
        "name",
        "packed",
        "pins",
        "place",
        "stored",
    )

    def __init__(
        self,
        stored: memoryview,
        header: Header,
        expected: int,
        packed: Packed | None,
        name: str,
        place: str,
    ) -> None:
        self.stored = stored
        self.header = header
        self.expected = expected
        self.packed = packed
        self.name = name
        self.place = place
        #: Held while the body comes or goes.
        self.lock = threading.Lock()
        self.is_here = False
        self.is_checked = False
        #: How many want it to stay.
        self.pins = 0

    def opened(self, take: Callable[[int], memoryview]) -> memoryview:
        """Return the body, unpacked and checked; the caller holds the lock.

        Parameters
        ----------
        take : callable (int) -> memoryview
            Gives out a buffer of so many bytes.

        Raises
        ------
        DataError
            When it is not what was written.
        """
        body = self.stored
        if self.packed is not None:
            body = take(self.packed.nbytes)
            try:
                self.packed.unpack(body)
            except DataError as error:
                raise self.damaged(error.message) from None
        from elasticml.data.checksums import checksum

        if not self.is_checked and checksum(body) != self.expected:
            raise self.damaged("its checksum is not what it was")
        self.is_checked = True
        return body.toreadonly()

    def head(self) -> memoryview:
        """Return a compressed body up to where labels and weights end.

        Raises
        ------
        DataError
            When these cannot be unpacked.
        """
        assert self.packed is not None
        try:
            return self.packed.head()
        except DataError as error:
            raise self.damaged(error.message) from None

    def damaged(self, why: str) -> DataError:
        """Say that the body is not what was written."""
        return DataError(
            f"{self.place} is damaged: chunk {self.name}: {why}; remove it and make it again",
            path=self.place,
        )


def away_of(stored: memoryview, name: str, place: str, expected: int | None = None) -> Away:
    """Say where a body is, by its bytes in a file or as they were received.

    Parameters
    ----------
    stored : memoryview
        Of a body, or of a compressed one, which says so itself.
    name, place : str
        Of the chunk and of the file, for errors.
    expected : int, optional
        The body's checksum, as far as a compressed one does not say it.

    Raises
    ------
    DataError
        When it is neither, or is cut short, or says another checksum than is expected.
    """
    # Compiled code is loaded where bodies are: what only begins a container does without.
    from elasticml.data.packed import is_packed, read_packed

    if not is_packed(stored):
        header = read_header(stored, name)
        assert expected is not None, "a body that says nothing of its checksum"
        return Away(stored, header, expected, None, name, place)
    packed = read_packed(stored, name)
    if expected not in (None, packed.checksum):
        raise DataError(f"chunk {name} says another checksum than is expected", chunk=name)
    return Away(stored, packed.header, packed.checksum, packed, name, place)
