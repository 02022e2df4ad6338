"""The data of fault plans, and the true objective of a model, computed with numpy from all rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.datasets import dump_svmlight_file

from elasticml.algorithms.base import Arrays
from elasticml.arrays import F64
from elasticml.data.readers.arrays import ArraySource, from_arrays
from elasticml.data.readers.chunk_folder import convert
from elasticml.data.source import Source, source_from_spec
from tests.reference import Reference

#: Sums the numbers of the rows, and fails as soon as an example is counted twice, or not at all.
TOY: Final = "tests.toy:ALGORITHM"


@cache
def _rows(rows: int, columns: int, seed: int, condition: float, is_real: bool) -> tuple[F64, F64]:
    """Draw two noisy classes, or a noisy linear target."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) / np.sqrt(columns)
    if condition == 1.0:  # around three centres
        X += rng.standard_normal((3, columns))[rng.integers(0, 3, rows)]
        y = X @ rng.standard_normal(columns) + 0.3 * rng.standard_normal(rows)
        return X, y if is_real else np.sign(y)
    # The Hessian of a squared loss has this condition; all directions matter for the target.
    deviations = np.logspace(0.0, -0.5 * np.log10(condition), columns)
    turn = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    z = np.sqrt(1.0 / columns) * (X @ rng.standard_normal(columns)) * columns
    y = z / z.std() + 0.5 * rng.standard_normal(rows)
    return (X * deviations) @ turn, y if is_real else np.sign(y)


def rows_of(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[F64, F64]:
    """Return X (n, d) and y (n,) for an algorithm."""
    is_real = loss_of(algorithm) == "squared"
    size = data["rows"], data["columns"], data["seed"]
    return _rows(*size, data.get("condition", 1.0), is_real)


def loss_of(algorithm: Mapping[str, Any]) -> str:
    """Return the loss of an algorithm's section; a network's is that of two classes."""
    return str(algorithm.get("loss", "logistic"))


def source_of(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> ArraySource:
    """Return the rows as a source; by columns for primal CoCoA, in 32 bits for networks.

    ``data``: ``rows``, ``columns``, ``seed``, and ``condition``, that of the rows' covariance.
    """
    if algorithm["name"] == TOY:
        return from_arrays(np.ones((data["rows"], 1)), np.arange(float(data["rows"])))
    X, y = rows_of(algorithm, data)
    if algorithm["name"] == "local_sgd":
        return from_arrays(X.astype(np.float32), (y > 0).astype(np.float64))
    return from_arrays(X, y, by="columns" if algorithm["name"] == "primal_cocoa" else "rows")


def file_source_of(job: Mapping[str, Any], folder: Path) -> Source:
    """Return the rows as the source of the job on processes.

    Further key of ``data``: ``format``, "arrays" (the default, in memory), "chunks" or "svmlight":
    files in the folder, which are written unless they exist.
    """
    algorithm, data = job["algorithm"], job["data"]
    kind, path = data.get("format", "arrays"), folder / "rows"
    source = source_of(algorithm, data)
    if kind == "arrays":
        return source
    if not path.exists():
        folder.mkdir(exist_ok=True)
        if kind == "chunks":
            convert(source, path, chunk_bytes=job["chunk_bytes"])
        else:
            dump_svmlight_file(*rows_of(algorithm, data), path)
    return source_from_spec({"format": kind, "path": str(path)})


def _reference(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> Reference:
    X, y = rows_of(algorithm, data)
    penalty = {name: algorithm.get(name, 0.0) for name in ("l1", "l2")}
    return Reference(X=X, y=y, loss=loss_of(algorithm), **penalty)


def true_objective(algorithm: Mapping[str, Any], data: Mapping[str, Any], model: Arrays) -> float:
    """Return ``mean_i loss_i + l1 |w|_1 + l2/2 |w|^2`` over all rows, for a linear model.

    The cross-entropy of a network that is one linear layer with two outputs is the logistic loss of
    their difference.
    """
    if algorithm["name"] == "local_sgd":
        w, intercept = np.diff(model["weight"], axis=0)[0], np.diff(model["bias"])[0]
    else:
        w = np.asarray(model["coef"], dtype=np.float64).reshape(-1)
        intercept = np.ravel(model.get("intercept", 0.0))[0]
    return _reference(algorithm, data).objective(w, float(intercept))


def least_objective(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> float:
    """Return the optimal objective, or very little more."""
    return _least(json.dumps(dict(algorithm), sort_keys=True), json.dumps(dict(data)))


@cache
def _least(algorithm_json: str, data_json: str) -> float:
    return _reference(json.loads(algorithm_json), json.loads(data_json)).least
