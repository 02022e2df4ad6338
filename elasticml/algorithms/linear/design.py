"""Products with dense or sparse rows in memory, split into one block per thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.linear import gram
from elasticml.arrays import F64, I32
from elasticml.compiled import unchecked_kernel
from elasticml.data.chunks.kernels import csr_adjoint, csr_forward, csr_product
from elasticml.data.chunks.products import read_only

#: Columns up to which a Gram matrix is computed and factored, and its cost in products with all
#: rows up to which it is cheap.
GRAM_COLUMNS_MAX: Final = 500
CHEAP_MAX: Final = 30.0
#: Values of dense rows that are weighted at a time for a Gram matrix: 4 MB.
_GRAM_VALUES: Final = 2**19


@unchecked_kernel
def _csr_squares(indptr: I32, indices: I32, values: F64, c: F64, out: F64) -> None:
    """Add ``(X * X).T @ c`` to ``out`` (d,)."""
    for i in range(c.size):
        for p in range(indptr[i], indptr[i + 1]):
            out[np.uint32(indices[p])] += c[i] * values[p] * values[p]


class Design:
    """Rows x of a matrix X, which may have a last column of one value, and their products.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64
    parallel : Parallel
        Products of NumPy and SciPy and the kernels release the GIL.

    Attributes
    ----------
    n, d, n_model : int
        Rows and columns of X; columns with the last one.
    """

    def __init__(self, X: Any, parallel: Parallel) -> None:
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        self.n_model, self._constant = self.d, 0.0
        self._parallel, self._X = parallel, X
        cuts = np.linspace(0, self.n, min(parallel.n_threads, self.n) + 1).astype(int)
        self._slices = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        self._parts = [X[rows] for rows in self._slices] if len(self._slices) > 1 else [X]
        self._across = [part.T for part in self._parts]
        is_csr = getattr(X, "format", None) == "csr" and X.indices.dtype == np.int32
        #: CSR rows in float64, for kernels that take one vector; None for other rows.
        self._rows = (
            [
                (read_only(part.indptr), read_only(part.indices), read_only(part.data))
                for part in self._parts
            ]
            if is_csr and X.dtype == np.float64
            else None
        )

    def bordered(self, constant: float | None) -> Design:
        """Return the same rows with a last column of this value, or without one."""
        other = copy(self)
        other.n_model, other._constant = self.d + (constant is not None), constant or 0.0
        return other

    @property
    def is_csr(self) -> bool:
        """Whether the rows are sparse ones in CSR format and float64."""
        return self._rows is not None

    def columns(self, at: NDArray[np.intp]) -> F64:
        """Return these columns of X as dense ones, (n, number)."""
        some = self._X[:, at]
        return np.asarray(some.toarray() if hasattr(some, "toarray") else some, np.float64)

    def forward(self, w: F64) -> F64:
        """Return the products ``x.w``, new; w (n_model,) or (n_model, k)."""
        own = w[: self.d]
        if w.ndim == 1 and self._rows is not None:
            own, margins = read_only(np.ascontiguousarray(own)), np.empty(self.n)

            def multiply(k: int) -> None:
                assert self._rows is not None
                csr_forward(*self._rows[k], own, margins[self._slices[k]])

            self._parallel.map(multiply, range(len(self._rows)))
        else:
            each = self._parallel.map(lambda part: np.asarray(part @ own), self._parts)
            margins = each[0] if len(each) == 1 else np.concatenate(each)
        if self.n_model > self.d:
            margins += self._constant * w[-1]
        return margins

    def adjoint(self, c: F64) -> F64:
        """Return ``sum_i c_i x_i``; c (n,) or (n, k)."""
        if c.ndim == 1 and self._rows is not None:
            return self._with_last(self._csr_sum(csr_adjoint, c), c)
        pairs = list(zip(self._across, self._slices, strict=True))
        sums = self._parallel.map(lambda pair: np.asarray(pair[0] @ c[pair[1]]), pairs)
        return self._with_last(sum(sums[1:], start=sums[0]), c)

    def product(self, v: F64, curvatures: F64) -> F64:
        """Return ``sum_i c_i x_i x_i.v``, (n_model,); v (n_model,), curvatures (n,)."""
        if self._rows is None:
            return self.adjoint(curvatures * self.forward(v))
        offset = self._constant * float(v[-1]) if self.n_model > self.d else 0.0
        v, p = read_only(np.ascontiguousarray(v[: self.d])), np.empty(self.n)
        curvatures = read_only(curvatures)

        def multiply(k: int) -> F64:
            assert self._rows is not None
            rows, out = self._slices[k], np.zeros(self.d)
            csr_product(*self._rows[k], v, offset, curvatures[rows], p[rows], out)
            return out

        sums = self._parallel.map(multiply, range(len(self._rows)))
        return self._with_last(sum(sums[1:], start=sums[0]), p)

    def squares(self, c: F64) -> F64:
        """Return ``sum_i c_i x_i * x_i``, (n_model,); c (n,)."""
        if self._rows is not None and all(part.has_canonical_format for part in self._parts):
            total = self._csr_sum(_csr_squares, c)
        else:
            total = np.zeros(self.d)
            for part, rows in zip(self._across, self._slices, strict=True):
                square = part.multiply(part) if hasattr(part, "multiply") else part * part
                total += square @ c[rows]
        return self._with_last(total, self._constant * c)

    def gram(self, c: F64) -> F64:
        """Return ``sum_i c_i x_i x_i.T``, (n_model, n_model); c (n,), not negative."""
        d, X = self.d, self._X
        matrix = np.zeros((self.n_model, self.n_model))
        own, height = matrix[:d, :d], max(1, _GRAM_VALUES // max(1, d))
        for rows, part in zip(self._rows or (), self._slices, strict=False):
            own += gram.of_rows(*rows, read_only(np.ascontiguousarray(c[part])), d)
        for begin in range(0, self.n if self._rows is None else 0, height):
            at = slice(begin, begin + height)
            some = X[at].toarray() if hasattr(X, "indptr") else X[at]
            weighted = np.sqrt(c[at])[:, None] * some
            own += weighted.T @ weighted
        if self.n_model > d:
            matrix[d] = matrix[:, d] = self._constant * self.adjoint(c)
        return matrix

    def has_cheap_gram(self) -> bool:
        """Whether a Gram matrix costs little more than some passes over the rows."""
        is_tall = self.n >= self.n_model and self.n_model <= GRAM_COLUMNS_MAX
        return is_tall and self.gram_products() <= CHEAP_MAX

    def gram_products(self, share: float = 1.0, models: int = 1) -> float:
        """Return the cost of a Gram matrix of a share of the rows and its factors in products.

        The products are with all rows. Several models have a Gram matrix for each pair.
        """
        own, product = self._costs
        pairs = 0.5 * (models + 1)
        return float((pairs * share * own + 0.1 * models**2 * self.d**3) / max(product, 1.0))

    @cached_property
    def _costs(self) -> tuple[float, float]:
        """Nanoseconds of a Gram matrix and of a product with the Hessian.

        Both were measured with one thread; only their ratio matters.
        """
        if hasattr(self._X, "indptr"):
            stored = np.diff(self._X.indptr).astype(np.float64)
            return 0.45 * float(stored @ stored), 2.4 * float(stored.sum()) + 5.0 * self.n
        return 0.02 * self.n * self.d * self.d, self.n * (0.8 * self.d + 5.0)

    def _with_last(self, image: F64, c: F64) -> F64:
        """Return a sum of rows times c, of which ``image`` has the columns of X."""
        if self.n_model == self.d:
            return image
        return np.concatenate([image, self._constant * c.sum(axis=0, keepdims=True)])

    def _csr_sum(self, kernel: Callable[..., None], c: F64) -> F64:
        """Return what a kernel adds for the sparse rows, and their factors c, of all blocks."""
        assert self._rows is not None
        c, parts = read_only(np.ascontiguousarray(c)), self._rows

        def add(k: int) -> F64:
            out = np.zeros(self.d)
            kernel(*parts[k], c[self._slices[k]], out)
            return out

        sums = self._parallel.map(add, range(len(parts)))
        total: F64 = sum(sums[1:], start=sums[0])
        return total
