"""Read images: IDX files (MNIST and similar), or pictures (PNG, JPEG, ...) in one folder per class.

IDX: two zero bytes, a byte for the type, a byte for the number of dimensions, the dimensions as
big-endian 32-bit numbers, then the values, big-endian, the last dimension fastest.

Pillow decodes pictures. An example is one picture as (channels, height, width), flattened: red,
green, blue, each row by row, as networks expect. Its label is the index of its folder among the
sorted folder names; test data use the training data's indices.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.rows import Rows
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.formats import FileFormat, LocalOrUrl, reader
from elasticml.data.readers.files import (
    DataFile,
    FileBlock,
    decompressor,
    entries_in,
    file_info,
    listed_file,
    once_per_version,
    open_binary,
)
from elasticml.data.source import BLOCK_BYTES, Source
from elasticml.data.storage.filesystem import system_of
from elasticml.data.storage.untrusted_files import IMAGE_BYTES_MAX, check_expansion, reading
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.settings_model import AS_PAIR, AS_TUPLE, Count

_TYPES: Final = {8: "|u1", 9: "|i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
#: Images have rows, columns and channels; a damaged header may claim 255 dimensions.
_DIMENSIONS_MAX: Final = 8
_WANTED: Final = "wanted an IDX file, such as train-images-idx3-ubyte or its .gz"
_CHANNELS: Final = {"L": 1, "RGB": 3}
#: Key of the folder names in the data's vocabularies.
_LABEL: Final = "label"
_NAMED_MAX: Final = 20
_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm")
#: Their formats, as Pillow names them: it would start other programs for some.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Most pixels of an image; Pillow warns of images with more than half of it.
PIXELS_MAX: Final = 2**27


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


class ImageSource(FileFormat):
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
    size : (height, width), optional
        Of image files: size to which they are resized; by default all must have the first one's.
    mode : {"RGB", "L"}
        Of image files: three colour channels, or greyscale; by default RGB.
    classes : sequence of str, optional
        Of image files: folder names of the labels 0, 1, ...; by default all folders, sorted.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> source = em.read_images("train-images-idx3-ubyte.gz", dtype="float32")  # reads nothing yet
    """

    format = "images"
    reader = "read_images"

    labels: LocalOrUrl | None = None
    size: Annotated[Sequence[Count], AS_PAIR] | None = None
    mode: Literal["RGB", "L"] | None = None
    classes: Annotated[Sequence[str], AS_TUPLE] | None = None

    @property
    def _is_folder(self) -> bool:
        return self.files.files[0].path != self.path

    @property
    def is_costly(self) -> bool:
        """Whether to cache: decoding is slow; only if a change can be detected."""
        files = self.files
        packed = self._is_folder or files.files[0].compression is not None
        return packed and files.are_versioned

    def list_files(self) -> Sequence[DataFile]:
        """Return all pictures of a folder, or the IDX files of images and of labels.

        Raises
        ------
        ConfigError
            When an option does not apply to the path, or ``labels`` has no default.
        """
        if self.labels is None and _is_folder(self.path):
            return _images_in(self.path)
        for key in ("size", "mode", "classes"):
            if getattr(self, key) is not None:
                raise ConfigError(
                    f"data.{key} is only for folders of pictures, and {self.path} is none; leave "
                    "it out, or unpack an archive"
                )
        labels = self.labels
        if labels is None:
            before, separator, after = self.path.rpartition("images-idx3")
            if not separator:
                raise ConfigError(
                    f"data.labels is missing, and cannot be derived from {self.path}, which is not "
                    "named ...images-idx3...; name the IDX file of the labels, or a folder of "
                    "pictures instead of an archive"
                )
            labels = f"{before}labels-idx1{after}"
        return [file_info(self.path), file_info(labels)]

    def list_blocks(self, files: Sequence[DataFile]) -> Sequence[FileBlock]:
        """Return ranges of examples that take 8 MiB as chunks; one if the file is compressed."""
        if files[0].path != self.path:
            n, columns = len(files), math.prod(self._picture_shape(files))
        else:
            images, _ = _headers(*files)
            n, columns = images.shape[0], images.width
        row = self._row_bytes(columns)
        step = n if files[0].compression is not None else max(1, BLOCK_BYTES // row)
        return [
            FileBlock(
                nbytes=(min(first + step, n) - first) * row,
                rows=min(first + step, n) - first,
                columns=columns,
                file=files[0],
                first=first,
                stop=min(first + step, n),
            )
            for first in range(0, n, step)
        ]

    def files_in(self, block: FileBlock) -> Sequence[DataFile]:
        """Return the pictures of a block, or both IDX files."""
        files = self.files.files
        return files[block.first : block.stop] if self._is_folder else files

    def read_rows(self, block: FileBlock) -> Iterator[Rows]:
        """Yield the images of a block."""
        if self._is_folder:
            yield self._pictures(block)
            return
        files = self.files.files
        images, labels = _headers(*files)
        step = max(1, BLOCK_BYTES // self._row_bytes(images.width))
        with (
            _opened(images, block.first, files[0]) as pixels,
            _opened(labels, block.first, files[1]) as targets,
        ):
            for start in range(block.first, block.stop, step):
                k = min(step, block.stop - start)
                yield Rows(
                    labels=_take(targets, labels, start, k)[:, 0],
                    n_columns=images.width,
                    dense=_take(pixels, images, start, k),
                )
            if block.stop == images.shape[0]:
                _check_end(pixels, images)
                _check_end(targets, labels)

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return the names of the classes, with the first block."""
        return {"vocabularies": {_LABEL: self._classes()}} if self._is_folder and not block else {}

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the training data's columns and classes."""
        names = facts.vocabularies.get(_LABEL)
        classes = self.classes if names is None else tuple(names)
        return self.model_copy(update={"n_columns": facts.n_columns, "classes": classes})

    def shape(self) -> tuple[int, int, int] | None:
        """Return (channels, height, width) of an image; None for IDX files of other examples."""
        files = self.files.files
        if files[0].path != self.path:
            return self._picture_shape(files)
        match _headers(*files)[0].shape[1:]:
            case (height, width):
                return 1, height, width
            case (channels, height, width):
                return channels, height, width
        return None

    def _row_bytes(self, columns: int) -> int:
        return 8 + columns * (4 if self.dtype == "float32" else 8)

    def _picture_shape(self, files: Sequence[DataFile]) -> tuple[int, int, int]:
        """Return (channels, height, width): the job's size, or that of the first picture."""
        height, width = self.size or _size_of(files[0].path, files[0].token)
        return _CHANNELS[self.mode or "RGB"], height, width

    def _classes(self) -> Sequence[str]:
        return self.classes or sorted({_class_of(file) for file in self.files.files})

    def _pictures(self, block: FileBlock) -> Rows:
        from PIL import Image

        files, classes = self.files_in(block), self._classes()
        number = {name: float(i) for i, name in enumerate(classes)}
        channels, height, width = self._picture_shape(self.files.files)
        n_columns = channels * height * width
        rows = np.empty((len(files), n_columns), np.uint8)
        for file, row in zip(files, rows, strict=True):
            if _class_of(file) not in number:
                more = ", ..." if len(classes) > _NAMED_MAX else ""
                raise DataError(
                    f"{file.path} is in folder {_class_of(file)}, wanted one of the {len(classes)} "
                    f"classes of the training data: {', '.join(classes[:_NAMED_MAX])}{more}; name "
                    "the right data, or leave that folder out"
                )
            if self.n_columns not in (None, n_columns):
                raise DataError(
                    f"{file.path} is {height} x {width} pixels, {n_columns} values, wanted "
                    f"{self.n_columns} as in the training data; set data.size and data.mode alike "
                    "for both"
                )
            image = _read_picture(file.path, self.mode or "RGB")
            if (image.height, image.width) != (height, width):
                if self.size is None:
                    raise DataError(
                        f"{file.path} is {image.height} x {image.width} pixels, wanted {height} x "
                        f"{width} as the first picture; set data.size, to which all are resized"
                    )
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8).reshape(height, width, channels)
            row[:] = pixels.transpose(2, 0, 1).reshape(-1)
        labels = np.array([number[_class_of(file)] for file in files])
        return Rows(labels=labels, n_columns=n_columns, dense=rows)


read_images = reader(ImageSource)


def image_shape(source: Source) -> tuple[int, int, int] | None:
    """Return (channels, height, width) of a source's images; reads one image at most.

    None for other sources, and for IDX files whose examples are not images.

    Raises
    ------
    ConfigError, DataError
        When a file is missing or has another format.
    """
    return source.shape() if isinstance(source, ImageSource) else None


def _headers(images_file: DataFile, labels_file: DataFile) -> tuple[_Idx, _Idx]:
    images, labels = _header(images_file), _header(labels_file)
    if len(images.shape) < 2 or 0 in images.shape:
        raise DataError(
            f"{images.path} has dimensions {images.shape}, wanted images and their pixels"
        )
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{labels.path} has dimensions {labels.shape}, wanted one label for each of the "
            f"{images.shape[0]} images of {images.path}"
        )
    return images, labels


