"""Read images: IDX files (MNIST and similar), or pictures in folders.

Pictures are read by ``image_folder.py``.

IDX: two zero bytes, a byte for the type, a byte for the number of dimensions, the dimensions as
big-endian 32-bit numbers, then the values, big-endian, the last dimension fastest.
"""

from __future__ import annotations

import contextlib
import lzma
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import Rows, cut
from elasticml.data.chunks.rows import fit_columns
from elasticml.data.dataset_stats import BlockSummary, summarise
from elasticml.data.readers.files import (
    FileInfo,
    absolute,
    decompressor,
    file_info,
    fingerprint,
    is_versioned,
    open_binary,
)
from elasticml.data.readers.image_folder import (
    ImageFolderSource,
    folder_source_of,
    is_image_folder,
)
from elasticml.data.readers.single_pass_source import SinglePassSource
from elasticml.data.source import (
    BLOCK_BYTES,
    BlockInfo,
    Source,
    resolve_chunk_bytes,
)
from elasticml.data.storage.untrusted_files import check_expansion, reads_untrusted_files
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.data import ImagesSpec

# Read images from IDX files (MNIST and similar): one file of images and one of labels.
#
#
# IDX: two zero bytes, a byte for the type, a byte for the number of dimensions, the dimensions as
# big-endian 32-bit numbers, then the values, big-endian, the last dimension fastest.

