"""A wheel of the package that runs here, from an installed wheel, an editable one or a clone."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import tomllib
import zipfile
from pathlib import Path

from elasticml.errors import ConfigError
from elasticml.ids import VERSION

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