def _header(file: DataFile) -> _Idx:
    path = file.path
    with _reading(file) as source, reading(path):
        start = source.read(4)
        is_idx = len(start) == 4 and start[:2] == bytes(2) and start[2] in _TYPES
        sizes = source.read(4 * start[3]) if is_idx else b""
    if not is_idx or not 0 < start[3] <= _DIMENSIONS_MAX or len(sizes) != 4 * start[3]:
        raise DataError(f"{path} begins with {start.hex(' ') or 'nothing'}, {_WANTED}")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    header = _Idx(path=path, type=np.dtype(_TYPES[start[2]]), shape=shape)
    expected_bytes = 4 + len(sizes) + shape[0] * header.width * header.type.itemsize
    if file.compression is not None:
        check_expansion(path, "the file", expected_bytes, file.size)
    elif file.size != expected_bytes:
        raise DataError(
            f"{path} has {file.size} bytes, wanted {expected_bytes} for dimensions {shape}; copy "
            "or download it again"
        )
    return header


@contextlib.contextmanager
def _reading(file: DataFile) -> Iterator[BinaryIO]:
    """Open a file and decompress it if necessary."""
    with open_binary(file.path) as raw:
        yield raw if file.compression is None else decompressor(raw, file.compression)


@contextlib.contextmanager
def _opened(idx: _Idx, first: int, file: DataFile) -> Iterator[BinaryIO]:
    """Open a file at the values of example ``first``."""
    with _reading(file) as source:
        with reading(idx.path):
            source.seek(4 + 4 * len(idx.shape) + first * idx.width * idx.type.itemsize)
        yield source


