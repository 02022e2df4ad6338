"""Elastic machine learning on Dask: training continues while workers leave and return."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # names as themselves, which type checkers take for exported
    from elasticml import callbacks as callbacks
    from elasticml import errors as errors
    from elasticml import policies as policies
    from elasticml import settings as settings
    from elasticml import testing as testing
    from elasticml.clusters.local.cluster import LocalCluster as LocalCluster
    from elasticml.clusters.yarn.cluster import YarnCluster as YarnCluster
    from elasticml.data.readers.arrays import from_arrays as from_arrays
    from elasticml.data.readers.chunk_folder import read_chunks as read_chunks
    from elasticml.data.readers.dask_collections import from_dask as from_dask
    from elasticml.data.readers.frames import from_frame as from_frame
    from elasticml.data.readers.frames import from_pandas as from_pandas
    from elasticml.data.readers.images import read_images as read_images
    from elasticml.data.readers.svmlight import read_svmlight as read_svmlight
    from elasticml.data.readers.tabular import read_csv as read_csv
    from elasticml.data.readers.tabular import read_parquet as read_parquet
    from elasticml.estimators.elastic_net import ElasticNet as ElasticNet
    from elasticml.estimators.elastic_net import Lasso as Lasso
    from elasticml.estimators.kmeans import KMeans as KMeans
    from elasticml.estimators.logistic import LogisticRegression as LogisticRegression
    from elasticml.estimators.paths import ElasticNetCV as ElasticNetCV
    from elasticml.estimators.paths import LassoCV as LassoCV
    from elasticml.estimators.paths import enet_path as enet_path
    from elasticml.estimators.paths import lasso_path as lasso_path
    from elasticml.estimators.poisson import PoissonRegressor as PoissonRegressor
    from elasticml.estimators.ridge import Ridge as Ridge
    from elasticml.estimators.svm import LinearSVC as LinearSVC
    from elasticml.job import Job as Job
    from elasticml.jobs.announce import announce as announce
    from elasticml.jobs.announce import withdraw as withdraw
    from elasticml.jobs.handle import Handle as Handle
    from elasticml.jobs.install import install as install
    from elasticml.jobs.result import Result as Result
    from elasticml.jobs.watch import watch as watch
    from elasticml.models.loading import load_model as load_model
    from elasticml.specification.algorithms import AsyncSGD as AsyncSGD
    from elasticml.specification.algorithms import BatchGradient as BatchGradient
    from elasticml.specification.algorithms import CoCoA as CoCoA
    from elasticml.specification.algorithms import ImportedAlgorithm as ImportedAlgorithm
    from elasticml.specification.algorithms import Linear as Linear
    from elasticml.specification.algorithms import LocalSGD as LocalSGD
    from elasticml.specification.algorithms import PrimalCoCoA as PrimalCoCoA
    from elasticml.specification.sections import Stop as Stop
    from elasticml.specification.sections import Validate as Validate

    __version__: str

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
    "Linear": "specification.algorithms",
    "LinearSVC": "estimators.svm",
    "LogisticRegression": "estimators.logistic",
    "PoissonRegressor": "estimators.poisson",
    "Ridge": "estimators.ridge",
    "Job": "job",
    **dict.fromkeys(("announce", "withdraw"), "jobs.announce"),
    "AsyncSGD": "specification.algorithms",
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
}
_MODULES = ("callbacks", "errors", "policies", "settings", "testing")
__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


#: An import of more modules than these is followed by a garbage collection.
_MANY_MODULES = 500


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("elasticml.ids").VERSION
    if name in _MODULES:
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
    # Only who finds it on turns it off: another thread may turn it on again meanwhile.
    if was_enabled:
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
