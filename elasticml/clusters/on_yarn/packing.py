"""Packed environments: the one that runs here, as an archive, uploaded once for what is in it."""

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

from elasticml.data.places import exists, join, reason_of, system_of
from elasticml.errors import ConfigError

#: Characters of the hash in an archive's name; two environments share it once in 2^64 pairs.
_HASH_CHARS = 32
#: Compression of the archives: less takes longer to send, more takes longer to pack.
_COMPRESS_LEVEL = 1
#: What is made anew when it is needed, and says nothing of what an environment does.
_DERIVED = ("*/__pycache__/*", "*.pyc", "*.nbi", "*.nbc")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One file of an archive: where it is here, and its path in the environment."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingList:
    """What goes into an archive of an environment, sorted by target, and with which tool."""

    prefix: str
    #: ``venv`` or ``conda``.
    kind: str
    files: tuple[PackedFile, ...]

    def digest(self) -> str:
        """Return the hash of what is in it: names, link targets, permissions and bytes.

        Compiled files do not count: they come and go as modules are used.
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
    """List what an archive of an environment holds, elasticml included however it is installed.

    Parameters
    ----------
    prefix : str, optional
        A virtual or conda environment; the one that this process runs in where it is None.
    exclude : sequence of str
        Patterns of paths in the environment that are left out, as in ``"*/site-packages/torch/*"``.

    Raises
    ------
    ConfigError
        When it is neither, its packer is not installed, or another package in it is editable.
    """
    folder = Path(prefix or sys.prefix).absolute()
    if (folder / "conda-meta").is_dir():
        kind, found = "conda", [file.target for file in _conda_env(folder)]
    elif (folder / "pyvenv.cfg").is_file():
        kind, found = "venv", [file.target for file in _venv_env(folder)]
    else:
        raise ConfigError(
            f"{folder} is no virtual or conda environment and cannot be packed; run in one, or "
            "name an environment of the nodes as environment: python:///path/to/python"
        )
    files = {target: PackedFile(source=str(folder / target), target=target) for target in found}
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
    """Write the archive of an environment, a ``.tar.gz`` that skein unpacks in each container.

    Raises
    ------
    ConfigError
        When it cannot be packed.
    """
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    wanted = {file.target: file.source for file in listed.files}
    folder = Path(listed.prefix)
    part = output.with_name(f".{os.getpid()}-{output.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if listed.kind == "venv":
                _pack_venv(folder, wanted, part)
            else:
                _pack_conda(folder, wanted, part)
        part.replace(output)
    except Exception as error:
        raise ConfigError(
            f"{folder} cannot be packed: {' '.join(str(error).split())}; mend that, or name an "
            "environment of the nodes"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return output


def upload_once(
    listed: PackingList, place: str, *, say: Callable[[str], None] = lambda line: None
) -> str:
    """Have the archive of an environment at a place, packed and sent only if it is not there yet.

    Parameters
    ----------
    listed : PackingList
        What is in it; its hash names the archive.
    place : str
        A directory that the containers' nodes can read, such as one on HDFS.
    say : callable
        Is told, in a line each, what takes long.

    Returns
    -------
    str
        Where the archive is.
    """
    archive = join(place, f"{listed.digest()}.tar.gz")
    if exists(archive):
        return archive
    with tempfile.TemporaryDirectory(prefix="elasticml-pack-") as folder:
        say(f"packing {listed.prefix}: {len(listed.files)} files")
        packed = pack_environment(listed, Path(folder) / "environment.tar.gz")
        say(f"sending {packed.stat().st_size / 2**20:.0f} MiB to {archive}")
        _send(packed, archive)
    return archive


def _send(packed: Path, archive: str) -> None:
    """Copy a file to a place by pieces, whole or not at all; it may be larger than the memory."""
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
            f"the environment cannot be written to {archive}: {reason_of(error)}; name a place "
            "with room that this user may write to",
            path=archive,
        ) from error


# The packers, which have no types and are alike.


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


def _pack_venv(folder: Path, wanted: dict[str, str], output: Path) -> None:
    import venv_pack

    env = _venv_env(folder)
    env.files = [venv_pack.File(source, target) for target, source in wanted.items()]
    env.pack(output=str(output), format="tar.gz", compress_level=_COMPRESS_LEVEL)


def _pack_conda(folder: Path, wanted: dict[str, str], output: Path) -> None:
    import conda_pack

    env = _conda_env(folder)
    # What conda has installed carries how its paths are to be rewritten.
    managed = [file for file in env.files if file.target in wanted]
    new = wanted.keys() - {file.target for file in managed}
    added = [conda_pack.File(wanted[target], target, is_conda=False) for target in sorted(new)]
    env.files = managed + added
    env.pack(output=str(output), format="tar.gz", compress_level=_COMPRESS_LEVEL)


def _no_packer(name: str) -> ConfigError:
    return ConfigError(f"to pack this environment {name} is needed; pip install {name}")


def _refused(folder: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be packed: {' '.join(str(error).split())}; mend that, or name an "
        "environment of the nodes"
    )


# Editable installs, which are elsewhere than in the environment.


def _site_packages(folder: Path) -> str:
    found = sorted(folder.glob("lib/python3*/site-packages"))
    if len(found) != 1:
        raise ConfigError(
            f"{folder} has {len(found)} folders lib/python3*/site-packages, wanted one; make the "
            "environment anew"
        )
    return str(found[0].relative_to(folder))


def _editable_hooks(folder: Path, library: str) -> list[str]:
    """List the files by which an environment finds elasticml where it is developed.

    Raises
    ------
    ConfigError
        When another package is installed like that.
    """
    hooks: list[str] = []
    for found in distributions(path=[str(folder / library)]):
        name = found.metadata["Name"]
        if not _is_editable(found):
            continue
        if name != "elasticml":
            raise ConfigError(
                f"{name} is an editable install and cannot be packed; install it as it is: "
                f"pip install --no-deps {_home_of(found)}"
            )
        hooks += [
            f"{library}/{file}" for file in found.files or () if file.name.startswith("__editable_")
        ]
    return hooks


def _direct_url(found: Distribution) -> dict[str, Any]:
    with suppress(ValueError):
        return dict(json.loads(found.read_text("direct_url.json") or "{}"))
    return {}


def _is_editable(found: Distribution) -> bool:
    return bool(_direct_url(found).get("dir_info", {}).get("editable"))


def _home_of(found: Distribution) -> str:
    return str(_direct_url(found).get("url", "")).removeprefix("file://")


def _own_files(target: str) -> Iterable[PackedFile]:
    """List the files of the elasticml that runs here, for a folder of an environment."""
    package = Path(__file__).parents[2]
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        if path.is_file() and "__pycache__" not in path.parts:
            yield PackedFile(source=str(path), target=target + name)
