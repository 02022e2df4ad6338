"""What shape a source's pictures have, where it has any: their columns alone do not tell."""

from __future__ import annotations

from elasticml.data.images import ImageSource
from elasticml.data.pictures import PictureSource
from elasticml.data.source import Source


def picture_shape(source: Source) -> tuple[int, int, int] | None:
    """Return (channels, height, width) of a source's pictures, at most one of which is read.

    None for sources of other data, and for IDX files whose examples are no pictures.

    Raises
    ------
    ConfigError, DataError
        When a file is missing, or not what it was said to be.
    """
    if isinstance(source, PictureSource):
        return source.shape()
    if not isinstance(source, ImageSource):
        return None
    match source.dimensions():
        case (height, width):
            return 1, height, width
        case (channels, height, width):
            return channels, height, width
    return None
