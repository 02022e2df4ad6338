"""Threads of an estimator: the requested number, if it pays off."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.estimators.backend_choice import threads_for


def test_rows_of_too_few_values_have_one_thread():
    X = sp.csr_matrix(np.eye(10))
    assert [threads_for(3, X, least) for least in (10, 11)] == [3, 1]
    assert [threads_for(3, X.toarray(), least) for least in (100, 101)] == [3, 1]
    assert threads_for(None, X, 0) == 1


def test_zero_threads_are_refused_however_few_the_values():
    with pytest.raises(ValueError, match="n_jobs=0 has no meaning"):
        threads_for(0, np.zeros((1, 1)), 1000)
