"""The file of a trained model: ``.npz`` with the arrays, and a JSON header in one more entry.

The entry ``elasticml.model`` holds the header as UTF-8 bytes, version 1::

    format    "elasticml model"
    version   1; a reader refuses larger ones
    package   version of elasticml that wrote it
    kind      "linear", "kmeans" or "network"
    classes   labels, ascending: words, booleans or numbers; null without classes
    rows      n_columns; encoder: null, or label, classes, weight, and for each column its name,
              kind, fill, indicator, categories, ...; names: of the columns of a frame; index_base
    settings  linear: loss and link, one_against_rest if each of several classes has a model of its
              own against all others; network: algorithm and facts

The other entries are arrays: ``coef`` (k, d) and ``intercept`` (k,); ``centres`` (k, d) and
``counts`` (k,); or a network's by parameter name. Nothing is pickled. The model of
a user's own algorithm has no header if it is none of these kinds.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.storage.filesystem import local_path, read_bytes
from elasticml.data.storage.untrusted_files import check_regular, read_npz_arrays
from elasticml.errors import ConfigError, DataError
from elasticml.ids import VERSION

FORMAT: Final = "elasticml model"
FORMAT_VERSION: Final = 1
#: Entry of the header. Parameters of networks have no such name.
HEADER: Final = "elasticml.model"
#: Entry with the labels, for those who read the arrays.
CLASSES: Final = "classes"

Arrays = Mapping[str, NDArray[Any]]


def file_arrays(parameters: Arrays, classes: Any, **header: Any) -> dict[str, NDArray[Any]]:
    """Return the entries of a model's file.

    Parameters
    ----------
    parameters : mapping of ndarray
    classes : ndarray (n_classes,) or None
    header : kind, rows and settings, as JSON
    """
    described = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "package": VERSION,
        "classes": None if classes is None else classes.tolist(),
        **header,
    }
    text = json.dumps(described, allow_nan=False).encode()
    named = {} if classes is None else {CLASSES: classes}
    return {**parameters, **named, HEADER: np.frombuffer(text, np.uint8)}


def npz_bytes(arrays: Arrays) -> bytes:
    """Return arrays as the bytes of an ``.npz`` file."""
    buffer = io.BytesIO()
    # mypy mistakes the arrays for the keyword argument allow_pickle.
    np.savez(buffer, **dict(arrays))  # type: ignore[arg-type]
    return buffer.getvalue()


def own_arrays(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the model's own arrays, without classes and header."""
    return {name: array for name, array in arrays.items() if name not in (CLASSES, HEADER)}


def model_file(path: str | Path) -> str:
    """Return the model's file of a path or URL, which may be the directory of a run."""
    name = os.fspath(path)
    local = local_path(name)
    return name if local is None or not local.is_dir() else str(local / "model.npz")


def read_arrays(name: str) -> dict[str, NDArray[Any]]:
    """Read all entries of a model's file.

    Raises
    ------
    ConfigError, DataError
        When it does not exist, or is not an ``.npz`` file without pickled objects.
    """
    check_regular(name)
    try:
        return read_npz_arrays(name, io.BytesIO(read_bytes(name)))
    except FileNotFoundError:
        raise ConfigError(f"model {name} does not exist; name a file that save wrote") from None
    except DataError as error:
        raise DataError(
            f"{name} is not a model file, or is damaged; save the model again ({error.message})"
        ) from None
