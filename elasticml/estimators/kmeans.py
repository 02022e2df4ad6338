"""K-Means with scikit-learn's interface."""

from __future__ import annotations

from contextlib import closing
from dataclasses import KW_ONLY
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.sparsefuncs import mean_variance_axis
from sklearn.utils.validation import check_is_fitted, validate_data

from elasticml.algorithms.async_sgd.local_kmeans import Assignment, Rows, means_of
from elasticml.algorithms.async_sgd.nearest_centres import move_to_means
from elasticml.algorithms.async_sgd.plus_plus import plus_plus
from elasticml.algorithms.async_sgd.seeding import How
from elasticml.arrays import F64, is_lazy, is_named
from elasticml.data.chunks.chunk import Dtype
from elasticml.estimators.backend_choice import JOB_VALUES_MIN, choose_client, n_threads
from elasticml.estimators.base import (
    ElasticEstimator,
    lazily,
    meta_of,
    weights_of,
    with_parameters,
)
from elasticml.estimators.inputs import load_training_rows
from elasticml.jobs.user_warnings import warn
from elasticml.runtime.executors import parallel

if TYPE_CHECKING:
    from elasticml.models.model import Model

#: Separates these draws from others with the same seed.
_DRAWS: Final = 0xA531
#: Rows at equal intervals whose variances are taken for those of all.
_VARIANCE_ROWS: Final = 4000
#: Passes of a job in mini-batches, and the most of Lloyd's passes after them.
_JOB_PASSES: Final = 5
_JOB_LLOYD_MAX: Final = 10
#: More rounds than a job has.
_ROUNDS_MAX: Final = 10**9
#: scikit-learn's names of initializations, and ours.
_STARTS: Final[dict[str, How]] = {
    "k-means++": "kmeans++",
    "random": "sample",
}


