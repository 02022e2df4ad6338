"""Read image files (PNG, JPEG, ...) from one folder per class, or from an archive of such folders.

Pillow decodes them. An example is one image as (channels, height, width), flattened: red, green,
blue, each row by row, as networks expect. Its label is the index of its folder among the sorted
folder names; test data use the training data's indices.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import Rows, cut
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, summarise
from elasticml.data.readers.files import (
    absolute,
    file_info,
    fingerprint,
    is_versioned,
    once_per_version,
)
from elasticml.data.readers.image_files import (
    IMAGE_SUFFIXES,
    TAR,
    ZIP,
    Listing,
    contents,
    folder_of,
    is_folder,
    is_tar,
    listing_of,
    tar_contents,
)
from elasticml.data.readers.single_pass_source import SinglePassSource
from elasticml.data.source import BLOCK_BYTES, BlockInfo, resolve_chunk_bytes
from elasticml.data.storage.filesystem import system_of
from elasticml.data.storage.untrusted_files import reads_untrusted_files
from elasticml.errors import DataError, one_line
from elasticml.specification.data import ImagesSpec

#: The formats of ``IMAGE_SUFFIXES``, as Pillow names them: it would start other programs for some.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Most pixels of an image; Pillow warns of images with more than half of it.
PIXELS_MAX: Final = 2**27
#: Rough ratio of decoded images, at one byte a value, to the size of an archive.
_EXPANSION: Final = 10
_CHANNELS: Final = {"L": 1, "RGB": 3}
#: Key of the folder names in the data's vocabularies.
_LABEL: Final = "label"
_NAMED_MAX: Final = 20

Size = tuple[int, int]


def is_image_folder(path: str) -> bool:
    """Whether a path is a folder or an archive, not a file of another kind."""
    if path.lower().endswith((*ZIP, *TAR)):
        return True
    try:
        system, inner = system_of(path)
        return bool(system.isdir(inner))
    except (OSError, ImportError, ValueError):
        return False


def read_image_folder(
    path: str,
    *,
    size: Sequence[int] | None = None,
    mode: str = "RGB",
    dtype: Dtype = "float64",
    n_columns: int | None = None,
    classes: Sequence[str] | None = None,
) -> ImageFolderSource:
    """Return a source for a folder or an archive of images; nothing is read yet.

    Parameters
    ----------
    path : str
        A folder with one folder per class, or a zip or tar archive of such folders. Files without
        an image suffix are skipped.
    size : (height, width), optional
        Size to which images are resized; by default all must have the first one's size.
    mode : {"RGB", "L"}
        Three colour channels, or greyscale.
    dtype
        As for :func:`elasticml.data.readers.svmlight.read_svmlight`.
    n_columns : int, optional
        Required number of values per image, that of the training data.
    classes : sequence of str, optional
        Folder names of the labels 0, 1, ...; by default all folders, sorted.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    return folder_source_of(
        ImagesSpec(
            path=str(path),
            dtype=dtype,
            n_columns=n_columns,
            size=size,  # type: ignore[arg-type]
            mode=mode,  # type: ignore[arg-type]
            classes=classes,  # type: ignore[arg-type]
        )
    )


