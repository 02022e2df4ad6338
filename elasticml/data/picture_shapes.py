"""The shape of a source's images, which its number of columns does not determine."""

from __future__ import annotations

from elasticml.data.images import ImageSource
from elasticml.data.pictures import PictureSource
from elasticml.data.source import Source


def picture_shape(source: Source) -> tuple[int, int, int] | None:
    """Return (channels, height, width) of a source's images; reads one image at most.

    None for other sources, and for IDX files whose examples are not images.

    Raises
    ------
    ConfigError, DataError
        When a file is missing or has another format.
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
