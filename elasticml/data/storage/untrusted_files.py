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
#: Methods of compression in zip files that Python reads.
_METHODS: Final = {
    zipfile.ZIP_STORED: "stored",
    zipfile.ZIP_DEFLATED: "deflate",
    zipfile.ZIP_BZIP2: "bzip2",
    zipfile.ZIP_LZMA: "lzma",
}
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


def expansion_limit(compressed_bytes: int) -> int:
    """Return the bytes to which compressed data may expand."""
    return max(EXPANDED_BYTES_FREE, EXPANSION_MAX * compressed_bytes)


def check_expansion(path: str, what: str, nbytes: int, compressed_bytes: int) -> None:
    """Check the size of decompressed data.

    Raises
    ------
    DataError
        When it is more than :func:`expansion_limit`.
    """
    if nbytes > expansion_limit(compressed_bytes):
        raise DataError(
            f"{path}: {what} expands from {compressed_bytes} bytes to {nbytes} or more, wanted at "
            f"most {EXPANSION_MAX} times as many; if it is no attack, decompress it first"
        )


def _check_member(path: str, member: zipfile.ZipInfo) -> None:
    """Check a member of a zip file before it is opened.

    Raises
    ------
    DataError
        When it is encrypted, compressed by an unknown method, too large, or has a wrong name.
    """
    name = member.filename
    if len(name) > NAME_CHARACTERS_MAX or any(ord(letter) < 32 for letter in name):
        raise DataError(f"{path} has a member named {shown(name)}; pack it again")
    if member.flag_bits & 0x1:
        raise DataError(
            f"{path}: {name} is encrypted, wanted it readable; pack it again without a password"
        )
    if member.compress_type not in _METHODS:
        raise DataError(
            f"{path}: {name} is compressed in a way that Python cannot read (method "
            f"{member.compress_type}); pack it again with deflate"
        )
    check_expansion(path, name, member.file_size, member.compress_size)


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
    _check_member(path, member)
    with reading(path, member.filename):
        with archive.open(member) as file:
            check_array_header(path, member.filename, file, member.file_size)
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


def check_csr(
    name: str,
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    shape: NDArray[Any],
) -> tuple[int, int]:
    """Check the arrays of a matrix of compressed rows; return its shape.

    Raises
    ------
    DataError
        When they are not the arrays of such a matrix: SciPy's compiled code does not check them.
    """

    def wrong(why: str) -> DataError:
        return DataError(f"{name} holds no valid CSR matrix: {why}")

    for what, array in (("indices", indices), ("indptr", indptr), ("shape", shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise wrong(f"{what} has dtype {array.dtype} and {array.ndim} dimensions, wanted 1")
    if data.ndim != 1 or data.dtype.kind not in "biuf":
        raise wrong(f"data has dtype {data.dtype} and {data.ndim} dimensions, wanted numbers in 1")
    if shape.size != 2 or not 0 <= int(shape.min()) <= int(shape.max()) < 2**31 - 1:
        raise wrong(f"shape is {shape[:4].tolist()}, wanted two numbers from 0 to {2**31 - 2}")
    rows, columns = (int(size) for size in shape)
    if indptr.size != rows + 1 or indices.size != data.size:
        raise wrong(
            f"{indptr.size} row pointers, {indices.size} indices and {data.size} values for {rows} "
            "rows"
        )
    if int(indptr[0]) != 0 or int(indptr[-1]) != data.size or np.any(indptr[1:] < indptr[:-1]):
        raise wrong(f"row pointers do not ascend from 0 to the {data.size} stored values")
    if data.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        raise wrong(f"indices from {indices.min()} to {indices.max()} for {columns} columns")
    return rows, columns
