"""Load models from files, and make them from a job's arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.storage.untrusted_files import reading
from elasticml.errors import DataError, ElasticmlError, one_line
from elasticml.models.file_format import (
    FORMAT,
    FORMAT_VERSION,
    HEADER,
    Arrays,
    model_file,
    own_arrays,
    read_arrays,
)
from elasticml.models.model import KMeansModel, LinearModel, Model, NetworkModel
from elasticml.models.row_input import RowInput, row_input_from_json
from elasticml.specification.algorithms import (
    ALGORITHMS,
    is_regression,
    settings_from_section,
)


def load_model(path: str | Path, *, trust: Any = ()) -> Model:
    """Read a model from its file, or from a run's directory.

    Parameters
    ----------
    path : path or URL
        What ``model.save`` wrote; or a run directory, or its ``model.npz``.
    trust : import path, function or class, or a list of them, optional
        A network's factory and loss, such as ``"mymodule:Net"`` or the class itself, unless
        elasticml has them. The file only names them, and names of other files are not imported.

    Raises
    ------
    ConfigError
        When the file does not exist, or names code that ``trust`` has not.
    DataError
        When it is not a model, is damaged, or was written by a later version.

    Examples
    --------
    >>> em.LogisticRegression().fit(X, y).save("labels.npz")
    >>> model = em.load_model("labels.npz")
    >>> model.predict(X[:3]).shape
    (3,)
    """
    name = model_file(path)
    arrays = read_arrays(name)
    with reading(name):
        model = _of_header(arrays, name)
    if isinstance(model, NetworkModel):
        model.trust(trust)
    return model


def read_model(name: str, algorithm: Mapping[str, Any]) -> tuple[Model | None, Arrays]:
    """Read the ``model.npz`` of a run.

    Parameters
    ----------
    algorithm : mapping
        The section of the job.

    Returns
    -------
    model : Model or None
        None if the algorithm is user-defined.
    arrays : mapping of ndarray
        The job's arrays.
    """
    arrays = read_arrays(name)
    # The classes of column-partitioned data are an array of the job.
    own = arrays if algorithm.get("name") == "primal_cocoa" else own_arrays(arrays)
    named = {key: array for key, array in own.items() if key != HEADER}
    return _of_header(arrays, name) if HEADER in arrays else None, named


def _of_header(arrays: Arrays, name: str) -> Model:
    if HEADER not in arrays:
        raise DataError(
            f"{name} has arrays {', '.join(list(arrays)[:5])} and no header, wanted a file that "
            "model.save or a job wrote"
        )
    try:
        header = json.loads(bytes(arrays[HEADER]))
        version, kind = header["version"], header["kind"]
        if header["format"] != FORMAT:
            raise DataError(f"{name} is a file of format {header['format']!r}, wanted {FORMAT!r}")
        if version != FORMAT_VERSION:
            raise DataError(
                f"{name} is a model file of version {version}, wanted {FORMAT_VERSION}; read it "
                f"with elasticml {header['package']} or later"
            )
        model: Model
        rows, settings = row_input_from_json(header["rows"]), header["settings"]
        classes, own = header["classes"], own_arrays(arrays)
        if kind == LinearModel.kind:
            linear = LinearModel(
                own,
                classes,
                rows=rows,
                loss=settings["loss"],
                power=settings.get("power"),
                one_against_rest=bool(settings.get("one_against_rest")),
                link=settings.get("link"),
            )
            _check_linear(linear)
            model, width = linear, linear.coef_.shape[1]
        elif kind == KMeansModel.kind:
            centres = KMeansModel(own, rows=rows)
            model, width = centres, centres.cluster_centers_.shape[1]
        elif kind == NetworkModel.kind:
            facts = DatasetStats.from_json(settings["facts"])
            model = NetworkModel(
                own, settings["algorithm"], facts, classes=classes, rows=rows, file=name
            )
            width = rows.n_columns
        else:
            raise DataError(f"{name} is a model of kind {kind!r}, wanted linear, kmeans or network")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(
            f"{name} has a damaged header ({type(error).__name__}: {one_line(error)}); save the "
            "model again"
        ) from None
    encoded = width if rows.encoder is None else rows.encoder.n_columns
    if width != rows.n_columns or not 0 <= width <= encoded:
        raise DataError(
            f"{name} does not fit together: its arrays have {width} columns, its header "
            f"{min(rows.n_columns, encoded)}; save the model again"
        )
    return model


def _check_linear(model: LinearModel) -> None:
    """Check that arrays and classes fit together; raises ValueError."""
    coef, classes = model.coef_, model.classes_
    n_models = len(coef)
    if coef.ndim != 2 or coef.dtype.kind not in "fiu" or model.intercept_.dtype.kind not in "fiu":
        raise ValueError(f"coef has shape {coef.shape} of {coef.dtype}")
    if model.intercept_.shape != (n_models,):
        raise ValueError(f"{n_models} rows of coef and {model.intercept_.size} intercepts")
    wanted = n_models if n_models > 1 else 2
    if classes is not None and classes.shape != (wanted,):
        raise ValueError(f"classes of shape {classes.shape} for {n_models} rows of coef")


def classes_of(
    algorithm: Mapping[str, Any], facts: DatasetStats | None, arrays: Mapping[str, Any]
) -> list[Any] | None:
    """Return the classes of a job's model; None in regression."""
    # A regression loss has no classes, even if there are few distinct labels.
    if is_regression(algorithm):
        return None
    if algorithm.get("name") == "primal_cocoa":
        # The labels of its data are column numbers; the classes are in the model.
        return [float(label) for label in arrays["classes"]] if "classes" in arrays else None
    if facts is None or facts.classes is None:
        return None
    encoder = rows_of(facts, facts.n_columns).encoder
    if encoder is None or encoder.classes is None:
        return list(facts.classes)
    words: tuple[Any, ...] = (False, True) if encoder.is_boolean else encoder.classes
    return [words[int(code)] for code in facts.classes]


