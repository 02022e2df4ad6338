"""What format a file is in, as the end of its name tells."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

#: Ends of names, besides those of compression, and the format that they mean.
ENDS: Final = {
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".csv": "csv",
    ".npz": "npz",
    ".parquet": "parquet",
}
_COMPRESSED: Final = (".gz", ".bz2", ".xz")


def format_of(name: str) -> str | None:
    """Return the format that a file's name or URL tells; None where it tells none."""
    for end in _COMPRESSED:
        name = name.removesuffix(end)
    return ENDS.get(PurePosixPath(name).suffix.lower())
