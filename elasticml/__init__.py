"""Elastic machine learning on Dask: training continues while workers leave and return."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticml import callbacks, errors, policies, settings, testing
    from elasticml.clusters.local.cluster import LocalCluster
    from elasticml.clusters.yarn.cluster import YarnCluster
    from elasticml.data.readers.arrays import from_arrays
    from elasticml.data.readers.chunk_folder import read_chunks
    from elasticml.data.readers.dask_collections import from_dask
    from elasticml.data.readers.frames import from_frame, from_pandas
    from elasticml.data.readers.images import read_images
    from elasticml.data.readers.svmlight import read_svmlight
    from elasticml.data.readers.tabular import read_csv, read_parquet
    from elasticml.errors import ConfigError, DataError, ElasticmlError, JobFailedError
    from elasticml.estimators.elastic_net import ElasticNet, Lasso
    from elasticml.estimators.kmeans import KMeans
    from elasticml.estimators.logistic import LogisticRegression
    from elasticml.estimators.paths import ElasticNetCV, LassoCV, enet_path, lasso_path
    from elasticml.estimators.poisson import PoissonRegressor
    from elasticml.estimators.ridge import Ridge
    from elasticml.estimators.svm import LinearSVC
    from elasticml.ids import VERSION as __version__
    from elasticml.job import Job
    from elasticml.jobs.announce import announce, withdraw
    from elasticml.jobs.callbacks import Callback
    from elasticml.jobs.handle import Handle
    from elasticml.jobs.install import install
    from elasticml.jobs.result import Result
    from elasticml.jobs.watch import watch
    from elasticml.models.loading import load_model
    from elasticml.specification.algorithms import (
        AsyncSGD,
        BatchGradient,
        CoCoA,
        ImportedAlgorithm,
        LocalSGD,
        PrimalCoCoA,
    )
    from elasticml.specification.linear import Linear
    from elasticml.specification.sections import Stop, Validate

__all__ = [
    "AsyncSGD",
    "BatchGradient",
    "Callback",
    "CoCoA",
    "ConfigError",
    "DataError",
    "ElasticNet",
    "ElasticNetCV",
    "ElasticmlError",
    "Handle",
    "ImportedAlgorithm",
    "Job",
    "JobFailedError",
    "KMeans",
    "Lasso",
    "LassoCV",
    "Linear",
    "LinearSVC",
    "LocalCluster",
    "LocalSGD",
    "LogisticRegression",
    "PoissonRegressor",
    "PrimalCoCoA",
    "Result",
    "Ridge",
    "Stop",
    "Validate",
    "YarnCluster",
    "__version__",
    "announce",
    "callbacks",
    "enet_path",
    "errors",
    "from_arrays",
    "from_dask",
    "from_frame",
    "from_pandas",
    "install",
    "lasso_path",
    "load_model",
    "policies",
    "read_chunks",
    "read_csv",
    "read_images",
    "read_parquet",
    "read_svmlight",
    "settings",
    "testing",
    "watch",
    "withdraw",
]

#: The module that defines each public name. Names are imported on first access, so that the command
#: line starts fast and a worker loads only what it needs.
_HOMES = {
    "LocalCluster": "clusters.local.cluster",
    "YarnCluster": "clusters.yarn.cluster",
    "from_arrays": "data.readers.arrays",
    "from_dask": "data.readers.dask_collections",
    **dict.fromkeys(("from_frame", "from_pandas"), "data.readers.frames"),
    "read_chunks": "data.readers.chunk_folder",
    "read_csv": "data.readers.tabular",
    "read_images": "data.readers.images",
    "read_parquet": "data.readers.tabular",
    "read_svmlight": "data.readers.svmlight",
    "KMeans": "estimators.kmeans",
    **dict.fromkeys(("ElasticNet", "Lasso"), "estimators.elastic_net"),
    **dict.fromkeys(("ElasticNetCV", "LassoCV", "enet_path", "lasso_path"), "estimators.paths"),
    "Linear": "specification.linear",
    "LinearSVC": "estimators.svm",
    "LogisticRegression": "estimators.logistic",
    "PoissonRegressor": "estimators.poisson",
    "Ridge": "estimators.ridge",
    "Job": "job",
    **dict.fromkeys(("announce", "withdraw"), "jobs.announce"),
    "AsyncSGD": "specification.algorithms",
    "Callback": "jobs.callbacks",
    "Handle": "jobs.handle",
    "install": "jobs.install",
    "Result": "jobs.result",
    "watch": "jobs.watch",
    "load_model": "models.loading",
    **dict.fromkeys(
        ("BatchGradient", "CoCoA", "ImportedAlgorithm", "LocalSGD", "PrimalCoCoA"),
        "specification.algorithms",
    ),
    **dict.fromkeys(("Stop", "Validate"), "specification.sections"),
    **dict.fromkeys(("ConfigError", "DataError", "ElasticmlError", "JobFailedError"), "errors"),
}


#: An import of more modules than these is followed by a garbage collection.
_MANY_MODULES = 500


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("elasticml.ids").VERSION
    if name in ("callbacks", "errors", "policies", "settings", "testing"):
        return importlib.import_module(f"elasticml.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'elasticml' has no attribute {name!r}")
    value = getattr(_import(f"elasticml.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _import(module: str) -> Any:
    """Import a module without garbage collections, which cost a tenth of an import's time.

    What an import creates stays. After a long import one collection follows, so that Python does
    not begin one in the first fit.
    """
    was_enabled, n_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()
            if len(sys.modules) - n_modules > _MANY_MODULES:
                gc.collect()


def __dir__() -> list[str]:
    return __all__
