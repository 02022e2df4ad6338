"""Limits and checks for files that may be damaged or hostile, and the boundary around readers.

A file names its own sizes: of its lines, members, arrays and images. They are compared with these
limits before memory is allocated for them, and structures are checked before compiled code sees
them. What a reader raises of a file all the same becomes a ``DataError`` at one boundary.
"""

from __future__ import annotations

import functools
import math
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import DataError, ElasticmlError, one_line, shown

#: Longest line of a text file, and longest record of several lines, in bytes.
LINE_BYTES_MAX: Final = 128 * 2**20
#: Longest image file.
IMAGE_BYTES_MAX: Final = 256 * 2**20
#: Compressed data may expand by this factor, and up to these bytes by any factor.
EXPANSION_MAX: Final = 200
EXPANDED_BYTES_FREE: Final = 256 * 2**20
#: Longest name of a member of an archive.
NAME_CHARACTERS_MAX: Final = 400
_NPY: Final = ".npy"

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=type)


@contextmanager
def reading(path: str, place: str = "") -> Iterator[None]:
    """Turn any exception of reading a file into a ``DataError`` that names the file and the place.

    Raises
    ------
    DataError
        For what is not one of elasticml's own errors.
    """
    try:
        yield
    except ElasticmlError:
        raise
    except Exception as error:
        where = f"{path}, {place}" if place else path
        raise DataError(
            f"{where}: cannot be read ({type(error).__name__}: {one_line(error)}); it is damaged "
            "or of another format: copy or download it again"
        ) from error


#: Methods and properties of a source that may read its file.
_READING: Final = (
    *("blocks", "read", "survey", "fingerprint", "is_costly", "needs_survey"),
    *("with_stats", "shape", "manifest", "fitted_encoder", "listed_once"),
)


def reads_untrusted_files(kind: K) -> K:
    """Put the boundary :func:`reading` around the methods of a source of files (decorator)."""
    for name in _READING:
        found = vars(kind).get(name)
        if isinstance(found, property):
            assert found.fget is not None
            setattr(kind, name, property(_guarded(found.fget, False), doc=found.__doc__))
        elif found is not None:
            setattr(kind, name, _guarded(found, name in ("read", "survey")))
    return kind


def _guarded(method: F, takes_block: bool) -> F:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with reading(self.path, f"block {args[0]}" if takes_block and args else ""):
            return method(self, *args, **kwargs)

    return guarded  # type: ignore[return-value]


def check_regular(path: str) -> None:
    """Check that a local path is a regular file: opening a pipe or a device may wait for ever.

    A missing file and a directory pass: opening them raises at once.

    Raises
    ------
    DataError
        When it is a pipe, a socket or a device.
    """
    # Imported here, with fsspec: a fit of arrays opens no file.
    from elasticml.data.storage.filesystem import local_path

    local = local_path(path)
    if local is None:
        return
    try:
        mode = local.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(
            f"{path} is a pipe, a socket or a device, wanted a regular file; copy its content to a "
            "file"
        )


def check_expansion(path: str, what: str, nbytes: int, compressed_bytes: int) -> None:
    """Check the size of decompressed data.

    Raises
    ------
    DataError
        When it is more than :data:`EXPANDED_BYTES_FREE`, and too many times as much.
    """
    if nbytes > max(EXPANDED_BYTES_FREE, EXPANSION_MAX * compressed_bytes):
        raise DataError(
            f"{path}: {what} expands from {compressed_bytes} bytes to {nbytes} or more, wanted at "
            f"most {EXPANSION_MAX} times as many; if it is no attack, decompress it first"
        )


def read_npz_arrays(path: str, raw: BinaryIO) -> dict[str, NDArray[Any]]:
    """Read the arrays of an ``.npz`` file, each checked by its header before memory is allocated.

    Raises
    ------
    DataError
        When the file is damaged, or an array is too large or does not hold real numbers or text.
    """
    with reading(path), zipfile.ZipFile(raw) as archive:
        members = {m.filename.removesuffix(_NPY): m for m in archive.infolist()}
        return {
            name: _read_array(path, archive, member)
            for name, member in members.items()
            if member.filename.endswith(_NPY)
        }


def _read_array(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    name = member.filename
    if len(name) > NAME_CHARACTERS_MAX or any(ord(letter) < 32 for letter in name):
        raise DataError(f"{path} has a member named {shown(name)}; pack it again")
    check_expansion(path, name, member.file_size, member.compress_size)
    with reading(path, name):
        with archive.open(member) as file:
            check_array_header(path, name, file, member.file_size)
        with archive.open(member) as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def check_array_header(path: str, name: str, file: Any, nbytes: int) -> None:
    """Check the header of an array in NumPy's format; the file is read up to the array's data.

    Parameters
    ----------
    name : str
        The array's, for messages; "" for the only one of the file.
    nbytes : int
        Bytes of the file, or of the member.

    Raises
    ------
    DataError
        When it does not describe the bytes that follow, or is not of real numbers or text.
    """
    where = f"{path}, {name}" if name else path
    with reading(path, name):
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
        at = file.tell()
    if dtype.kind in "OVc" or dtype.itemsize == 0:
        kind = "complex numbers" if dtype.kind == "c" else f"dtype {str(dtype)[:40]}"
        raise DataError(f"{where} holds {kind}, wanted real numbers; convert them first")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != nbytes - at:
        raise DataError(
            f"{where} has shape {str(shape)[:80]} of {dtype}, which its {nbytes - at} bytes do not "
            "hold; it is damaged: write it again"
        )
