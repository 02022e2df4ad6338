"""Pack the current Python environment into an archive and upload it once per content hash."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from elasticml.data.storage.filesystem import exists, join, reason_of, system_of
from elasticml.errors import ConfigError, one_line

#: Characters of the hash in an archive's name: 128 bits, so collisions need about 2^64 archives.
_HASH_CHARS = 32
#: Compression level of the archives: lower ones take longer to send, higher ones longer to pack.
_COMPRESS_LEVEL = 1
#: Generated files, which do not affect what an environment does.
_DERIVED = ("*/__pycache__/*", "*.pyc", "*.nbi", "*.nbc")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One file of an archive: its local path, and its path in the environment."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingList:
    """The files of an environment's archive, sorted by target, and the kind of the environment."""

    prefix: str
    #: ``venv`` or ``conda``.
    kind: str
    files: tuple[PackedFile, ...]

    def digest(self) -> str:
        """Return the hash of its content: names, link targets, permissions and bytes.

        Compiled files are left out: they appear as modules are used.
        """
        sums = hashlib.sha256(f"{self.kind} {self.prefix}\n".encode())
        for file in self.files:
            if any(fnmatch(file.target, pattern) for pattern in _DERIVED):
                continue
            sums.update(f"{file.target}\0".encode())
            if os.path.islink(file.source):
                sums.update(b"link " + os.readlink(file.source).encode())
            elif os.path.isfile(file.source):
                with open(file.source, "rb") as opened:
                    executable = bool(os.stat(file.source).st_mode & 0o100)
                    sums.update(b"file %d " % executable)
                    sums.update(hashlib.file_digest(opened, "sha256").digest())
        return sums.hexdigest()[:_HASH_CHARS]


def packing_list(prefix: str | None = None, exclude: Sequence[str] = ()) -> PackingList:
    """List the files of an environment's archive, with elasticml even if it is an editable install.

    Parameters
    ----------
    prefix : str, optional
        A virtual or conda environment; by default the one that this process runs in.
    exclude : sequence of str
        Patterns of paths in the environment to leave out, such as ``"*/site-packages/torch/*"``.

    Raises
    ------
    ConfigError
        When it is neither, its packer is not installed, or another package in it is editable.
    """
    folder = Path(prefix or sys.prefix).absolute()
    if (folder / "conda-meta").is_dir():
        kind, targets = "conda", [file.target for file in _conda_env(folder)]
    elif (folder / "pyvenv.cfg").is_file():
        kind, targets = "venv", [file.target for file in _venv_env(folder)]
    else:
        raise ConfigError(
            f"{folder} is not a virtual or conda environment and cannot be packed; run in one, or "
            "name a Python on the nodes: environment: python:///path/to/python"
        )
    files = {target: PackedFile(source=str(folder / target), target=target) for target in targets}
    library = _site_packages(folder)
    for target in _editable_hooks(folder, library):
        files.pop(target, None)
    own = f"{library}/elasticml/"
    if own + "__init__.py" not in files:
        files.update({file.target: file for file in _own_files(own)})
    kept = (
        files[target]
        for target in sorted(files)
        if not any(fnmatch(target, pattern) for pattern in exclude)
    )
    return PackingList(prefix=str(folder), kind=kind, files=tuple(kept))


