"""Infer a file's format from its name."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

#: Format by file suffix; suffixes of compression are removed first.
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
    """Return the format that a file name or URL implies; None if its suffix is unknown."""
    for end in _COMPRESSED:
        name = name.removesuffix(end)
    return ENDS.get(PurePosixPath(name).suffix.lower())
