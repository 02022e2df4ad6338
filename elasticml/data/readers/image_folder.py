"""Pictures (PNG, JPEG, ...) in one folder per class.

Pillow decodes them. An example is one picture as (channels, height, width), flattened: red, green,
blue, each row by row, as networks expect. Its label is the index of its folder among the sorted
folder names; test data use the training data's indices.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.data.readers.files import DataFile, once_per_version, open_binary, version_of
from elasticml.data.storage.filesystem import join, system_of
from elasticml.data.storage.untrusted_files import IMAGE_BYTES_MAX, reading
from elasticml.errors import DataError, one_line

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm")
#: Their formats, as Pillow names them: it would start other programs for some.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Most pixels of an image; Pillow warns of images with more than half of it.
PIXELS_MAX: Final = 2**27

Size = tuple[int, int]
Mode = Literal["RGB", "L"]


def is_image_folder(path: str) -> bool:
    """Whether a path is a folder, not a file."""
    try:
        system, inner = system_of(path)
        return bool(system.isdir(inner))
    except (OSError, ImportError, ValueError):
        return False


def class_of(file: DataFile) -> str:
    """Return the name of an image's folder, which is its class."""
    return PurePosixPath(file.path).parent.name


def images_in(path: str) -> Sequence[DataFile]:
    """Return the pictures in the folders of a folder, sorted by their names in it.

    Raises
    ------
    DataError
        When there are none.
    """
    system, inner = system_of(path)
    found: Mapping[str, Mapping[str, Any]] = system.find(inner, detail=True, refresh=True)
    prefix = inner.rstrip("/") + "/"
    # Some file systems include the host in file names; "inner" does not have it.
    entries = {name.partition(prefix)[2]: entry for name, entry in found.items()}
    names = sorted(name for name in entries if _is_image(name))
    if not names:
        raise DataError(
            f"{path} has no pictures in folders, wanted one folder for each class with files such "
            f"as {', '.join(IMAGE_SUFFIXES[:3])}",
            path=path,
        )
    return [
        DataFile(
            path=join(path, name),
            size=int(entries[name].get("size") or 0),
            token=version_of(str(entries[name]["name"]), entries[name]),
            compression=None,
        )
        for name in names
    ]


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return name.lower().endswith(IMAGE_SUFFIXES) and bool(path.parent.name) and path.name[0] != "."


def read_picture(file: DataFile, size: Size | None, mode: Mode, first: Size) -> NDArray[np.uint8]:
    """Read a picture as (channels, height, width).

    Parameters
    ----------
    size : (height, width), optional
        To which it is resized.
    first : (height, width)
        The size of the first picture, which this one must have if it is not resized.

    Raises
    ------
    DataError
        When it is no picture, or has another size.
    """
    from PIL import Image

    image = _read_image(file.path, _content(file.path), mode)
    own_size = (image.height, image.width)
    if size is not None and own_size != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    elif own_size != first:
        raise DataError(
            f"{file.path} is {own_size[0]} x {own_size[1]} pixels, wanted {first[0]} x {first[1]} "
            "as the first picture; set data.size, to which all are resized",
            path=file.path,
        )
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@once_per_version
def size_of(path: str, token: str) -> Size:
    """Return height and width of a picture."""
    image = _read_image(path, _content(path))
    return image.height, image.width


def _content(path: str) -> bytes:
    with reading(path), open_binary(path) as file:
        content = file.read(IMAGE_BYTES_MAX + 1)
    if len(content) > IMAGE_BYTES_MAX:
        raise DataError(
            f"{path} has {len(content)} bytes or more, wanted an image of at most "
            f"{IMAGE_BYTES_MAX}",
            path=path,
        )
    return content


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
