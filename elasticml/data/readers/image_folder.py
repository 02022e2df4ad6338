"""Read image files (PNG, JPEG, ...) from one folder per class.

Pillow decodes them. An example is one image as (channels, height, width), flattened: red, green,
blue, each row by row, as networks expect. Its label is the index of its folder among the sorted
folder names; test data use the training data's indices. Names are relative to the folder, and so
independent of the file system.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import Rows, cut
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, summarise
from elasticml.data.readers.files import (
    absolute,
    fingerprint,
    once_per_version,
    open_binary,
    version_of,
)
from elasticml.data.readers.single_pass_source import SinglePassSource
from elasticml.data.source import BLOCK_BYTES, BlockInfo, resolve_chunk_bytes
from elasticml.data.storage.filesystem import join, system_of
from elasticml.data.storage.untrusted_files import (
    IMAGE_BYTES_MAX,
    reading,
    reads_untrusted_files,
)
from elasticml.errors import DataError, one_line
from elasticml.specification.data import ImagesSpec

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm")
#: Their formats, as Pillow names them: it would start other programs for some.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Most pixels of an image; Pillow warns of images with more than half of it.
PIXELS_MAX: Final = 2**27
_CHANNELS: Final = {"L": 1, "RGB": 3}
#: Key of the folder names in the data's vocabularies.
_LABEL: Final = "label"
_NAMED_MAX: Final = 20
#: Listings of folders with more images than this are cached, as every block needs one. A listing is
#: valid for a multiple of the time that it took.
LISTED_ANEW_MAX: Final = 1000
_VALID_TIMES: Final = 3.0

Size = tuple[int, int]


def is_image_folder(path: str) -> bool:
    """Whether a path is a folder, not a file."""
    try:
        system, inner = system_of(path)
        return bool(system.isdir(inner))
    except (OSError, ImportError, ValueError):
        return False


def _class_of(name: str) -> str:
    """Return the name of an image's folder, which is its class."""
    return PurePosixPath(name).parent.name


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a folder."""

    #: Relative names, sorted.
    names: tuple[str, ...]
    #: Size and version of each image.
    versions: tuple[str, ...]
    #: Changes if any file changes.
    token: str
    #: Whether every change of a file can be detected.
    is_versioned: bool


class Folders:
    """Short-lived cache of the listings of large folders.

    Parameters
    ----------
    clock : callable
        Monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By path: expiry time and listing.
        self._cached: dict[str, tuple[float, Listing]] = {}

    def listing(self, path: str) -> Listing:
        """List the images below a folder."""
        began_s = self._clock()
        expiry_s, listing = self._cached.get(path, (began_s, None))
        if listing is not None and began_s < expiry_s:
            return listing
        listing = _listed_folder(path)
        ended_s = self._clock()
        self._cached.pop(path, None)
        if len(listing.names) > LISTED_ANEW_MAX:
            self._cached = {p: c for p, c in list(self._cached.items()) if ended_s < c[0]}
            self._cached[path] = (ended_s + _VALID_TIMES * (ended_s - began_s), listing)
        return listing


#: The cache of this process.
_listings: Final = Folders()


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return name.lower().endswith(IMAGE_SUFFIXES) and bool(path.parent.name) and path.name[0] != "."


def _listed_folder(path: str) -> Listing:
    system, inner = system_of(path)
    files: Mapping[str, Mapping[str, Any]] = system.find(inner, detail=True, refresh=True)
    prefix = inner.rstrip("/") + "/"
    # Some file systems include the host in file names; "inner" does not have it.
    paths = {path.partition(prefix)[2]: path for path in files}
    names = tuple(sorted(name for name in paths if _is_image(name)))
    tokens = [version_of(paths[name], files[paths[name]]) for name in names]
    versions = tuple(
        _version(files[paths[name]], token) for name, token in zip(names, tokens, strict=True)
    )
    token = fingerprint({"files": list(zip(names, versions, strict=True))})
    return Listing(names, versions, token, all(tokens))


