"""What the elasticml that runs here requires, its wheel, and which processes of a cluster have it.

The wheel is made of an installed wheel, an editable one or a clone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.metadata
import io
import tomllib
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elasticml.errors import ConfigError
from elasticml.ids import VERSION

if TYPE_CHECKING:
    from distributed import Client


_PACKAGE = Path(__file__).resolve().parents[1]
_INFO = f"elasticml-{VERSION}.dist-info"
WHEEL_NAME = f"elasticml-{VERSION}-py3-none-any.whl"


def own_requirements() -> tuple[str, ...]:
    """Return what elasticml requires, without extras.

    Raises
    ------
    ConfigError
        When neither the package's metadata nor a clone's ``pyproject.toml`` is here.
    """
    project = _PACKAGE.parent / "pyproject.toml"
    if project.is_file():
        return tuple(tomllib.loads(project.read_text())["project"]["dependencies"])
    try:
        required = importlib.metadata.requires("elasticml") or ()
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"the requirements of elasticml in {_PACKAGE} are unknown: it has no metadata and no "
            "pyproject.toml; install it with pip"
        ) from None
    return tuple(text for text in required if "extra ==" not in text)


def own_wheel() -> bytes:
    """Return a wheel of this package, :data:`WHEEL_NAME`."""
    files = {
        f"elasticml/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in sorted(_PACKAGE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    required = "".join(f"Requires-Dist: {text}\n" for text in own_requirements())
    metadata = f"Metadata-Version: 2.1\nName: elasticml\nVersion: {VERSION}\n{required}"
    wheel = "Wheel-Version: 1.0\nGenerator: elasticml\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    scripts = "[console_scripts]\nelasticml = elasticml.cli.main:main\n"
    files |= {
        f"{_INFO}/METADATA": metadata.encode(),
        f"{_INFO}/WHEEL": wheel.encode(),
        f"{_INFO}/entry_points.txt": scripts.encode(),
    }
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


#: Seconds for workers to say what they have; a job does without the answers of stuck ones.
ANSWER_S: Final = 5.0
SCHEDULER: Final = "the scheduler"
requirements = cache(own_requirements)

Found = dict[str, Mapping[str, Any]]
#: Processes that have what they need, by client: they are not asked again.
_complete: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()


@contextmanager
def sent_by_value() -> Iterator[Any]:
    """Yield the module whose functions are sent to processes that cannot import it."""
    import cloudpickle

    from elasticml.runtime import remote_install

    cloudpickle.register_pickle_by_value(remote_install)
    try:
        yield remote_install
    finally:
        cloudpickle.unregister_pickle_by_value(remote_install)


def check_installed(client: Client, workers: Sequence[str] = ()) -> None:
    """Check that the scheduler and workers have this version of elasticml and what it requires.

    Raises
    ------
    ConfigError
        When one has not: it names them, their hosts, and the remedy.
    """
    known = _complete.setdefault(client, set())
    asked = [name for name in (SCHEDULER, *workers) if name not in known]
    if not asked:
        return
    found = client.sync(ask, client, asked)
    wrong = {name: has for name, has in found.items() if not is_complete(has)}
    known.update(found.keys() - wrong.keys())
    if wrong:
        raise ConfigError(_explained(wrong))


def is_complete(has: Mapping[str, Any]) -> bool:
    """Return whether a process has this version, has loaded no other, and lacks nothing."""
    return VERSION == has["version"] == (has["loaded"] or VERSION) and not has["missing"]


async def ask(client: Client, names: Sequence[str]) -> Found:
    """Return what processes have; those that do not answer are left out."""
    found: dict[str, Any] = {}
    workers = [name for name in names if name != SCHEDULER]
    with sent_by_value() as remote:
        call = remote.installed_here
        if SCHEDULER in names:
            found[SCHEDULER] = await client.run_on_scheduler(call, requirements())
        if workers:
            asked = client.run(call, requirements(), workers=workers, on_error="return")
            try:
                found |= await asyncio.wait_for(asked, ANSWER_S)
            except TimeoutError:
                return found
    return {name: has for name, has in found.items() if not isinstance(has, BaseException)}


def _explained(wrong: Found) -> str:
    """Say what processes lack, in one line."""
    groups: dict[str, list[str]] = {}
    for name, has in wrong.items():
        if (has["loaded"] or VERSION) != VERSION:
            lack = f"elasticml {has['loaded']} is loaded"
        elif has["version"] is None:
            lack = "no elasticml"
        elif has["version"] != VERSION:
            lack = f"elasticml {has['version']}"
        else:
            lack = f"no {', '.join(has['missing'])}"
        where = name if name == SCHEDULER else f"worker {name}"
        groups.setdefault(lack, []).append(f"{where} (host {has['host']})")
    texts = []
    for lack, names in groups.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        texts.append(f"{lack} on {', '.join(names[:3])}{more}")
    is_loaded = any((has["loaded"] or VERSION) != VERSION for has in wrong.values())
    remedy = "em.install(client) installs it there"
    if is_loaded:
        remedy += "; then restart what has loaded another version"
    return f"cluster: {'; '.join(texts)}; wanted elasticml {VERSION}, as here; {remedy}"
