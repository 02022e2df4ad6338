"""K-Means with scikit-learn's contract."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elasticml.algorithms.async_sgd import kmeans, starts
from elasticml.algorithms.async_sgd.base import Arrays, Batch
from elasticml.algorithms.async_sgd.baselines import lloyd
from elasticml.algorithms.async_sgd.questions import ask_here
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.algorithms.async_sgd.statistics import nearest_of, whole
from elasticml.data.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.terms import ChunkId

_CHUNK_BYTES: Final = 2**20


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-Means by mini-batches in this process: what one member of an asynchronous SGD job does.

    Every centre moves to the mean of all examples that it has been given; each example is visited
    once a pass, in random order. The last passes are Lloyd's.

    Parameters
    ----------
    n_clusters : int
    init : "k-means++", "k-means||", "random" or array_like (n_clusters, n_features)
        ``k-means++`` works on 30 rows a cluster.
    batch_size : int, optional
        Examples of a mini-batch; by default ``max(3 n_clusters, 256)``.
    max_iter : int
        Passes over the data at most.
    tol : float
        No further pass follows one in which the centres' squared way, summed over them, was at most
        this share of the columns' mean variance.
    lloyd_iter : int
        Passes of Lloyd's algorithm at the end.
    random_state : int, RandomState or None

    Attributes
    ----------
    cluster_centers_ : ndarray (n_clusters, n_features)
    counts_ : ndarray (n_clusters,)
        Mass of examples that has made each centre, over all passes.
    labels_ : ndarray (n_samples,), int32
        Of the data of the last call of ``fit`` or ``partial_fit``.
    inertia_ : float
        Their weighted sum of squared distances to the nearest centre.
    n_iter_ : int
        Passes made, without Lloyd's.
    n_features_in_ : int

    Notes
    -----
    ``partial_fit`` takes one mini-batch step with all rows that it is given; the first call, which
    also chooses the centres from them, needs at least ``n_clusters`` rows.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Literal["k-means++", "k-means||", "random"] | ArrayLike = "k-means++",
        batch_size: int | None = None,
        max_iter: int = 5,
        tol: float = 1e-4,
        lloyd_iter: int = 1,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.lloyd_iter = lloyd_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Find centres.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features)
        y : ignored
        sample_weight : array_like (n_samples,), optional
            Not negative; one each where not given.
        """
        X, chunks = self._read(X, sample_weight, reset=True)
        seed = self._seed()
        problem = self._problem(X)
        state = problem.begin(self._start(X, chunks, seed))
        sampler = Sampler(chunks, seed=seed)
        limit = self.tol * float(np.mean(_variances(X)))
        self.n_iter_ = 0
        while self.n_iter_ < self.max_iter:
            before = state["centres"].copy()
            self.n_iter_ += 1
            while sampler.passes < self.n_iter_:
                problem.step(state, sampler.next(self._batch_size()))
            if float(((state["centres"] - before) ** 2).sum()) <= limit:
                break
        if self.lloyd_iter:
            state["centres"] = ask_here(lloyd(state["centres"], self.lloyd_iter), chunks)["centres"]
        return self._keep(state, chunks, X.dtype)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Take one step with these rows; the parameters are those of :meth:`fit`."""
        is_new = not hasattr(self, "cluster_centers_")
        X, chunks = self._read(X, sample_weight, reset=is_new)
        problem = self._problem(X)
        if is_new:
            state = problem.begin(self._start(X, chunks, self._seed()))
            self.n_iter_ = 0
        else:
            centres = np.asarray(self.cluster_centers_, np.float64)
            state = problem.begin({"centres": centres, "counts": self.counts_})
        problem.step(state, Batch(parts=[(chunk, np.arange(chunk.n_rows)) for chunk in chunks]))
        return self._keep(state, chunks, X.dtype)

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Return the number of each row's nearest centre; shape (n_samples,)."""
        check_is_fitted(self)
        _, chunks = self._read(X, None, reset=False)
        return self._near(chunks)[0]

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the distances of rows to all centres; shape (n_samples, n_clusters)."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        found: NDArray[Any] = euclidean_distances(X, self.cluster_centers_)
        return found

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Return minus the weighted sum of squared distances to the nearest centres."""
        check_is_fitted(self)
        _, chunks = self._read(X, sample_weight, reset=False)
        return -kmeans.inertia(self._centres(), chunks)

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
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=reset
        )

    def _read(
        self, X: Any, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[Any, list[Chunk]]:
        X = self._validated(X, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        return X, _chunks(X, weights)

    def _problem(self, X: Any) -> kmeans.KMeans:
        for name, least in (("n_clusters", 1), ("max_iter", 0), ("lloyd_iter", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
        if not hasattr(self, "cluster_centers_") and X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        return kmeans.KMeans(clusters=int(self.n_clusters), columns=X.shape[1])

    def _start(self, X: Any, chunks: list[Chunk], seed: int) -> dict[str, Any]:
        if not isinstance(self.init, str):
            return {"centres": np.asarray(self.init, np.float64)}
        ways: dict[str, starts.How] = {
            "k-means++": "kmeans++",
            "k-means||": "kmeans||",
            "random": "sample",
        }
        if self.init not in ways:
            raise ValueError(f"init must be one of {', '.join(ways)} or centres, got {self.init!r}")
        found: dict[str, Any] = ask_here(
            starts.start(
                ways[self.init],
                clusters=int(self.n_clusters),
                columns=X.shape[1],
                n_rows=X.shape[0],
                n_blocks=len(chunks),
                seed=seed,
            ),
            chunks,
        )
        return found

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _batch_size(self) -> int:
        return max(3 * self.n_clusters, 256) if self.batch_size is None else self.batch_size

    # --- results ---------------------------------------------------------------------------------

    def _keep(self, state: Arrays, chunks: list[Chunk], dtype: Any) -> KMeans:
        self.cluster_centers_ = state["centres"].astype(dtype)
        self.counts_ = state["counts"]
        self.labels_, squares = self._near(chunks)
        weights = [np.ones(c.n_rows) if c.weights is None else c.weights for c in chunks]
        self.inertia_ = float(squares @ np.concatenate(weights))
        return self

    def _near(self, chunks: list[Chunk]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        parts = whole(chunks)
        return nearest_of(self._centres(), parts).lookup(parts)

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
    if not scipy.sparse.issparse(X):
        return np.asarray(np.var(X, axis=0, dtype=np.float64), np.float64)
    means = np.asarray(X.mean(axis=0)).ravel()
    squares = np.asarray(X.multiply(X).mean(axis=0)).ravel()
    return np.asarray(squares - means**2, np.float64)