def _version(info: Mapping[str, Any], token: str) -> str:
    return f"{info.get('size')} {token}"


def _version_of(place: str) -> str:
    system, inner = system_of(place)
    info = system.info(inner)
    return _version(info, version_of(inner, info))


def contents(path: str, names: Sequence[str], listing: Listing) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of images in a folder.

    Raises
    ------
    DataError
        When a file has changed since it was listed.
    """
    versions = dict(zip(listing.names, listing.versions, strict=True))
    for name in names:
        place = join(path, name)
        with reading(place), open_binary(place) as file:
            content = file.read(IMAGE_BYTES_MAX + 1)
        if len(content) > IMAGE_BYTES_MAX:
            raise DataError(
                f"{place} has {len(content)} bytes or more, wanted an image of at most "
                f"{IMAGE_BYTES_MAX}",
                path=place,
            )
        if listing.is_versioned and _version_of(place) != versions[name]:
            raise DataError(
                f"{place} changed while the job was reading; start a new job when all files are in "
                "place",
                path=place,
            )
        yield name, content


def folder_source_of(spec: ImagesSpec) -> ImageFolderSource:
    """Build the source of a folder from the options of ``format: images``."""
    return ImageFolderSource(
        path=absolute(spec.path),
        size=spec.size,
        mode=spec.mode or "RGB",
        dtype=spec.dtype,
        n_columns=spec.n_columns,
        classes=spec.classes,
    )


@reads_untrusted_files
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSource(SinglePassSource):
    """Images in blocks that take 8 MiB as chunks."""

    path: str
    size: Size | None
    mode: str
    dtype: Dtype
    n_columns: int | None = None
    #: Folder names by label, from the training data; None for the source's own.
    classes: tuple[str, ...] | None

    @property
    def is_costly(self) -> bool:
        """Whether to cache: images are slow to decode; only if a change can be detected."""
        return self._listing().is_versioned

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        return {
            "format": "images",
            "path": self.path,
            "size": None if self.size is None else list(self.size),
            "mode": self.mode,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
            "classes": None if self.classes is None else list(self.classes),
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over options, and sizes and versions of the files."""
        return self._fingerprint(self._listing())

    def _fingerprint(self, listing: Listing) -> str:
        return fingerprint({**self.spec(), "files": listing.token})

    def with_stats(self, facts: DatasetStats) -> ImageFolderSource:
        """Return a source that reads test data with the training data's columns and classes."""
        names = facts.vocabularies.get(_LABEL)
        classes = self.classes if names is None else tuple(names)
        return replace(self, n_columns=facts.n_columns, classes=classes)

    def blocks(self) -> list[BlockInfo]:
        """Return ranges of images; raises ConfigError or DataError if there are none."""
        listing = self._listing()
        n, row, step = len(listing.names), *self._steps(listing)
        columns = self._columns(self._size(listing))
        return [
            BlockInfo(
                index=i,
                nbytes=min(step, n - start) * row,
                rows=min(step, n - start),
                columns=columns,
            )
            for i, start in enumerate(range(0, n, step))
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read the images of one block; see :class:`elasticml.data.source.Source`."""
        bytes_of_chunk = resolve_chunk_bytes(self, chunk_bytes, n_members)
        listing = self._listing()
        size, step = self._size(listing), self._steps(listing)[1]
        names = listing.names[block * step : (block + 1) * step]
        decoded, folders = list[NDArray[np.uint8]](), list[str]()
        for name, content in contents(self.path, names, listing):
            decoded.append(self._decode(name, content, size).reshape(-1))
            folders.append(_class_of(name))
            self._check_class(name, folders[-1])
        classes = self.classes or tuple(sorted(set(map(_class_of, listing.names))))
        number = {name: float(i) for i, name in enumerate(classes)}
        labels = np.array([number[folder] for folder in folders])
        rows = Rows(labels=labels, n_columns=decoded[0].size, dense=np.stack(decoded))
        chunks = cut(rows, self._fingerprint(listing), block, bytes_of_chunk, dtype=self.dtype)
        layout = Layout(kind="dense", dtype=self.dtype, n_columns=rows.n_columns)
        reported = {_LABEL: classes} if block == 0 else {}
        return chunks, summarise(block, chunks, layout, vocabularies=reported)

    def shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width) of the images as they are read."""
        return _CHANNELS[self.mode], *self._size(self._listing())

    @property
    def _itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 8

    def _listing(self) -> Listing:
        listing = _listings.listing(self.path)
        if not listing.names:
            raise DataError(
                f"{self.path} has no pictures in folders, wanted one folder for each class with "
                f"files such as {', '.join(IMAGE_SUFFIXES[:3])}",
                path=self.path,
            )
        return listing

    def _size(self, listing: Listing) -> Size:
        """Return height and width of all images: the job's, or those of the first image."""
        if self.size is not None:
            return self.size
        token = listing.token if listing.is_versioned else ""
        return _first_size(self.path, token, listing.names[0])

    def _columns(self, size: Size) -> int:
        return _CHANNELS[self.mode] * size[0] * size[1]

    def _steps(self, listing: Listing) -> tuple[int, int]:
        """Return the bytes of an image in a chunk, and the images per block."""
        row = 8 + self._itemsize * self._columns(self._size(listing))
        return row, max(1, BLOCK_BYTES // row)

    def _check_class(self, name: str, folder: str) -> None:
        if self.classes is not None and folder not in self.classes:
            more = ", ..." if len(self.classes) > _NAMED_MAX else ""
            raise DataError(
                f"{name} of {self.path} is in folder {folder}, wanted one of the "
                f"{len(self.classes)} classes of the training data: "
                f"{', '.join(self.classes[:_NAMED_MAX])}{more}; name the right data, or leave that "
                "folder out",
                path=self.path,
            )

    def _decode(self, name: str, content: bytes, size: Size) -> NDArray[np.uint8]:
        """Decode an image to (channels, height, width); another size is resized or rejected."""
        from PIL import Image

        image = _read_image(f"{name} of {self.path}", content, self.mode)
        own_size = (image.height, image.width)
        if self.size is not None and own_size != self.size:
            image = image.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR)
        elif own_size != size:
            raise DataError(
                f"{name} is {own_size[0]} x {own_size[1]} pixels, wanted {size[0]} x {size[1]} as "
                "the first picture; set data.size, to which all are resized",
                path=name,
            )
        pixels = np.asarray(image, np.uint8)
        if self.n_columns is not None and pixels.size != self.n_columns:
            raise DataError(
                f"{name} is {own_size[0]} x {own_size[1]} pixels, {pixels.size} values, wanted "
                f"{self.n_columns} as in the training data; set data.size and data.mode alike for "
                "both",
                path=name,
            )
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@once_per_version
def _first_size(path: str, token: str, name: str) -> Size:
    """Return height and width of one image of a folder."""
    content = next(contents(path, [name], _listings.listing(path)))[1]
    image = _read_image(f"{name} of {path}", content)
    return image.height, image.width


def _read_image(name: str, content: bytes, mode: str | None = None) -> Any:
    """Decode an image in a mode; without a mode only its header is read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            if opened.width * opened.height > PIXELS_MAX:
                raise ValueError(f"{opened.width} x {opened.height} pixels, more than {PIXELS_MAX}")
            return opened if mode is None else opened.convert(mode)
    except Exception as error:  # Pillow's decoders raise of every kind
        unknown = isinstance(error, UnidentifiedImageError)
        why = "Pillow does not know its format" if unknown else one_line(error)
        raise DataError(
            f"{name} cannot be decoded as a picture ({why}); replace or remove it",
            path=name,
        ) from None