def pack_environment(listed: PackingList, output: str | Path) -> Path:
    """Write an environment's archive: a ``.tar.gz`` that skein unpacks in each container.

    Raises
    ------
    ConfigError
        When it cannot be packed.
    """
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    files = {file.target: file.source for file in listed.files}
    folder = Path(listed.prefix)
    part = output.with_name(f".{os.getpid()}-{output.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if listed.kind == "venv":
                _pack_venv(folder, files, part)
            else:
                _pack_conda(folder, files, part)
        part.replace(output)
    except Exception as error:
        raise ConfigError(
            f"{folder} cannot be packed: {one_line(error)}; fix that, or name an "
            "environment on the nodes"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return output


def upload_once(
    listed: PackingList, place: str, *, say: Callable[[str], None] = lambda line: None
) -> str:
    """Pack and upload an environment, unless an archive with the same content exists.

    Parameters
    ----------
    listed : PackingList
        Files of the archive; their hash is its name.
    place : str
        A directory that the containers' nodes can read, such as one on HDFS.
    say : callable
        Called with progress messages of one line.

    Returns
    -------
    str
        URL or path of the archive.
    """
    archive = join(place, f"{listed.digest()}.tar.gz")
    if exists(archive):
        return archive
    with tempfile.TemporaryDirectory(prefix="elasticml-pack-") as folder:
        say(f"packing {listed.prefix}: {len(listed.files)} files")
        packed = pack_environment(listed, Path(folder) / "environment.tar.gz")
        say(f"uploading {packed.stat().st_size / 2**20:.0f} MiB to {archive}")
        _send(packed, archive)
    return archive


def _send(packed: Path, archive: str) -> None:
    """Upload a file atomically, in pieces: it may be larger than memory."""
    try:
        system, inner = system_of(archive)
        above, _, name = inner.rpartition("/")
        part = f"{above}/.{name}.{secrets.token_hex(4)}.part"
        system.makedirs(above, exist_ok=True)
        try:
            system.put_file(str(packed), part)
            system.mv(part, inner)
        except BaseException:
            with suppress(OSError):
                system.rm(part)
            raise
    except (OSError, ImportError, ValueError) as error:
        raise ConfigError(
            f"the environment cannot be written to {archive}: {reason_of(error)}; choose a place "
            "with free space that you may write to"
        ) from error


# The packers: untyped libraries with similar interfaces.


def _venv_env(folder: Path) -> Any:
    try:
        import venv_pack
    except ModuleNotFoundError as error:
        raise _no_packer("venv-pack") from error
    try:
        return venv_pack.Env(str(folder))
    except venv_pack.VenvPackException as error:
        raise _refused(folder, error) from error


def _conda_env(folder: Path) -> Any:
    try:
        import conda_pack
    except ModuleNotFoundError as error:
        raise _no_packer("conda-pack") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return conda_pack.CondaEnv.from_prefix(str(folder), ignore_editable_packages=True)
    except conda_pack.CondaPackException as error:
        raise _refused(folder, error) from error


def _pack_venv(folder: Path, files: dict[str, str], output: Path) -> None:
    import venv_pack

    env = _venv_env(folder)
    env.files = [venv_pack.File(source, target) for target, source in files.items()]
    env.pack(output=str(output), format="tar.gz", compress_level=_COMPRESS_LEVEL)


def _pack_conda(folder: Path, files: dict[str, str], output: Path) -> None:
    import conda_pack

    env = _conda_env(folder)
    # Files installed by conda carry the data for rewriting their prefix.
    managed = [file for file in env.files if file.target in files]
    new = files.keys() - {file.target for file in managed}
    added = [conda_pack.File(files[target], target, is_conda=False) for target in sorted(new)]
    env.files = managed + added
    env.pack(output=str(output), format="tar.gz", compress_level=_COMPRESS_LEVEL)


def _no_packer(name: str) -> ConfigError:
    return ConfigError(f"packing this environment needs {name}; pip install {name}")


def _refused(folder: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be packed: {one_line(error)}; fix that, or name an "
        "environment on the nodes"
    )


# Editable installs, whose files are outside the environment.


def _site_packages(folder: Path) -> str:
    folders = sorted(folder.glob("lib/python3*/site-packages"))
    if len(folders) != 1:
        raise ConfigError(
            f"{folder} has {len(folders)} folders lib/python3*/site-packages, wanted one; recreate "
            "the environment"
        )
    return str(folders[0].relative_to(folder))


def _editable_hooks(folder: Path, library: str) -> list[str]:
    """List the files through which an environment finds an editable install of elasticml.

    Raises
    ------
    ConfigError
        When another package is an editable install.
    """
    hooks: list[str] = []
    for distribution in distributions(path=[str(folder / library)]):
        name = distribution.metadata["Name"]
        if not _is_editable(distribution):
            continue
        if name != "elasticml":
            raise ConfigError(
                f"{name} is an editable install and cannot be packed; install a copy: "
                f"pip install --no-deps {_home_of(distribution)}"
            )
        hooks += [
            f"{library}/{file}"
            for file in distribution.files or ()
            if file.name.startswith("__editable_")
        ]
    return hooks


def _direct_url(distribution: Distribution) -> dict[str, Any]:
    with suppress(ValueError):
        return dict(json.loads(distribution.read_text("direct_url.json") or "{}"))
    return {}


def _is_editable(distribution: Distribution) -> bool:
    return bool(_direct_url(distribution).get("dir_info", {}).get("editable"))


def _home_of(distribution: Distribution) -> str:
    return str(_direct_url(distribution).get("url", "")).removeprefix("file://")


def _own_files(target: str) -> Iterable[PackedFile]:
    """List the files of the running elasticml, with paths below ``target``."""
    package = Path(__file__).parents[2]
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        if path.is_file() and "__pycache__" not in path.parts:
            yield PackedFile(source=str(path), target=target + name)