def rows_of(facts: DatasetStats | None, n_columns: int) -> RowInput:
    """Return what turns rows into numbers, from the statistics of the training data."""
    if facts is None:
        return RowInput(n_columns=n_columns)
    return row_input_from_json(
        {"n_columns": n_columns, "encoder": facts.encoder, "index_base": facts.index_base}
    )


def model_of_job(
    algorithm: Mapping[str, Any], facts: DatasetStats | None, arrays: Arrays
) -> Model | None:
    """Return the model for users; None if there is none, or the algorithm is user-defined."""
    name = str(algorithm.get("name"))
    classes = classes_of(algorithm, facts, arrays)
    if name == NETWORKS and arrays and facts is not None:
        rows = rows_of(facts, facts.n_columns)
        return NetworkModel(arrays, algorithm, facts, classes=classes, rows=rows)
    by_rows = None if name == "primal_cocoa" else facts
    if {"coef", "intercept"} <= arrays.keys():
        width = np.atleast_2d(arrays["coef"]).shape[1]
        loss = _loss_of(name, algorithm)
        return LinearModel(
            arrays,
            classes,
            rows=rows_of(by_rows, width),
            loss=loss,
            power=algorithm.get("power"),
            one_against_rest=is_one_against_rest(name, loss),
            link=algorithm.get("link"),
        )
    if "centres" in arrays and name in ALGORITHMS:
        return KMeansModel(arrays, rows=rows_of(by_rows, arrays["centres"].shape[1]))
    return None


def is_one_against_rest(algorithm: str, loss: str | None) -> bool:
    """Whether a built-in algorithm trains several classes each against the rest."""
    return algorithm in ALGORITHMS and (algorithm, loss) != ("batch_gradient", "logistic")


#: The algorithm whose models are networks.
NETWORKS: Final = "local_sgd"


def _loss_of(name: str, algorithm: Mapping[str, Any]) -> str | None:
    """Return the loss, which the section omits if it is the default; None if it is unknown."""
    if name not in ALGORITHMS:
        return algorithm.get("loss")
    try:
        return getattr(settings_from_section(ALGORITHMS[name], algorithm), "loss", None)
    except ElasticmlError:
        return algorithm.get("loss")
