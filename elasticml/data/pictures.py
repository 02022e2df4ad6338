"""Read pictures (PNG, JPEG, ...) from a folder for each class, or from an archive of such folders.

Pillow decodes them. An example is one picture, channel by channel, row by row: red, green, blue, as
a network's (channels, height, width) wants it. Its label is the number of its folder among all
folders' names, sorted.
"""

from __future__ import annotations

import functools
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk, Dtype, Layout
from elasticml.data.cut import Rows, cut
from elasticml.data.facts import BlockSummary, summarise
from elasticml.data.files import absolute, file_facts, fingerprint, open_binary
from elasticml.data.places import system_of
from elasticml.data.rows import fit_columns
from elasticml.data.source import BLOCK_BYTES, BlockInfo, check_dtype, resolve_chunk_bytes
from elasticml.data.surveyless import Surveyless
from elasticml.errors import ConfigError, DataError

#: Endings of archives, and of the files in them that are pictures.
ZIP: Final = (".zip",)
TAR: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PICTURES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm")
#: How many bytes of decoded pictures a byte of an archive stands for, roughly, at one byte a value.
_EXPANSION: Final = 10
_CHANNELS: Final = {"L": 1, "RGB": 3}


def is_pictures(path: str) -> bool:
    """Tell a folder or an archive of pictures from a file of another kind."""
    if path.lower().endswith((*ZIP, *TAR)):
        return True
    try:
        system, inner = system_of(path)
        return bool(system.isdir(inner))
    except (OSError, ImportError, ValueError):
        return False


