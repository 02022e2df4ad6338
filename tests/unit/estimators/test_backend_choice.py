"""Threads of an estimator: the requested number, if it pays off; and those of BLAS."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_info, threadpool_limits

from elasticml.estimators.backend_choice import PRODUCT_VALUES_MIN, choose_client, threads_for


def test_rows_of_too_few_values_have_one_thread():
    X = sp.csr_matrix(np.eye(10))
    assert [threads_for(3, X, least) for least in (10, 11)] == [3, 1]
    assert [threads_for(3, X.toarray(), least) for least in (100, 101)] == [3, 1]
    assert threads_for(None, X, 0) == 1


def test_zero_threads_are_refused_however_few_the_values():
    with pytest.raises(ValueError, match="n_jobs=0 has no meaning"):
        threads_for(0, np.zeros((1, 1)), 1000)


# --- threads of BLAS ----------------------------------------------------------------------------


def blas_threads() -> set[int]:
    # Of the BLAS that the estimators call.
    import scipy.linalg  # noqa: F401

    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_small_fits_here_call_blas_with_one_thread_until_the_last_has_ended() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        first, second = choose_client(None, 1000), choose_client(None, 1000)
        first.__enter__()
        second.__enter__()
        assert blas_threads() == {1}
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before == {2}


def test_large_fits_and_jobs_leave_blas_alone() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        with choose_client(None, PRODUCT_VALUES_MIN):
            assert blas_threads() == {2}
        with choose_client(SimpleNamespace(sync=lambda: None), 1000):
            assert blas_threads() == {2}