def folder_source_of(spec: ImagesSpec) -> ImageFolderSource:
    """Build the source of a folder or an archive from the options of ``format: images``."""
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
    """Images in blocks that take 8 MiB as chunks; one block if they are in a tar archive."""

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
        if is_folder(self.path):
            return self._listing().is_versioned
        return is_versioned(self.path)

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
        return self._fingerprint(self._listing() if is_folder(self.path) else None)

    def _fingerprint(self, listing: Listing | None) -> str:
        if listing is not None and is_folder(self.path):
            return fingerprint({**self.spec(), "files": listing.token})
        return fingerprint(self.spec(), file_info(self.path))

    def with_stats(self, facts: DatasetStats) -> ImageFolderSource:
        """Return a source that reads test data with the training data's columns and classes."""
        names = facts.vocabularies.get(_LABEL)
        classes = self.classes if names is None else tuple(names)
        return replace(self, n_columns=facts.n_columns, classes=classes)

    def blocks(self) -> list[BlockInfo]:
        """Return ranges of images; raises ConfigError or DataError if there are none."""
        if is_tar(self.path):
            nbytes = file_info(self.path).size * _EXPANSION * self._itemsize
            return [BlockInfo(index=0, nbytes=nbytes)]
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
        listing = None if is_tar(self.path) else self._listing()
        size = None if listing is None else self._size(listing)
        decoded, folders = list[NDArray[np.uint8]](), list[str]()
        for name, content in self._contents(block, listing):
            pixels = self._decode(name, content, size)
            size = pixels.shape[1], pixels.shape[2]
            decoded.append(pixels.reshape(-1))
            folders.append(folder_of(name))
            self._check_class(name, folders[-1])
        if not decoded:
            raise self._empty()
        classes = self.classes or _sorted(
            folders if listing is None else map(folder_of, listing.names)
        )
        number = {name: float(i) for i, name in enumerate(classes)}
        labels = np.array([number[folder] for folder in folders])
        rows = Rows(labels=labels, n_columns=decoded[0].size, dense=np.stack(decoded))
        chunks = cut(rows, self._fingerprint(listing), block, bytes_of_chunk, dtype=self.dtype)
        layout = Layout(kind="dense", dtype=self.dtype, n_columns=rows.n_columns)
        reported = {_LABEL: classes} if block == 0 else {}
        return chunks, summarise(block, chunks, layout, vocabularies=reported)

    def shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width) of the images as they are read."""
        size = self._size(None if is_tar(self.path) else self._listing())
        return _CHANNELS[self.mode], *size

    @property
    def _itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 8

    def _empty(self) -> DataError:
        return DataError(
            f"{self.path} has no pictures in folders, wanted one folder for each class with files "
            f"such as {', '.join(IMAGE_SUFFIXES[:3])}",
            path=self.path,
        )

    def _listing(self) -> Listing:
        listing = listing_of(self.path)
        if not listing.names:
            raise self._empty()
        return listing

    def _size(self, listing: Listing | None) -> Size:
        """Return height and width of all images: the job's, or those of the first image.

        ``listing`` is None for a tar archive.
        """
        if self.size is not None:
            return self.size
        if listing is None:
            with closing(tar_contents(self.path)) as images:
                first = next(images, None)
            if first is None:
                raise self._empty()
            return _size_of(f"{first[0]} of {self.path}", first[1])
        token = listing.token if listing.is_versioned else ""
        return _first_size(self.path, token, listing.names[0])

    def _columns(self, size: Size) -> int:
        return _CHANNELS[self.mode] * size[0] * size[1]

    def _steps(self, listing: Listing) -> tuple[int, int]:
        """Return the bytes of an image in a chunk, and the images per block."""
        row = 8 + self._itemsize * self._columns(self._size(listing))
        return row, max(1, BLOCK_BYTES // row)

    def _contents(self, block: int, listing: Listing | None) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each image of a block."""
        if listing is None:
            return tar_contents(self.path)
        step = self._steps(listing)[1]
        return contents(self.path, listing.names[block * step : (block + 1) * step], listing)

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

    def _decode(self, name: str, content: bytes, size: Size | None) -> NDArray[np.uint8]:
        """Decode an image to (channels, height, width); another size is resized or rejected."""
        from PIL import Image

        image = _read_image(f"{name} of {self.path}", content, self.mode)
        own_size = (image.height, image.width)
        if self.size is not None and own_size != self.size:
            image = image.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR)
        elif size is not None and own_size != size:
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


def _sorted(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(folders)))


@once_per_version
def _first_size(path: str, token: str, name: str) -> Size:
    """Return height and width of one image of a folder or zip archive."""
    content = next(iter(contents(path, [name], listing_of(path))))[1]
    return _size_of(f"{name} of {path}", content)


def _size_of(name: str, content: bytes) -> Size:
    image = _read_image(name, content)
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