def _take(source: BinaryIO, idx: _Idx, start: int, n: int) -> NDArray[np.float64]:
    """Read the next ``n`` examples, (n, width); ``start`` is the number of the first."""
    nbytes = n * idx.width * idx.type.itemsize
    with reading(idx.path):
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
            "finite number"
        )
    return values


def _check_end(source: BinaryIO, idx: _Idx) -> None:
    """Read past the last example: decompressors verify a file's checksum only at its end."""
    with reading(idx.path):
        further = source.read(1)
    if further:
        raise DataError(
            f"{idx.path} has more data after its {idx.shape[0]} examples; copy or download it again"
        )


def _is_folder(path: str) -> bool:
    try:
        system, inner = system_of(path)
        return bool(system.isdir(inner))
    except (OSError, ImportError, ValueError):
        return False


def _class_of(file: DataFile) -> str:
    """Return the name of an image's folder, which is its class."""
    return PurePosixPath(file.path).parent.name


def _images_in(path: str) -> Sequence[DataFile]:
    """Return the pictures in the folders of a folder, sorted by their names in it.

    Raises
    ------
    DataError
        When there are none.
    """
    system, inner = system_of(path)
    entries = entries_in(inner, system.find(inner, detail=True, refresh=True))
    names = sorted(name for name in entries if _is_image(name))
    if not names:
        raise DataError(
            f"{path} has no pictures in folders, wanted one folder for each class with files such "
            f"as {', '.join(_SUFFIXES[:3])}"
        )
    return [listed_file(path, name, entries[name]) for name in names]


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return name.lower().endswith(_SUFFIXES) and bool(path.parent.name) and path.name[0] != "."


@once_per_version
def _size_of(path: str, token: str) -> tuple[int, int]:
    """Return height and width of a picture."""
    image = _read_picture(path)
    return image.height, image.width


def _read_picture(path: str, mode: str | None = None) -> Any:
    """Decode a picture in a mode; without a mode only its header is read."""
    from PIL import Image, UnidentifiedImageError

    with reading(path), open_binary(path) as file:
        content = file.read(IMAGE_BYTES_MAX + 1)
    if len(content) > IMAGE_BYTES_MAX:
        raise DataError(
            f"{path} has {len(content)} bytes or more, wanted an image of at most {IMAGE_BYTES_MAX}"
        )
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            if opened.width * opened.height > PIXELS_MAX:
                raise ValueError(f"{opened.width} x {opened.height} pixels, more than {PIXELS_MAX}")
            return opened if mode is None else opened.convert(mode)
    except Exception as error:  # Pillow's decoders raise of every kind
        unknown = isinstance(error, UnidentifiedImageError)
        why = "Pillow does not know its format" if unknown else one_line(error)
        raise DataError(
            f"{path} cannot be decoded as a picture ({why}); replace or remove it"
        ) from None