_TYPES: Final = {8: "|u1", 9: "|i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
#: Images have rows, columns and channels; a damaged header may claim 255 dimensions.
_DIMENSIONS_MAX: Final = 8
_WANTED: Final = "wanted an IDX file, such as train-images-idx3-ubyte or its .gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idx:
    """The header of an IDX file."""

    path: str
    type: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Number of values of one example."""
        return math.prod(self.shape[1:])


def read_images(
    path: str,
    *,
    labels: str | None = None,
    dtype: Dtype = "float64",
    n_columns: int | None = None,
    size: Sequence[int] | None = None,
    mode: str | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSource | ImageFolderSource:
    """Return a source for IDX files, or for image files in folders; nothing is read yet.

    A pixel is a column, numbered row by row; values are those in the file (0 to 255):
    ``scale: maxabs`` scales them to at most 1.

    Parameters
    ----------
    path : str
        An IDX file of images, (n, rows, columns) or with any other dimensions. Local path or fsspec
        URL; gzip, bzip2 and xz are recognised by the first bytes. Or a folder with one folder of
        images per class: an image's columns are ordered channel by channel, and its label is the
        index of its folder, sorted by name; files without an image suffix are skipped.
    labels : str, optional
        IDX file of labels (n,). By default the path with the last ``images-idx3`` replaced by
        ``labels-idx1``.
    dtype, n_columns
        As for :func:`elasticml.data.readers.svmlight.read_svmlight`.
    size : (height, width), optional
        Of image files: size to which they are resized; by default all must have the first one's.
    mode : {"RGB", "L"}
        Of image files: three colour channels, or greyscale.
    classes : sequence of str, optional
        Of image files: folder names of the labels 0, 1, ...; by default all folders, sorted.

    Raises
    ------
    ConfigError
        When a setting is out of range, or ``labels`` is missing and has no default.

    Examples
    --------
    >>> source = em.read_images("train-images-idx3-ubyte.gz", dtype="float32")  # reads nothing yet
    """
    return source_of(
        ImagesSpec(
            path=str(path),
            labels=None if labels is None else str(labels),
            dtype=dtype,
            n_columns=n_columns,
            size=size,  # type: ignore[arg-type]
            mode=mode,  # type: ignore[arg-type]
            classes=classes,  # type: ignore[arg-type]
        )
    )


def source_of(spec: ImagesSpec) -> ImageSource | ImageFolderSource:
    """Build the source from the options of ``format: images``.

    Raises
    ------
    ConfigError
        When an option does not apply to the path, or ``labels`` has no default.
    """
    if spec.labels is None and is_image_folder(spec.path):
        return folder_source_of(spec)
    for key in ("size", "mode", "classes"):
        if getattr(spec, key) is not None:
            raise ConfigError(
                f"data.{key} is only for folders of pictures, and {spec.path} is none; leave it "
                "out, or unpack an archive",
                key=f"data.{key}",
            )
    labels = spec.labels
    if labels is None:
        before, separator, after = spec.path.rpartition("images-idx3")
        if not separator:
            raise ConfigError(
                f"data.labels is missing, and cannot be derived from {spec.path}, which is not "
                "named ...images-idx3...; name the IDX file of the labels, or a folder of pictures "
                "instead of an archive",
                key="data.labels",
            )
        labels = f"{before}labels-idx1{after}"
    return ImageSource(
        path=absolute(spec.path),
        labels=absolute(labels),
        dtype=spec.dtype,
        n_columns=spec.n_columns,
    )


@reads_untrusted_files
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource(SinglePassSource):
    """IDX files in blocks that take 8 MiB as chunks; one block if compressed."""

    path: str
    labels: str
    dtype: Dtype
    n_columns: int | None = None

    @property
    def is_costly(self) -> bool:
        """Whether to cache: compressed images are worth it, if a change can be detected."""
        info = file_info(self.path)
        return info.compression is not None and bool(info.token) and is_versioned(self.labels)

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return {
            "format": "images",
            "path": self.path,
            "labels": self.labels,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over options, and paths, sizes and versions of both files."""
        return self._fingerprint(file_info(self.path), file_info(self.labels))

    def _fingerprint(self, info: FileInfo, labels: FileInfo) -> str:
        return fingerprint({**self.spec(), "labels_are": [labels.size, labels.token]}, info)

    def blocks(self) -> list[BlockInfo]:
        """Return ranges of images; raises ConfigError or DataError for incompatible files."""
        info = file_info(self.path)
        images, _ = self._headers(info, file_info(self.labels))
        n, nbytes = images.shape[0], self._row_bytes(images)
        step = n if info.compression is not None else self._step(images)
        return [
            BlockInfo(
                index=i,
                nbytes=min(step, n - start) * nbytes,
                rows=min(step, n - start),
                columns=images.width,
            )
            for i, start in enumerate(range(0, n, step))
        ]

    def dimensions(self) -> tuple[int, ...]:
        """Return the dimensions of one example, from the header."""
        return self._headers(file_info(self.path), file_info(self.labels))[0].shape[1:]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read the images of one block; see :class:`elasticml.data.source.Source`."""
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        info, labels_info = file_info(self.path), file_info(self.labels)
        name = self._fingerprint(info, labels_info)
        images, labels = self._headers(info, labels_info)
        step, n = self._step(images), images.shape[0]
        first, last = (0, n) if info.compression else (block * step, min(n, (block + 1) * step))
        chunks: list[Chunk] = []
        counts: dict[str, int] = {}
        width = images.width
        with (
            _opened(images, first, info) as pixels,
            _opened(labels, first, labels_info) as targets,
        ):
            for start in range(first, last, step):
                k = min(step, last - start)
                rows = Rows(
                    labels=_take(targets, labels, start, k)[:, 0],
                    n_columns=images.width,
                    dense=_take(pixels, images, start, k),
                )
                if self.n_columns is not None:
                    rows = fit_columns(rows, self.n_columns, counts)
                width = rows.n_columns
                n_chunks = len(chunks)
                chunks += cut(rows, name, block, size, dtype=self.dtype, first_ordinal=n_chunks)
            if last == n:
                _check_end(pixels, images)
                _check_end(targets, labels)
        layout = Layout(kind="dense", dtype=self.dtype, n_columns=width)
        return chunks, summarise(block, chunks, layout, counts=counts)

    def _row_bytes(self, images: _Idx) -> int:
        return 8 + images.width * (4 if self.dtype == "float32" else 8)

    def _step(self, images: _Idx) -> int:
        return max(1, BLOCK_BYTES // self._row_bytes(images))

    def _headers(self, info: FileInfo, labels_info: FileInfo) -> tuple[_Idx, _Idx]:
        images, labels = _header(self.path, info), _header(self.labels, labels_info)
        if len(images.shape) < 2 or 0 in images.shape:
            raise DataError(
                f"{self.path} has dimensions {images.shape}, wanted images and their pixels",
                path=self.path,
            )
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"{self.labels} has dimensions {labels.shape}, wanted one label for each of the "
                f"{images.shape[0]} images of {self.path}",
                path=self.labels,
            )
        return images, labels


def _header(path: str, info: FileInfo) -> _Idx:
    with _reading(path, info) as source, _damage_errors(path):
        start = source.read(4)
        is_idx = len(start) == 4 and start[:2] == bytes(2) and start[2] in _TYPES
        sizes = source.read(4 * start[3]) if is_idx else b""
    if not is_idx or not 0 < start[3] <= _DIMENSIONS_MAX or len(sizes) != 4 * start[3]:
        raise DataError(f"{path} begins with {start.hex(' ') or 'nothing'}, {_WANTED}", path=path)
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    header = _Idx(path=path, type=np.dtype(_TYPES[start[2]]), shape=shape)
    expected_bytes = 4 + len(sizes) + shape[0] * header.width * header.type.itemsize
    if info.compression is not None:
        check_expansion(path, "the file", expected_bytes, info.size)
    elif info.size != expected_bytes:
        raise DataError(
            f"{path} has {info.size} bytes, wanted {expected_bytes} for dimensions {shape}; copy "
            "or download it again",
            path=path,
        )
    return header


@contextlib.contextmanager
def _reading(path: str, info: FileInfo) -> Iterator[BinaryIO]:
    """Open a file and decompress it if necessary."""
    with open_binary(path) as raw:
        yield raw if info.compression is None else decompressor(raw, info.compression)


@contextlib.contextmanager
def _opened(idx: _Idx, first: int, info: FileInfo) -> Iterator[BinaryIO]:
    """Open a file at the values of example ``first``."""
    with _reading(idx.path, info) as source:
        with _damage_errors(idx.path):
            source.seek(4 + 4 * len(idx.shape) + first * idx.width * idx.type.itemsize)
        yield source


@contextlib.contextmanager
def _damage_errors(path: str) -> Iterator[None]:
    """Turn exceptions of reading damaged data into a one-line DataError."""
    try:
        yield
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{path}: the data end early or are damaged ({one_line(error)}); copy or download "
            "the file again",
            path=path,
        ) from None


def _take(source: BinaryIO, idx: _Idx, start: int, n: int) -> NDArray[np.float64]:
    """Read the next ``n`` examples, (n, width); ``start`` is the number of the first."""
    nbytes = n * idx.width * idx.type.itemsize
    with _damage_errors(idx.path):
        raw = source.read(nbytes)
        if len(raw) != nbytes:
            n_complete = start + len(raw) * n // max(1, nbytes)
            raise EOFError(f"after {n_complete} of {idx.shape[0]} examples")
    values = np.frombuffer(raw, idx.type).reshape(n, idx.width).astype(np.float64)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DataError(
            f"{idx.path}, example {start + row}, value {column}: {values[row, column]}, wanted a "
            "finite number",
            path=idx.path,
        )
    return values


def _check_end(source: BinaryIO, idx: _Idx) -> None:
    """Read past the last example: decompressors verify a file's checksum only at its end."""
    with _damage_errors(idx.path):
        further = source.read(1)
    if further:
        raise DataError(
            f"{idx.path} has more data after its {idx.shape[0]} examples; copy or download it "
            "again",
            path=idx.path,
        )


# The shape of a source's images, which its number of columns does not determine.


def image_shape(source: Source) -> tuple[int, int, int] | None:
    """Return (channels, height, width) of a source's images; reads one image at most.

    None for other sources, and for IDX files whose examples are not images.

    Raises
    ------
    ConfigError, DataError
        When a file is missing or has another format.
    """
    if isinstance(source, ImageFolderSource):
        return source.shape()
    if not isinstance(source, ImageSource):
        return None
    match source.dimensions():
        case (height, width):
            return 1, height, width
        case (channels, height, width):
            return channels, height, width
    return None
