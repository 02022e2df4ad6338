"""K-Means with scikit-learn's interface."""

from __future__ import annotations

from contextlib import closing
from numbers import Integral, Real
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
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elasticml.algorithms.async_sgd import seeding
from elasticml.algorithms.async_sgd.base import Arrays
from elasticml.algorithms.async_sgd.local_kmeans import Assignment, Rows
from elasticml.algorithms.async_sgd.seeding_ops import run_locally
from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import FixedPieces
from elasticml.data.chunks.chunk import Chunk, Dtype, csr_chunk, dense_chunk
from elasticml.errors import DataError
from elasticml.estimators.backend_choice import JOB_VALUES_MIN, choose_client, n_threads
from elasticml.estimators.base import ElasticEstimator, is_lazy, lazily, meta_of
from elasticml.estimators.inputs import is_named, load_rows, load_training_rows
from elasticml.ids import ChunkId
from elasticml.jobs.user_warnings import warn
from elasticml.runtime.executors import parallel

if TYPE_CHECKING:
    from elasticml.models.model import Model

_CHUNK_BYTES: Final = 2**20
#: Separates these draws from others with the same seed.
_DRAWS: Final = 0xA531
#: Rows from which k-means++ chooses, at most: it looks at each of them for each centre.
_SEEDING_ROWS_MAX: Final = 100_000
_VARIANCE_ROWS: Final = 4000
#: Passes of a job in mini-batches, and the most of Lloyd's passes after them.
_JOB_PASSES: Final = 5
_JOB_LLOYD_MAX: Final = 10
#: More rounds than a job has.
_ROUNDS_MAX: Final = 10**9
#: scikit-learn's names of initializations, and ours.
_STARTS: Final[dict[str, seeding.How]] = {
    "k-means++": "kmeans++",
    "k-means||": "kmeans||",
    "random": "sample",
}


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, ElasticEstimator):
    """Find clusters with K-Means, in this process or on a Dask cluster.

    The interface is that of scikit-learn's ``KMeans``. Greedy k-means++ chooses the initial
    centres, and Lloyd's algorithm improves them; it skips rows whose centre cannot have changed
    (Hamerly, "Making k-means even faster", SDM 2010). On a cluster, the job is one of
    :class:`AsyncSGD`.

    Parameters
    ----------
    n_clusters : int
    init : "k-means++", "k-means||", "random" or array_like (n_clusters, n_features)
        ``k-means++`` chooses among all rows, or 100,000 at random; a job among 100 per cluster.
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
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(_STARTS)), "array-like"],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    cluster_centers_: NDArray[Any]
    counts_: NDArray[np.float64]
    labels_: Any

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Literal["k-means++", "k-means||", "random"] | ArrayLike = "k-means++",
        max_iter: int = 300,
        tol: float = 1e-4,
        n_jobs: int | None = None,
        random_state: Any = None,
        client: Any = None,
        n_init: Any = "auto",
        verbose: int = 0,
        copy_x: bool = True,
        algorithm: str = "lloyd",
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.client = client
        self.n_init = n_init
        self.verbose = verbose
        self.copy_x = copy_x
        self.algorithm = algorithm

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
        if self.client is not None and self.max_iter > 0:
            return self._fit_as_job(X, weights)
        self.solver_path_ = "in-process"
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            self._fit(X, weights, pool)
        self._warn_of_few()
        return self

    def _warn_of_few(self) -> None:
        n_distinct = np.count_nonzero(np.bincount(self.labels_, minlength=self.n_clusters))
        if n_distinct < self.n_clusters:
            warn(
                f"Number of distinct clusters ({n_distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X."
            )

    def _fit_as_job(self, X: Any, weights: Any) -> KMeans:
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.data.readers.arrays import from_arrays

        self._check(X, is_new=True)
        dtype: Dtype = "float32" if X.dtype == np.float32 else "float64"
        data = from_arrays(X, np.zeros(X.shape[0]), weights, dtype=dtype)
        with choose_client(self.client, 0) as client:
            state = self._run_job(data, client, X)
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            self.cluster_centers_ = state["centres"].astype(X.dtype)
            self.counts_ = state["counts"]
            rows = Rows(X, weights)
            self._keep_labels(rows, Assignment(rows, self._centres(), pool))
        self._warn_of_few()
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
        state = self._run_job(data, client, X)
        self.cluster_centers_, self.counts_ = state["centres"], state["counts"]
        self.labels_ = self.predict(X)
        squares = lazily(self, "_squares", X, np.float64)
        squares = squares if is_array else squares.to_dask_array()
        weighted = squares if sample_weight is None else squares * sample_weight
        self.inertia_ = float(client.compute(weighted.sum()).result())
        return self

    def _run_job(self, data: Any, client: Any, X: Any) -> Arrays:
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
        return {"centres": result.arrays["centres"], "counts": result.arrays["counts"]}

    def _fit(self, X: Any, weights: NDArray[np.float64] | None, threads: Parallel) -> None:
        self._check(X, is_new=True)
        rows = Rows(X, weights)
        centres, mass = self._start(X, weights, threads), np.zeros(self.n_clusters)
        limit = self.tol * float(np.mean(_variances(X)))
        assignment = Assignment(rows, centres, threads)
        self.n_iter_ = 0
        while self.n_iter_ < self.max_iter:
            self.n_iter_ += 1
            assignment.move_to(centres)
            centres, mass, n_moved = assignment.means()
            shift = float(((centres - assignment.centres) ** 2).sum())
            if not n_moved or shift <= limit:
                break
        self.cluster_centers_, self.counts_ = centres.astype(X.dtype), mass
        self._keep_labels(rows, assignment)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Take one step with these rows; the parameters are those of :meth:`fit`."""
        is_new = not hasattr(self, "cluster_centers_")
        X, weights = self._read(X, sample_weight, reset=is_new)
        self._check(X, is_new=is_new)
        rows = Rows(X, weights)
        with closing(parallel(n_threads(self.n_jobs))) as pool:
            if is_new:
                centres, mass = self._start(X, weights, pool), np.zeros(self.n_clusters)
                self.n_iter_ = 0
            else:
                centres, mass = self._centres(), self.counts_
            assignment = Assignment(rows, centres, pool)
            assignment.move_to(centres)
            means, counts, _ = assignment.means()
            self.counts_ = mass + counts
            share = np.divide(counts, self.counts_, out=np.zeros_like(mass), where=counts > 0.0)
            centres = centres + share[:, None] * (means - centres)
            self.cluster_centers_ = centres.astype(X.dtype)
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
        X = self._loaded(X)
        from sklearn.metrics.pairwise import euclidean_distances

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

    def _validated(self, X: Any, *, reset: bool) -> Any:
        return validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], order="C", reset=reset
        )

    def _read(
        self, X: Any, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[Any, NDArray[np.float64] | None]:
        if reset:
            is_frame = not is_named(X)
            X, self._rows = load_training_rows(X, client=self.client)
            X = self._validated(X, reset=True)
            if is_frame:
                self._take_names()
        else:
            X = self._loaded(X)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        return X, weights

    def _loaded(self, X: Any) -> Any:
        """Return the rows to predict in memory, an array or a CSR matrix."""
        table = self._of_table(X)
        if table is not None:
            return table
        return self._validated(load_rows(X, n_columns=self.n_features_in_), reset=False)

    def _check(self, X: Any, *, is_new: bool) -> None:
        self._validate_params()
        if is_new and X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")

    def _start(
        self,
        X: Any,
        weights: NDArray[np.float64] | None,
        threads: Parallel,
    ) -> NDArray[np.float64]:
        seed = self._seed()
        if not isinstance(self.init, str):
            return self._given(X)
        try:
            if self.init == "k-means||":
                return self._parallel_start(X, weights, seed, threads)
            return self._sampled_start(X, weights, np.random.default_rng([_DRAWS, seed]))
        except DataError:
            return self._from_distinct_rows(X, weights, seed)

    def _sampled_start(
        self, X: Any, weights: NDArray[np.float64] | None, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Choose initial centres among the rows, by k-means++ or at random."""
        n, k = X.shape[0], int(self.n_clusters)
        some = np.arange(n) if weights is None else np.flatnonzero(weights > 0.0)
        if len(some) < k:
            raise DataError(f"{len(some)} rows with weight, wanted {k}")
        if self.init == "random":
            return Rows(X, None).dense(rng.choice(some, k, replace=False))
        if len(some) > _SEEDING_ROWS_MAX:
            some = rng.choice(some, _SEEDING_ROWS_MAX, replace=False)
        mass = np.ones(len(some)) if weights is None else weights[some]
        return seeding.plus_plus(X if len(some) == n else X[some], mass, k, rng)

    def _parallel_start(
        self, X: Any, weights: NDArray[np.float64] | None, seed: int, threads: Parallel
    ) -> NDArray[np.float64]:
        chunks = _chunks(X, weights)
        questions = seeding.start(
            "kmeans||",
            clusters=int(self.n_clusters),
            columns=X.shape[1],
            n_rows=X.shape[0],
            n_blocks=len(chunks),
            seed=seed,
        )
        centres: NDArray[np.float64] = run_locally(questions, chunks, FixedPieces(threads))[
            "centres"
        ]
        return centres

    def _given(self, X: Any) -> NDArray[np.float64]:
        """Validate the given initial centres."""
        centres: NDArray[np.float64] = check_array(self.init, dtype=np.float64, copy=True)
        shape = centres.shape
        if shape[0] != self.n_clusters:
            raise ValueError(
                f"The shape of the initial centers {shape} does not match the number of clusters "
                f"{self.n_clusters}."
            )
        if shape[1] != X.shape[1]:
            raise ValueError(
                f"The shape of the initial centers {shape} does not match the number of features "
                f"of the data {X.shape[1]}."
            )
        return centres

    def _from_distinct_rows(
        self, X: Any, weights: NDArray[np.float64] | None, seed: int
    ) -> NDArray[np.float64]:
        """Choose initial centres among the distinct rows; repeat rows if there are too few."""
        is_weighted = weights is not None and weights.any()
        some = X[np.flatnonzero(weights > 0.0)] if is_weighted else X  # type: ignore[operator]
        dense = some.toarray() if scipy.sparse.issparse(some) else some
        rows, counts = np.unique(np.asarray(dense, np.float64), axis=0, return_counts=True)
        if len(rows) < self.n_clusters:
            return np.resize(rows, (self.n_clusters, X.shape[1]))
        rng = np.random.default_rng(seed)
        return seeding.plus_plus(rows, counts.astype(np.float64), int(self.n_clusters), rng)

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


def _chunks(X: Any, weights: NDArray[np.float64] | None) -> list[Chunk]:
    """Cut rows into chunks of about 1 MiB."""
    n, d = X.shape
    dtype: Literal["float64", "float32"] = "float32" if X.dtype == np.float32 else "float64"
    per_row = d if not scipy.sparse.issparse(X) else max(1, X.nnz // n)
    size = max(1, _CHUNK_BYTES // (per_row * X.dtype.itemsize))
    chunks = []
    for i, start in enumerate(range(0, n, size)):
        part, id = X[start : start + size], ChunkId("memory", i, 0)
        s = None if weights is None else weights[start : start + size]
        labels = np.zeros(part.shape[0])
        if scipy.sparse.issparse(part):
            part.sum_duplicates()
            arrays = (part.indptr, part.indices, part.data)
            chunks.append(csr_chunk(id, labels, *arrays, d, s, dtype=dtype))
        else:
            chunks.append(dense_chunk(id, labels, part, s, dtype=dtype))
    return chunks


def _variances(X: Any) -> NDArray[np.float64]:
    """Return the variances of columns, of up to some thousand rows at equal intervals."""
    some = X[:: max(1, X.shape[0] // _VARIANCE_ROWS)]
    if not scipy.sparse.issparse(some):
        return np.asarray(some.var(axis=0), np.float64)
    means = np.asarray(some.mean(axis=0)).ravel()
    squares = np.asarray(some.multiply(some).mean(axis=0)).ravel()
    return np.asarray(squares - means**2, np.float64)
