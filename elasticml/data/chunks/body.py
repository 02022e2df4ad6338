"""The binary format of a chunk's body: a 256-byte header, then sections aligned to 64 bytes.

The format is documented in ``docs/reference/chunk-format.md``; a change requires a new ``VERSION``.
Bodies of files are verified by their checksum when one of their arrays is accessed.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticml.data.json_record import JsonRecord
from elasticml.errors import DataError

Kind = Literal["dense", "csr", "binary_csr", "sequence"]
Dtype = Literal["float64", "float32"]
Buffer = bytes | bytearray | memoryview

KINDS: Final[tuple[Kind, ...]] = ("dense", "csr", "binary_csr", "sequence")
DTYPES: Final[tuple[Dtype, ...]] = ("float64", "float32")
MAGIC: Final = b"emlchunk"
VERSION: Final = 1
HEADER_BYTES: Final = 256
ALPHABET_BYTES_MAX: Final = 96
ALIGNMENT: Final = 64
#: Most stored values of a chunk, as row pointers are 32-bit.
STORED_VALUES_MAX: Final = 2**31 - 1

_FIXED: Final = struct.Struct("<8sHBBBBHQQQQ8sQ")
_TABLE: Final = struct.Struct("<12Q")
_DIGEST_AT: Final = 48
SECTIONS: Final = ("labels", "weights", "indptr", "indices", "values", "codes")
assert _FIXED.size + _TABLE.size + ALPHABET_BYTES_MAX == HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(JsonRecord):
    """How the examples of a chunk are stored, and how many columns they span."""

    kind: Kind
    #: Type of stored values; labels, weights, models and sums are always float64.
    dtype: Dtype = "float64"
    n_columns: int
    #: Sequences only: the letters, the number of positions, and the shortest and longest n-gram.
    alphabet: str = ""
    length: int = 0
    ngrams: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The parsed header (256 bytes) of a body; offsets and sizes are keyed by section."""

    layout: Layout
    n_rows: int
    digest: bytes
    offsets: dict[str, int]
    sizes: dict[str, int]
    #: Size of the whole body.
    nbytes: int

    @property
    def n_stored(self) -> int:
        """Number of stored values, including the implicit ones of binary CSR; 0 for sequences."""
        itemsize = 4 if self.layout.dtype == "float32" else 8
        return max(self.sizes["values"] // itemsize, self.sizes["indices"] // 4)

    def view(self, body: memoryview, name: str) -> NDArray[np.uint8]:
        """Return the bytes of one section as a view; empty if the kind does not have it."""
        start, size = self.offsets[name], self.sizes[name]
        return np.frombuffer(body, np.uint8)[start : start + size]


def read_header(body: memoryview, name: str) -> Header:
    """Parse and check the header of ``body``; errors call the chunk ``name``.

    Raises
    ------
    DataError
        When the buffer is not a body of this version, or its sections do not fit into it.
    """
    if body.nbytes < HEADER_BYTES or bytes(body[:8]) != MAGIC:
        raise DataError(
            f"chunk {name} of {body.nbytes} bytes starts with {bytes(body[:8])!r}, wanted a header "
            f"of {HEADER_BYTES} bytes starting with {MAGIC!r}"
        )
    fields = _FIXED.unpack_from(body)
    _, version, kind, dtype, low, high, n_letters, rows, columns, stored, length, digest, total = (
        fields
    )
    if version != VERSION or kind >= len(KINDS) or dtype >= len(DTYPES):
        raise DataError(
            f"chunk {name} has version {version}, kind {kind}, dtype {dtype}; wanted version "
            f"{VERSION}: remove the cached copy, or install the same elasticml everywhere"
        )
    table = _TABLE.unpack_from(body, _FIXED.size)
    letters = bytes(body[_FIXED.size + _TABLE.size : HEADER_BYTES])[:n_letters]
    layout = Layout(
        kind=KINDS[kind],
        dtype=DTYPES[dtype],
        n_columns=columns,
        alphabet=letters.decode(errors="replace"),
        length=length,
        ngrams=(low, high),
    )
    header = Header(
        layout=layout,
        n_rows=rows,
        digest=digest,
        offsets=dict(zip(SECTIONS, table[::2], strict=True)),
        sizes=dict(zip(SECTIONS, table[1::2], strict=True)),
        nbytes=body.nbytes,
    )
    sizes = _section_sizes(layout, rows, stored, has_weights=header.offsets["weights"] != 0)
    if total != body.nbytes or header.sizes != sizes or not _is_in_order(header):
        raise DataError(
            f"chunk {name} is cut short or damaged: {body.nbytes} bytes, its header says {total}; "
            "remove the cached copy or send it again"
        )
    return header


def _is_in_order(header: Header) -> bool:
    """Whether the sections are where :func:`write_body` puts them: compiled code relies on it."""
    end = HEADER_BYTES
    for offset, size in zip(header.offsets.values(), header.sizes.values(), strict=True):
        if offset == 0 and size == 0:
            continue
        if offset != end:
            return False
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return end == header.nbytes


def check_structure(header: Header, body: memoryview) -> str:
    """Return why compiled code must not compute on a body from a file; "" if it may.

    A checksum detects damage, not forgery: row pointers, column indices and codes of sequences are
    compared with the sizes of the arrays that they point into.
    """
    layout = header.layout
    if layout.kind == "sequence":
        codes = header.view(body, "codes")
        n_codes = len(layout.alphabet) ** layout.ngrams[1]
        is_right = 1 <= layout.ngrams[0] <= layout.ngrams[1] <= layout.length and n_codes <= 256
        if not is_right or (codes.size and int(codes.max()) >= n_codes):
            return "a code of a sequence is out of range"
    if layout.kind not in ("csr", "binary_csr"):
        return ""
    indptr = header.view(body, "indptr").view("<i4")
    indices = header.view(body, "indices").view("<i4")
    if indptr[0] != 0 or indptr[-1] != indices.size or np.any(indptr[1:] < indptr[:-1]):
        return "row pointers do not ascend from 0 to the number of stored values"
    # A negative index is a large unsigned one.
    if indices.size and int(indices.view("<u4").max()) >= layout.n_columns:
        return f"a column index is not below {layout.n_columns}"
    return ""


#: Attributes of a chunk that are views of its body.
VIEWS: Final = ("body", *SECTIONS)


def views_of(header: Header, body: memoryview) -> dict[str, Any]:
    """Return a body and its arrays, by the names of :data:`VIEWS`; nothing is copied.

    For the head of a body, only labels and weights are returned.
    """
    is_whole = body.nbytes >= header.nbytes
    has_weights = header.offsets["weights"] != 0
    head: dict[str, Any] = {
        "labels": header.view(body, "labels").view("<f8"),
        "weights": header.view(body, "weights").view("<f8") if has_weights else None,
    }
    if not is_whole:
        return head
    layout, n = header.layout, header.n_rows
    values = header.view(body, "values").view(_value_type(layout))
    if layout.kind == "dense":
        values = values.reshape(n, layout.n_columns)
    shape = (n, layout.length) if layout.kind == "sequence" else (0, 0)
    return {
        **head,
        "body": body,
        "indptr": header.view(body, "indptr").view("<i4"),
        "indices": header.view(body, "indices").view("<i4"),
        "values": values,
        "codes": header.view(body, "codes").reshape(shape),
    }


def _section_sizes(
    layout: Layout, n_rows: int, n_stored: int, *, has_weights: bool
) -> dict[str, int]:
    itemsize = 4 if layout.dtype == "float32" else 8
    is_sparse = layout.kind in ("csr", "binary_csr")
    n_values = {"dense": n_rows * layout.n_columns, "csr": n_stored}.get(layout.kind, 0)
    return {
        "labels": 8 * n_rows,
        "weights": 8 * n_rows if has_weights else 0,
        "indptr": 4 * (n_rows + 1) if is_sparse else 0,
        "indices": 4 * n_stored if is_sparse else 0,
        "values": itemsize * n_values,
        "codes": n_rows * layout.length if layout.kind == "sequence" else 0,
    }


def aligned_buffer(nbytes: int) -> memoryview:
    """Allocate a writable buffer aligned to 64 bytes; its content is undefined."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].data


def content_id(body: Buffer) -> str:
    """Return a body's content id: 16 hex digits of BLAKE2b over all bytes except the digest."""
    view = memoryview(body).cast("B")
    digest = hashlib.blake2b(view[:_DIGEST_AT], digest_size=8)
    digest.update(view[_DIGEST_AT + 8 :])
    return digest.hexdigest()


def write_body(
    layout: Layout,
    labels: ArrayLike,
    weights: ArrayLike | None,
    arrays: dict[str, Any],
    *,
    n_rows: int,
) -> memoryview:
    """Copy the arrays into one read-only buffer, with a header that includes the content id.

    Raises
    ------
    ValueError
        When lengths differ, or a row pointer or an index is out of range.
    """
    sections = {key: np.asarray(value) for key, value in {**arrays, "labels": labels}.items()}
    if weights is not None:
        sections["weights"] = np.asarray(weights)
    _check_lengths(layout, sections, n_rows)
    n_stored = len(sections["indices"]) if "indices" in sections else 0
    sizes = _section_sizes(layout, n_rows, n_stored, has_weights=weights is not None)
    offsets = dict.fromkeys(SECTIONS, 0)
    end = HEADER_BYTES
    for name in SECTIONS:
        if name in sections:
            offsets[name] = end
            end += -(-sizes[name] // ALIGNMENT) * ALIGNMENT
    buffer = aligned_buffer(end)
    raw = np.frombuffer(buffer, np.uint8)
    types = {"indptr": "<i4", "indices": "<i4", "codes": "|u1", "values": _value_type(layout)}
    for name, array in sections.items():
        start, stop = offsets[name], offsets[name] + sizes[name]
        target = raw[start:stop].view(types.get(name, "<f8")).reshape(array.shape)
        np.copyto(target, array, casting="unsafe")
        raw[stop : start + -(-sizes[name] // ALIGNMENT) * ALIGNMENT] = 0
    letters = layout.alphabet.encode()
    if len(letters) > ALPHABET_BYTES_MAX:
        raise ValueError(f"alphabet of {len(letters)} bytes, at most {ALPHABET_BYTES_MAX} fit")
    table = [number for name in SECTIONS for number in (offsets[name], sizes[name])]
    head = bytearray(HEADER_BYTES)
    kind, dtype = KINDS.index(layout.kind), DTYPES.index(layout.dtype)
    shape = (n_rows, layout.n_columns, n_stored, layout.length)
    codes = (kind, dtype, *layout.ngrams, len(letters))
    _FIXED.pack_into(head, 0, MAGIC, VERSION, *codes, *shape, bytes(8), end)
    _TABLE.pack_into(head, _FIXED.size, *table)
    head[_FIXED.size + _TABLE.size :] = letters.ljust(ALPHABET_BYTES_MAX, b"\0")
    buffer[:HEADER_BYTES] = head
    buffer[_DIGEST_AT : _DIGEST_AT + 8] = bytes.fromhex(content_id(buffer))
    return buffer.toreadonly()


def _value_type(layout: Layout) -> str:
    return "<f4" if layout.dtype == "float32" else "<f8"


def _check_lengths(layout: Layout, sections: dict[str, NDArray[Any]], n_rows: int) -> None:
    for name in ("labels", "weights"):
        if name in sections and sections[name].shape != (n_rows,):
            raise ValueError(f"{name} have shape {sections[name].shape}, wanted ({n_rows},)")
    if "indptr" not in sections:
        return
    indptr, indices = sections["indptr"], sections["indices"]
    n_stored = len(indices)
    if n_rows < 0 or indptr[0] != 0 or indptr[-1] != n_stored or np.any(np.diff(indptr) < 0):
        raise ValueError(f"row pointers must ascend from 0 to the {n_stored} stored indices")
    if n_stored > STORED_VALUES_MAX:
        raise ValueError(f"a chunk holds at most {STORED_VALUES_MAX} stored values, got {n_stored}")
    if n_stored and (indices.min() < 0 or indices.max() >= layout.n_columns):
        raise ValueError(
            f"indices from {indices.min()} to {indices.max()}, wanted 0 to {layout.n_columns - 1}"
        )
    if "values" in sections and sections["values"].shape != (n_stored,):
        raise ValueError(f"values have shape {sections['values'].shape}, wanted ({n_stored},)")


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
