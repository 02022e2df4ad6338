"""The file format of a checkpoint: a line with a digest of the rest, plain values, arrays.

Specified in ``docs/how-to/checkpoints.md``. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import Arrays
from elasticml.errors import ConfigError, one_line
from elasticml.ids import VERSION

#: Version of the format; other versions are refused.
FORMAT: Final = 3
#: Alignment of arrays in bytes.
ALIGNED: Final = 64


#: What reading values raises that are not as expected.
UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
)


class DamagedError(ValueError):
    """The file is damaged; the message says how in a few words."""


def encode(values: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Encode plain values and float64 arrays as the bytes of one file."""
    layout: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        layout[name] = {"shape": list(np.shape(array)), "offset": offset}
        offset += -(-8 * int(np.size(array)) // ALIGNED) * ALIGNED
    head = json.dumps({**values, "arrays": layout}, default=plain).encode() + b"\n"
    # Arrays are views until the join: L-BFGS pairs of a wide model make a large file.
    parts = [memoryview(head), memoryview(bytes(-len(head) % ALIGNED))]
    for array in arrays.values():
        content = np.ascontiguousarray(array, dtype="<f8").reshape(-1).view(np.uint8).data
        parts += [content, memoryview(bytes(-content.nbytes % ALIGNED))]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    seal = {
        "elasticml": "checkpoint",
        "format": FORMAT,
        "package": VERSION,
        "nbytes": sum(part.nbytes for part in parts),
        "sha256": digest.hexdigest(),
    }
    return b"".join([json.dumps(seal).encode(), b"\n", *parts])


def decode(content: bytes, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Decode values and arrays; the arrays own their memory.

    Raises
    ------
    DamagedError
        When bytes are missing or have changed.
    ConfigError
        When another version of elasticml has written the file.
    """
    line, _, rest = content.partition(b"\n")
    try:
        seal = json.loads(line)
        is_ours = seal["elasticml"] == "checkpoint"
        written = (seal["format"], seal["package"])
        nbytes, digest = int(seal["nbytes"]), str(seal["sha256"])
    except UNREADABLE:
        raise DamagedError("its first line is not that of a checkpoint") from None
    if is_ours and written != (FORMAT, VERSION):
        raise ConfigError(
            f"resume: {name} was written by elasticml {written[1]} (format {written[0]}), this is "
            f"{VERSION} (format {FORMAT}): install the same version, or start the job again"
        )
    if len(rest) != nbytes:
        raise DamagedError(f"{len(rest)} bytes after its first line, wanted {nbytes}")
    if hashlib.sha256(rest).hexdigest() != digest:
        raise DamagedError("its digest does not match")
    head, _, _ = rest.partition(b"\n")
    start = -(-(len(head) + 1) // ALIGNED) * ALIGNED
    arrays = {}
    try:
        values = json.loads(head)
        for key, place in values.pop("arrays").items():
            count = int(np.prod(place["shape"], dtype=np.int64))
            array = np.frombuffer(rest, "<f8", count, start + place["offset"])
            arrays[key] = array.reshape(place["shape"]).astype(np.float64)
    except UNREADABLE as error:  # a digest can be forged
        raise DamagedError(f"its values are not those of a checkpoint: {one_line(error)}") from None
    return values, arrays


def encode_lines(entries: Mapping[str, Iterable[Any]]) -> bytes:
    """Encode entries of several kinds, one JSON object per line: ``{"row": {...}}``."""
    return b"".join(
        json.dumps({kind: entry}, default=plain).encode() + b"\n"
        for kind, of_kind in entries.items()
        for entry in of_kind
    )


def decode_lines(content: bytes) -> dict[str, list[Any]]:
    """Decode entries, by kind."""
    entries: dict[str, list[Any]] = {}
    for line in content.splitlines():
        ((kind, entry),) = json.loads(line).items()
        entries.setdefault(kind, []).append(entry)
    return entries


def plain(value: Any) -> Any:
    """Convert a value that JSON cannot encode."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