def read_pictures(
    path: str,
    *,
    size: Sequence[int] | None = None,
    mode: str = "RGB",
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> PictureSource:
    """Name a folder or an archive of pictures as a source; nothing is read yet.

    Parameters
    ----------
    path : str
        A folder with a folder for each class, or a zip or tar archive of such folders. What is no
        picture by its ending is left out.
    size : (height, width), optional
        To which pictures are resized; by default all must have the first one's size.
    mode : {"RGB", "L"}
        Three colours, or grey.
    dtype, n_columns
        As for :func:`elasticml.data.svmlight.read_svmlight`.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    check_dtype(dtype)
    if mode not in _CHANNELS:
        raise ConfigError(f"data.mode is {mode!r}, wanted 'RGB' or 'L' (grey)", key="data.mode")
    if size is not None and not _is_size(size):
        raise ConfigError(
            f"data.size is {size!r}, wanted height and width such as [32, 32]", key="data.size"
        )
    fixed = None if size is None else (int(size[0]), int(size[1]))
    return PictureSource(
        path=absolute(str(path)), size=fixed, mode=mode, dtype=dtype, n_columns=n_columns
    )


def _is_size(size: Any) -> bool:
    return (
        isinstance(size, Sequence)
        and len(size) == 2
        and all(isinstance(side, int) and side >= 1 for side in size)
    )


@dataclass(frozen=True, slots=True)
class _Listing:
    """The pictures' names in a folder or a zip archive, sorted, and what tells their state."""

    names: tuple[str, ...]
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSource(Surveyless):
    """Pictures in blocks that take 8 MiB as chunks; in one where they are in a tar archive."""

    path: str
    size: tuple[int, int] | None = None
    mode: str = "RGB"
    dtype: Dtype = "float64"
    n_columns: int | None = None

    @property
    def is_costly(self) -> bool:
        """Whether chunks are worth a cache: always, pictures are slow to decode."""
        return True

    def spec(self) -> dict[str, Any]:
        """Name the source in a JSON-able dict."""
        return {
            "format": "images",
            "path": self.path,
            "size": None if self.size is None else list(self.size),
            "mode": self.mode,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over options, and sizes and times of the files."""
        if self._is_folder:
            return fingerprint({**self.spec(), "files": self._listing().token})
        return fingerprint(self.spec(), file_facts(self.path))

    def blocks(self) -> list[BlockInfo]:
        """List groups of pictures; raises ConfigError or DataError where there are none."""
        itemsize = 4 if self.dtype == "float32" else 8
        if self._is_tar:
            nbytes = file_facts(self.path).size * _EXPANSION * itemsize
            return [BlockInfo(index=0, nbytes=nbytes)]
        n, row = len(self._listing().names), 8 + itemsize * self._width()
        step = max(1, BLOCK_BYTES // row)
        return [
            BlockInfo(index=i, nbytes=min(step, n - start) * row, rows=min(step, n - start))
            for i, start in enumerate(range(0, n, step))
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read the pictures of one block; see :class:`elasticml.data.source.Source`."""
        bytes_of_chunk = resolve_chunk_bytes(self, chunk_bytes, n_members)
        size, decoded, folders = self.size, list[NDArray[np.uint8]](), list[str]()
        for name, content in self._contents(block):
            pixels = self._decode(name, content, size)
            size = pixels.shape[1], pixels.shape[2]
            decoded.append(pixels.reshape(-1))
            folders.append(_folder_of(name))
        if not decoded:
            raise self._empty()
        classes = sorted(set(folders)) if self._is_tar else self._classes()
        number = {name: float(i) for i, name in enumerate(classes)}
        labels = np.array([number[folder] for folder in folders])
        rows = Rows(labels=labels, n_columns=decoded[0].size, dense=np.stack(decoded))
        counts: dict[str, int] = {}
        if self.n_columns is not None:
            rows = fit_columns(rows, self.n_columns, counts)
        chunks = cut(rows, self.fingerprint(), block, bytes_of_chunk, dtype=self.dtype)
        layout = Layout(kind="dense", dtype=self.dtype, n_columns=rows.n_columns)
        return chunks, summarise(block, chunks, layout, counts=counts)

    @property
    def _is_tar(self) -> bool:
        return self.path.lower().endswith(TAR)

    @property
    def _is_folder(self) -> bool:
        return not self.path.lower().endswith((*ZIP, *TAR))

    def _empty(self) -> DataError:
        return DataError(
            f"{self.path} has no pictures in folders, wanted one folder for each class with files "
            f"such as {', '.join(PICTURES[:3])}",
            path=self.path,
        )

    def _listing(self) -> _Listing:
        listing = _listed_folder if self._is_folder else _listed_zip
        found = listing(self.path, _state_of(self.path))
        if not found.names:
            raise self._empty()
        return found

    def _classes(self) -> list[str]:
        return sorted({_folder_of(name) for name in self._listing().names})

    def _width(self) -> int:
        """Values of one picture: those of the first."""
        if self.size is not None:
            return _CHANNELS[self.mode] * self.size[0] * self.size[1]
        name = self._listing().names[0]
        content = next(iter(self._opened([name])))[1]
        return int(self._decode(name, content, None).size)

    def _contents(self, block: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each picture of a block."""
        if self._is_tar:
            yield from _tar_contents(self.path)
            return
        names, step = self._listing().names, self.blocks()[0].rows or 1
        yield from self._opened(names[block * step : (block + 1) * step])

    def _opened(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        if self._is_folder:
            for name in names:
                with open_binary(name) as file:
                    yield name, file.read()
            return
        with open_binary(self.path) as raw, _zip(self.path, raw) as archive:
            for name in names:
                try:
                    yield name, archive.read(name)
                except (zipfile.BadZipFile, zlib.error, OSError) as error:
                    raise _damaged(self.path, f"{name}: {error}") from None

    def _decode(self, name: str, content: bytes, size: tuple[int, int] | None) -> NDArray[np.uint8]:
        """Decode a picture, (channels, height, width); of another size it is resized or refused."""
        from PIL import Image

        try:
            with Image.open(io.BytesIO(content)) as opened:
                picture = opened.convert(self.mode)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{name} cannot be decoded as a picture ({error}); replace or remove it", path=name
            ) from None
        here = (picture.height, picture.width)
        if size is not None and here != size:
            if self.size is None:
                raise DataError(
                    f"{name} is {here[0]} x {here[1]} pixels, wanted {size[0]} x {size[1]} as the "
                    "first picture; set data.size, to which all are resized",
                    path=name,
                )
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, np.uint8)
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _folder_of(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).parent.name


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    return name.lower().endswith(PICTURES) and bool(path.parent.name) and path.name[0] != "."


def _state_of(path: str) -> str:
    """Tell whether a listing is still true, without listing every file again."""
    system, inner = system_of(path)
    if not system.isdir(inner):
        facts = file_facts(path)
        return f"{facts.size} {facts.token}"
    return str([(e["name"], e.get("mtime")) for e in system.ls(inner, detail=True)])


@functools.lru_cache(maxsize=8)
def _listed_folder(path: str, state: str) -> _Listing:
    system, inner = system_of(path)
    found: Mapping[str, Mapping[str, Any]] = system.find(inner, detail=True)
    start, colon, _ = path.partition("://")
    names = sorted(
        name for name in found if _is_picture(name) and name.rpartition("/")[0] != inner.rstrip("/")
    )
    token = [(name, found[name].get("size"), found[name].get("mtime")) for name in names]
    full = tuple(f"{start}://{name}" if colon else name for name in names)
    return _Listing(full, fingerprint({"files": token}))


@functools.lru_cache(maxsize=8)
def _listed_zip(path: str, state: str) -> _Listing:
    with open_binary(path) as raw, _zip(path, raw) as archive:
        return _Listing(tuple(sorted(n for n in archive.namelist() if _is_picture(n))), state)


def _zip(path: str, raw: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(raw)
    except zipfile.BadZipFile as error:
        raise _damaged(path, str(error)) from None


def _tar_contents(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the pictures of a tar archive, in its order."""
    try:
        with open_binary(path) as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
            for member in archive:
                if member.isfile() and _is_picture(member.name):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name, file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: str, why: str) -> DataError:
    return DataError(
        f"{path}: the archive ends early or is damaged ({why}); copy or download it again",
        path=path,
    )