@with_parameters
class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, ElasticEstimator):
    """Find clusters with K-Means, in this process or on a Dask cluster.

    The interface is that of scikit-learn's ``KMeans``. Greedy k-means++ chooses the initial
    centres, and Lloyd's algorithm improves them; it skips rows whose centre cannot have changed
    (Hamerly, "Making k-means even faster", SDM 2010). On a cluster, the job is one of
    :class:`AsyncSGD`.

    Parameters
    ----------
    n_clusters : int
    init : "k-means++", "random" or array_like (n_clusters, n_features)
        ``k-means++`` chooses among rows drawn from all: 10,000, or 500 per cluster; a job among
        100 per cluster.
    max_iter : int
        The most iterations of Lloyd's algorithm. A job makes five passes in mini-batches, and then
        at most ten iterations.
    tol : float
        The iterations end when the sum of the squared shifts of the centres is at most this share
        of the mean variance of the columns.
    n_jobs : int, optional
        Threads; by default one, -1 for all CPUs. The result does not depend on it.
    random_state : int, RandomState or None
        A job's result also depends on when its members' messages arrive.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``.
    n_init, verbose, copy_x, algorithm
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    cluster_centers_ : ndarray (n_clusters, n_features)
    counts_ : ndarray (n_clusters,)
        Weight of the examples that each centre is the mean of; ``partial_fit`` adds to it.
    labels_ : ndarray (n_samples,), int32
        Labels of the data of the last ``fit`` or ``partial_fit``; a lazy collection if those were a
        Dask collection and the model was fitted by a job.
    inertia_ : float
        Weighted sum of their squared distances to the nearest centre.
    n_iter_ : int
        Number of iterations; of a job, of passes in mini-batches.
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if X is a Dask collection and there
        is a default client. A job does not use ``tol``.
    n_features_in_ : int

    Notes
    -----
    ``partial_fit`` takes one mini-batch step with all given rows. The first call also chooses the
    initial centres and needs at least ``n_clusters`` rows.

    If the data have fewer distinct rows than clusters, some centres coincide, and ``fit`` warns.

    Examples
    --------
    >>> model = em.KMeans(n_clusters=3, random_state=0).fit(X)
    >>> model.cluster_centers_.shape, model.labels_.shape
    ((3, 5), (200,))
    """

    _without_meaning = ("n_init", "verbose", "copy_x", "algorithm")
    _rules_of_predicted: ClassVar[dict[str, Any]] = {
        "accept_sparse": "csr",
        "dtype": [np.float64, np.float32],
        "order": "C",
    }
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ElasticEstimator._parameter_constraints,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(_STARTS)), "array-like"],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    n_clusters: int = 8
    _: KW_ONLY
    init: Literal["k-means++", "random"] | ArrayLike = "k-means++"
    max_iter: int = 300
    tol: float = 1e-4
    n_jobs: int | None = None
    random_state: Any = None
    client: Any = None
    n_init: Any = "auto"
    verbose: int = 0
    copy_x: bool = True
    algorithm: str = "lloyd"

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Find centres.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), Dask collection, file or source
            See :func:`elasticml.estimators.inputs.load_arrays`.
        y : ignored
        sample_weight : array_like (n_samples,), optional
            Nonnegative; by default all are one.
        """
        if is_lazy(X) and self.max_iter > 0:
            with choose_client(self.client, JOB_VALUES_MIN) as client:
                if client is not None:
                    return self._fit_collection(X, sample_weight, client)
        X, weights = self._read(X, sample_weight, reset=True)
        self._check(X, is_new=True)
        rows = Rows(X, weights)
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            if self.client is not None and self.max_iter > 0:
                # Imported here: loading what jobs need takes longer than most fits.
                from elasticml.data.readers.arrays import from_arrays

                dtype: Dtype = "float32" if X.dtype == np.float32 else "float64"
                # Jobs have labels, which K-Means does not read.
                data = from_arrays(X, np.zeros(rows.n), weights, dtype=dtype)
                with choose_client(self.client, 0) as client:
                    centres, self.counts_ = self._run_job(data, client, X)
                assignment = Assignment(rows, centres, pool)
            else:
                self.solver_path_ = "in-process"
                assignment = Assignment(rows, self._start(X, rows), pool)
                centres, self.counts_ = self._lloyd(rows, assignment)
            self.cluster_centers_ = centres.astype(X.dtype)
            self._keep_labels(rows, assignment)
        n_distinct = np.count_nonzero(np.bincount(self.labels_, minlength=self.n_clusters))
        if n_distinct < self.n_clusters:
            warn(
                f"Number of distinct clusters ({n_distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X."
            )
        return self

    def _fit_collection(self, X: Any, sample_weight: Any, client: Any) -> KMeans:
        """Fit as a job on partitions of a Dask collection, where they are."""
        from elasticml.data.readers.dask_partitions import array_source, row_parts

        self._validate_params()
        validate_data(self, meta_of(X), skip_check_array=True)
        self._rows = None
        is_array = hasattr(X, "rechunk")
        # Jobs have labels, which K-Means does not read.
        zeros = 0 * (X[:, 0] if is_array else X.iloc[:, 0])
        data = array_source(row_parts(X, zeros, sample_weight), "float64", (X, sample_weight))
        self.cluster_centers_, self.counts_ = self._run_job(data, client, X)
        self.labels_ = self.predict(X)
        squares = lazily(self, "_squares", X, np.float64)
        squares = squares if is_array else squares.to_dask_array()
        weighted = squares if sample_weight is None else squares * sample_weight
        self.inertia_ = float(client.compute(weighted.sum()).result())
        return self

    def _run_job(self, data: Any, client: Any, X: Any) -> tuple[Any, Any]:
        """Return the centres of a job on these data, and their counts."""
        from elasticml.estimators.solver import run_job
        from elasticml.specification.algorithms import AsyncSGD

        start = None if isinstance(self.init, str) else self._given(X)
        algorithm = AsyncSGD(
            "kmeans",
            k=int(self.n_clusters),
            batch=max(3 * int(self.n_clusters), 256),
            start="kmeans++" if start is not None else _STARTS[str(self.init)],
            passes=_JOB_PASSES,
            final_passes=min(int(self.max_iter), _JOB_LLOYD_MAX),
            seed=self._seed(),
        )
        warm_start = None if start is None else {"centres": start}
        # The passes end the job; a row of its history, a round, is a second.
        result = run_job(algorithm, data, client, _ROUNDS_MAX, warm_start)
        self.solver_path_, self.n_iter_ = "job", _JOB_PASSES
        return result.arrays["centres"], result.arrays["counts"]

    def _lloyd(self, rows: Rows, assignment: Assignment) -> tuple[F64, F64]:
        """Iterate; return the centres and their masses."""
        centres, mass = assignment.centres, np.zeros(self.n_clusters)
        some = rows.X[:: max(1, rows.n // _VARIANCE_ROWS)]
        variances = mean_variance_axis(some, axis=0)[1] if rows.is_sparse else some.var(axis=0)
        limit = self.tol * float(np.mean(variances))
        self.n_iter_ = 0
        while self.n_iter_ < self.max_iter:
            self.n_iter_ += 1
            assignment.move_to(centres)
            sums, mass, n_moved = assignment.sums()
            centres = means_of(assignment.centres, sums, mass)
            shift = float(((centres - assignment.centres) ** 2).sum())
            if not n_moved or shift <= limit:
                break
        return centres, mass

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Take one step with these rows; the parameters are those of :meth:`fit`."""
        is_new = not hasattr(self, "cluster_centers_")
        X, weights = self._read(X, sample_weight, reset=is_new)
        self._check(X, is_new=is_new)
        rows = Rows(X, weights)
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            if is_new:
                centres, mass = self._start(X, rows), np.zeros(self.n_clusters)
                self.n_iter_ = 0
            else:
                centres, mass = np.array(self.cluster_centers_, np.float64), self.counts_.copy()
            assignment = Assignment(rows, centres, pool)
            assignment.move_to(centres)
            move_to_means(centres, mass, *assignment.sums()[:2])
            self.counts_, self.cluster_centers_ = mass, centres.astype(X.dtype)
            self._keep_labels(rows, assignment)
        return self

    def predict(self, X: Any) -> Any:
        """Return the index of each row's nearest centre; shape (n_samples,)."""
        check_is_fitted(self)
        if is_lazy(X):
            return lazily(self, "predict", X, np.int32)
        return self._nearest(X)[0]

    def _squares(self, X: Any) -> NDArray[np.float64]:
        """Return the squared distances to the nearest centres, (n_samples,)."""
        return self._nearest(X)[1]

    def _nearest(self, X: Any) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        X, _ = self._read(X, None, reset=False)
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            assignment = Assignment(Rows(X, None), self._centres(), pool)
            assignment.move_to(self._centres(), is_exact=True)
        return assignment.labels, assignment.squares()

    def transform(self, X: Any) -> Any:
        """Return the distances of rows to all centres; shape (n_samples, n_clusters)."""
        check_is_fitted(self)
        if is_lazy(X):
            return lazily(self, "transform", X, self.cluster_centers_.dtype, len(self._centres()))
        from sklearn.metrics.pairwise import euclidean_distances

        X = self._rows_of(X)
        if scipy.sparse.issparse(X) and not X.has_canonical_format:
            # Repeated entries are added up; scikit-learn squares each.
            X = X.copy()
            X.sum_duplicates()
        distances: NDArray[Any] = euclidean_distances(X, self.cluster_centers_)
        return distances

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Return minus the weighted sum of squared distances to the nearest centres."""
        check_is_fitted(self)
        X, weights = self._read(X, sample_weight, reset=False)
        squares = self._nearest(X)[1]
        return -float(squares.sum() if weights is None else squares @ weights)

    def to_model(self) -> Model:
        """Return the centres as a function of rows (``elasticml/models/model.py``)."""
        check_is_fitted(self)
        from elasticml.models.model import KMeansModel

        arrays = {"centres": self._centres(), "counts": np.asarray(self.counts_, np.float64)}
        return KMeansModel(arrays, rows=self._row_input())

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # --- data and starts -------------------------------------------------------------------------

    def _read(
        self, X: Any, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[Any, NDArray[np.float64] | None]:
        if reset:
            is_frame = not is_named(X)
            X, self._rows = load_training_rows(X, client=self.client)
            X = validate_data(self, X, **self._rules_of_predicted)
            if is_frame:
                self._take_names()
        else:
            X = self._rows_of(X)
        return X, weights_of(sample_weight, X)

    def _check(self, X: Any, *, is_new: bool) -> None:
        self._validate_params()
        if is_new and X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")

    def _start(self, X: Any, rows: Rows) -> F64:
        """Return the initial centres; some coincide if there are too few distinct rows."""
        if not isinstance(self.init, str):
            return self._given(X)
        k, rng = int(self.n_clusters), np.random.default_rng([_DRAWS, self._seed()])
        mass = rows.weights if rows.weights.any() else np.ones(rows.n)
        if self.init == "random":
            some = np.flatnonzero(mass)
            return rows.dense(rng.choice(some, k, replace=len(some) < k))
        return np.resize(plus_plus(rows, mass, k, rng), (k, rows.d))

    def _given(self, X: Any) -> NDArray[np.float64]:
        """Validate the given initial centres."""
        centres: NDArray[np.float64] = check_array(self.init, dtype=np.float64, copy=True)
        wanted = {"clusters": self.n_clusters, "features of the data": X.shape[1]}
        for found, (what, number) in zip(centres.shape, wanted.items(), strict=True):
            if found != number:
                raise ValueError(
                    f"The shape of the initial centers {centres.shape} does not match the number "
                    f"of {what} {number}."
                )
        return centres

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    # --- results ---------------------------------------------------------------------------------

    def _keep_labels(self, rows: Rows, assignment: Assignment) -> None:
        assignment.move_to(self._centres(), is_exact=True)
        squares = assignment.squares()
        self.labels_ = assignment.labels
        self.inertia_ = float(squares @ rows.weights if rows.weights.size else squares.sum())

    def _centres(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.cluster_centers_, np.float64)
