"""List and read image files: the files of a folder, or the members of a zip or tar archive.

Names are relative to the folder or the archive, and so independent of the file system.
"""

from __future__ import annotations

import lzma
import posixpath
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

from elasticml.data.readers.files import (
    FileInfo,
    decompressor,
    file_info,
    fingerprint,
    once_per_version,
    open_binary,
    version_of,
)
from elasticml.data.storage.filesystem import join, system_of
from elasticml.data.storage.untrusted_files import (
    IMAGE_BYTES_MAX,
    LimitedReader,
    check_member,
    is_plain_name,
    reading,
)
from elasticml.errors import DataError, one_line, shown

#: Suffixes of archives, and of image files.
ZIP: Final = (".zip",)
TAR: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm")
#: Listings of folders with more images than this are cached, as every block needs one. A listing is
#: valid for a multiple of the time that it took.
LISTED_ANEW_MAX: Final = 1000
_VALID_TIMES: Final = 3.0
#: Exceptions raised for damaged archives.
_DAMAGE: Final = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, LookupError, NotImplementedError, OverflowError),
)


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a folder or a zip archive."""

    #: Relative names, sorted.
    names: tuple[str, ...]
    #: Size and version of each image; empty for an archive, which has a single version.
    versions: tuple[str, ...]
    #: Changes if any file changes.
    token: str
    #: Whether every change of a file can be detected.
    is_versioned: bool


def is_folder(path: str) -> bool:
    """Whether a path is a folder, not an archive, by its name."""
    return not path.lower().endswith((*ZIP, *TAR))


def is_tar(path: str) -> bool:
    """Whether a path is a tar archive, by its name."""
    return path.lower().endswith(TAR)


def folder_of(name: str) -> str:
    """Return the name of an image's folder, which is its class."""
    return PurePosixPath(name.replace("\\", "/")).parent.name


def listing_of(path: str) -> Listing:
    """List the images of a folder or a zip archive, sorted by name.

    Raises
    ------
    ConfigError
        When the folder or archive does not exist.
    DataError
        When the archive is damaged, or contains a name twice.
    """
    if is_folder(path):
        return folders.listing(path)
    info = file_info(path)
    return _listed_zip(path, info.token, info.size)


def contents(path: str, names: Sequence[str], listing: Listing) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of images in a folder or a zip archive.

    Raises
    ------
    DataError
        When the archive is damaged or encrypted, or a file has changed since it was listed.
    """
    if is_folder(path):
        yield from _folder_contents(path, names, listing)
        return
    with open_binary(path) as raw, _zip(path, raw) as archive:
        for name in names:
            yield name, _member_of(path, archive, name)


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
folders: Final = Folders()


def _is_image(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
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


def _folder_contents(
    path: str, names: Sequence[str], listing: Listing
) -> Iterator[tuple[str, bytes]]:
    versions = dict(zip(listing.names, listing.versions, strict=True))
    for name in names:
        place = join(path, name)
        with reading(place), open_binary(place) as file:
            content = file.read(IMAGE_BYTES_MAX + 1)
        _check_size(place, "it", len(content))
        if listing.is_versioned and _version_of(place) != versions[name]:
            raise DataError(
                f"{place} changed while the job was reading; start a new job when all files are in "
                "place",
                path=place,
            )
        yield name, content


@once_per_version
def _listed_zip(path: str, token: str, size: int) -> Listing:
    with open_binary(path) as raw, _zip(path, raw) as archive:
        names = [name for name in archive.namelist() if _is_image(name)]
    _refuse_doubles(path, names)
    return Listing(tuple(sorted(names)), (), f"{size} {token}", token != "")


def _refuse_doubles(path: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _check_name(path, name)
        if name in seen:
            raise DataError(
                f"{path} contains {name} twice, wanted every name once; pack it again", path=path
            )
        seen.add(name)


def _check_name(path: str, name: str) -> None:
    if not is_plain_name(name):
        raise DataError(f"{path} contains {shown(name)}; rename it and pack it again", path=path)


def _zip(path: str, raw: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(raw)
    except _DAMAGE as error:
        raise _damaged(path, one_line(error)) from None


def _member_of(path: str, archive: zipfile.ZipFile, name: str) -> bytes:
    check_member(path, archive.getinfo(name), IMAGE_BYTES_MAX)
    try:
        return archive.read(name)
    except _DAMAGE as error:
        raise _damaged(path, f"{name}: {one_line(error)}") from None


def tar_contents(path: str) -> Generator[tuple[str, bytes], None, None]:
    """Yield the images of a tar archive, in archive order; then links to other members.

    Raises
    ------
    DataError
        When the archive is damaged, contains a name twice, or has a link out of the archive.
    """
    links: list[tarfile.TarInfo] = []
    names: list[str] = []
    try:
        info = file_info(path)
        with open_binary(path) as raw, tarfile.open(fileobj=_tar_of(path, raw, info)) as archive:
            for member in archive:
                is_link = member.islnk() or member.issym()
                if not _is_image(member.name) or not (member.isfile() or is_link):
                    continue
                _check_name(path, member.name)
                names.append(member.name)
                if is_link:
                    links.append(member)
                else:
                    yield member.name, _extracted(path, archive, member)
            _refuse_doubles(path, names)
            yield from _linked(path, archive, links)
    except _DAMAGE as error:
        raise _damaged(path, one_line(error)) from None


def _linked(
    path: str, archive: tarfile.TarFile, links: Sequence[tarfile.TarInfo]
) -> Iterator[tuple[str, bytes]]:
    """Yield the targets of links, by offset: a compressed archive is then read in one pass."""
    members = {member.name: member for member in archive.getmembers()} if links else {}
    ends = [(link.name, _end_of(path, members, link)) for link in links]
    for name, end in sorted(ends, key=lambda pair: (pair[1].offset_data, pair[0])):
        yield name, _extracted(path, archive, end)


def _end_of(
    path: str, members: Mapping[str, tarfile.TarInfo], link: tarfile.TarInfo
) -> tarfile.TarInfo:
    """Return the file that a link resolves to."""
    entry: tarfile.TarInfo | None = link
    for _ in members:
        if entry is None or entry.isfile():
            break
        target = entry.linkname
        if entry.issym():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(entry.name), target))
        entry = members.get(target)
    if entry is None or not entry.isfile():
        raise DataError(
            f"{path}: {link.name} is a link to {link.linkname}, which is not a file of the "
            "archive; pack it again with the files themselves (tar -h)",
            path=path,
        )
    return entry


def _tar_of(path: str, raw: BinaryIO, info: FileInfo) -> Any:
    """Return the tar file in an open file, decompressed with a limit if it is compressed."""
    if info.compression is None:
        return raw
    return LimitedReader(path, decompressor(raw, info.compression), info.size)


def _extracted(path: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    _check_size(path, member.name, member.size)
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _check_size(path: str, name: str, nbytes: int) -> None:
    if nbytes > IMAGE_BYTES_MAX:
        raise DataError(
            f"{path}: {name} has {nbytes} bytes or more, wanted an image of at most "
            f"{IMAGE_BYTES_MAX}",
            path=path,
        )


def _damaged(path: str, why: str) -> DataError:
    return DataError(
        f"{path}: the archive ends early or is damaged ({why}); copy or download it again",
        path=path,
    )
